"""Logs: one JSON object a line with stable field names, never an event's payload, never a secret.

Every line has `timestamp`, `level`, `message` and `logger`. What is about an event or a job has the fields of
`inbox.log_fields`, and where they apply:

| field | what it is |
|---|---|
| `duration_s` | seconds |
| `final_status` | completed, failed, unknown, skipped_duplicate or skipped; only on the last line of an event |
| `consumer`, `reason` | as they say |
| `exception_type`, `stack_digest`, `frames` | of an exception |
| `exception_message` | of our own exceptions; of foreign ones only on request |

Loggers may be used from any thread. Fields bound by `about` are on every line written inside it, by anybody, stdlib
loggers included.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import sys
import threading
import traceback
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, TextIO, cast, final

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from ..dlq import failure_text
from ..inbox.errors import TidegateError
from ..inbox.exception_slots import traceback_of
from ..inbox.json_text import json_text
from .settings import Log

NEVER: Final = frozenset({"payload", "value", "body", "password", "secret", "token", "parameters", "headers"})
"""Field names that are dropped, whoever writes them: what belongs to an event or unlocks something."""

TEXT_MAX: Final = 500
"""Characters of one text field: a line stays readable, and a key of a megabyte does not become a line of a megabyte."""

INT_BITS_MAX: Final = 1_024
"""Of a whole number: three hundred digits. Python refuses to write one of more than 4,300."""

WRITTEN: Final = "_written"
"""Set on records of lines that stand on the stream already."""

LINES_MAX: Final = 100
"""Lines that wait for the end of a turn."""

FRAMES_MAX: Final = 20
"""Innermost frames of a stack: deeper ones are the loop's."""


def configure(log: Log, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for this process. `stream` is standard error unless given."""
    out = stream or sys.stderr
    as_console = log.format == "console" or (log.format == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _exceptions(log.exception_messages),
        _finish,
    ]
    console = structlog.dev.ConsoleRenderer(event_key="message", colors=out.isatty())
    renderer: Processor = console if as_console else _json
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        keep_exc_info=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    turn = _Turn(out, handler)
    atexit.register(turn.flush)
    handler.addFilter(turn.is_foreign)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log.level.upper())
    for name in ("sqlalchemy.engine", "sqlalchemy.pool"):
        logging.getLogger(name).setLevel(logging.WARNING)  # below it they print statements with their parameters
    structlog.configure(
        processors=[structlog.stdlib.add_logger_name, *shared, renderer],
        logger_factory=lambda *name: _Lines(turn, *name),
        wrapper_class=structlog.make_filtering_bound_logger(log.level),
        cache_logger_on_first_use=False,
    )


@final
class _Turn:
    """Lines that were written in one turn of an event loop go out together, at its end; from other threads at once.

    What reads the other end of a pipe is woken once for fifty failures instead of fifty times, which costs as much as
    making the lines. Who ends the process in the same turn (kill -9) takes them along.
    """

    def __init__(self, out: TextIO, handler: logging.Handler) -> None:
        self._out = out
        self._lock = handler.lock or threading.RLock()
        self._waiting: list[str] = []
        self._due_in: asyncio.AbstractEventLoop | None = None

    def write(self, line: str) -> None:
        """Take a whole line."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._lock:
            self._waiting.append(line)
            if loop is None or len(self._waiting) >= LINES_MAX:
                self.flush()
            elif self._due_in is not loop:
                self._due_in = loop
                loop.call_soon(self.flush)

    def flush(self) -> None:
        """What waits goes out. A stream that takes nothing (a full disk, a reader that left) stops nobody's work."""
        with self._lock:
            waiting, self._waiting, self._due_in = self._waiting, [], None
            if waiting:
                with suppress(OSError, ValueError):  # ValueError: it is closed
                    self._out.write("\n".join(waiting) + "\n")
                    self._out.flush()

    def is_foreign(self, record: logging.LogRecord) -> bool:
        """Asked before another library's line is written: ours that are older go first."""
        foreign = not hasattr(record, WRITTEN)
        if foreign:
            self.flush()
        return foreign


@final
class _Lines:
    """Writes our own lines beside those of other libraries, never into one of them.

    Not by the standard library, which would take two thirds of a line's time: an event that fails writes one or two,
    and a hundredth of all may fail. Errors are told to it too, for whoever reports those to a service, and so is
    everything where the app has handlers of its own.
    """

    __slots__ = ("_root", "_turn", "name")

    def __init__(self, turn: _Turn, name: str = "root") -> None:
        self.name = name
        self._turn = turn
        self._root = logging.getLogger()

    def debug(self, line: str) -> None:
        """Write a whole line."""
        self._write(line, logging.DEBUG)

    def info(self, line: str) -> None:
        """Write a whole line."""
        self._write(line, logging.INFO)

    def warning(self, line: str) -> None:
        """Write a whole line."""
        self._write(line, logging.WARNING)

    def error(self, line: str) -> None:
        """Write a whole line."""
        self._write(line, logging.ERROR)

    def critical(self, line: str) -> None:
        """Write a whole line."""
        self._write(line, logging.CRITICAL)

    msg = info

    def _write(self, line: str, level: int) -> None:
        self._turn.write(line)
        if level >= logging.ERROR or len(self._root.handlers) > 1:
            record = logging.LogRecord(self.name, level, "", 0, line, None, None)
            setattr(record, WRITTEN, True)
            logging.getLogger(self.name).handle(record)


@contextmanager
def about(fields: Mapping[str, Any]) -> Generator[None]:
    """Put these fields on every line that is written inside, also by stdlib loggers, in this task or thread."""
    with structlog.contextvars.bound_contextvars(**fields):
        yield


def stack_of(trace: TracebackType | None) -> list[str]:
    """The innermost frames as `file:line function`, outermost first. Source text and values stay out."""
    frames = traceback.extract_tb(trace)[-FRAMES_MAX:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _exceptions(messages: bool) -> Processor:
    """`exc_info` as fields. The message of our own errors never holds payload; foreign ones may quote a row."""

    def describe(_logger: WrappedLogger, _name: str, entry: EventDict) -> EventDict:
        given = entry.pop("exc_info", None)
        error = _error_of(given)
        if error is not None:
            told = failure_text.describe(error)
            entry["exception_type"] = told.type
            entry["stack_digest"] = told.stack_digest
            entry["frames"] = stack_of(traceback_of(error))
            if messages or isinstance(error, TidegateError):
                entry["exception_message"] = told.message
        return entry

    return describe


def _error_of(given: object) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    if isinstance(given, tuple):
        return next((part for part in cast("tuple[object, ...]", given) if isinstance(part, BaseException)), None)
    return sys.exception() if given else None


def _finish(_logger: WrappedLogger, _name: str, entry: EventDict) -> EventDict:
    """Drop what must never be logged, and reduce the rest to plain values: an object could print its payload."""
    record = entry.pop("_record", None)
    timestamp, level, message = entry.pop("timestamp"), entry.pop("level"), _as_it_is(entry.pop("event"))
    line: EventDict = {"timestamp": timestamp, "level": level, "message": message}
    for name, value in entry.items():
        if name.lower() not in NEVER:
            line[name] = value if value.__class__ is str and len(value) <= TEXT_MAX else _as_it_is(value)
    if record is not None:
        line["_record"] = record
    return line


def _as_it_is(value: Any) -> Any:
    """Most are short texts and small numbers."""
    kind = value.__class__
    if (kind is str and len(value) <= TEXT_MAX) or (kind is int and -_SMALL < value < _SMALL):
        return value
    return _plain(value)


_SMALL: Final = 2**63


def _plain(value: object) -> object:
    """NaN and infinity, which JSON has not, are None."""
    match value:
        case None | bool():
            return value
        case int():
            bits = value.bit_length()
            return value if bits <= INT_BITS_MAX else f"<int of {bits} bits>"
        case float():
            return value if math.isfinite(value) else None
        case str():
            text = value[:TEXT_MAX]  # of a text of a kind of its own a plain one
            return text if len(value) <= TEXT_MAX else text + "…"
        case bytes():
            return f"<{len(value)} bytes>"
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in cast("Iterable[object]", value)]
        case dict():
            items = cast("dict[object, object]", value).items()
            return {str(k): _plain(v) for k, v in items if str(k).lower() not in NEVER}
        case TidegateError():
            return failure_text.safe_message(value)  # a handler may have raised it
        case _:
            return f"<{type(value).__name__}>"


def _json(_logger: WrappedLogger, _name: str, entry: EventDict) -> str:
    """Always a line, and valid JSON: `_finish` leaves what `json_text` takes. NaN and infinity are null."""
    return json_text(entry)
