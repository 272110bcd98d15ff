"""Logs: stable names, one JSON object a line, no payload, from any thread."""

from __future__ import annotations

import asyncio
import enum
import io
import json
import logging
import threading
import uuid
from collections.abc import Iterator
from typing import Any, Self, final

import pytest
import structlog

from tidegate.consumers import logs
from tidegate.consumers.settings import Log
from tidegate.inbox.errors import TransientError
from tidegate.inbox.event import Event, Record
from tidegate.inbox.log_fields import event_fields
from tidegate.inbox.outcome import FinalStatus


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    out = io.StringIO()
    logs.configure(Log(format="json"), out)
    yield out
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def an_event() -> Event[Any]:
    record = Record("orders", 3, 17, b"customer-9", b'{"card": "4111-1111"}', (("correlation-id", b"c-1"),))
    return Event({"card": "4111-1111"}, record, type="shop.OrderPlaced", id_text="e-1", tenant="acme")


def test_an_events_lines_carry_the_stable_fields(stream: io.StringIO) -> None:
    fields = event_fields(an_event(), "send-invoice", "command", attempt=2)
    structlog.get_logger("tidegate.worker").info("done", **fields, final_status="completed", duration_s=0.2)
    line = lines(stream)[0]
    assert list(line)[:3] == ["timestamp", "level", "message"]
    assert line["message"] == "done"
    assert {name: line[name] for name in line if name not in ("timestamp", "level", "message", "logger")} == {
        "event_id": "e-1",
        "operation_id": "e-1",
        "correlation_id": "c-1",
        "job_id": "orders/3@17",
        "job_type": "command/send-invoice",
        "entity_id": "customer-9",
        "handler": "send-invoice",
        "attempt": 2,
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "tenant": "acme",
        "final_status": "completed",
        "duration_s": 0.2,
    }


def test_no_payload_gets_through(stream: io.StringIO) -> None:
    event = an_event()
    structlog.get_logger().warning(
        "odd",
        event_object=event,
        value=event.value,
        payload="4111-1111",
        raw=event.record.value,
        nested={"value": "4111"},
    )
    assert "4111" not in stream.getvalue()
    line = lines(stream)[0]
    assert (line["event_object"], line["raw"]) == ("<Event>", "<21 bytes>")


def test_a_foreign_exception_tells_its_type_and_frames_but_not_its_message(stream: io.StringIO) -> None:
    try:
        raise ValueError("Key (card)=(4111-1111) already exists")
    except ValueError:
        structlog.get_logger().exception("failed")
        logging.getLogger("somebody.else").exception("failed too")
    first, second = lines(stream)
    assert "4111" not in stream.getvalue()
    for line in (first, second):
        assert line["exception_type"] == "ValueError"
        assert "test_logs.py" in line["frames"][-1]
        assert "exception_message" not in line


def test_our_own_exceptions_tell_their_message(stream: io.StringIO) -> None:
    structlog.get_logger().error("failed", exc_info=TransientError("the registry answered 503"))
    assert lines(stream)[0]["exception_message"] == "the registry answered 503"


def test_what_is_bound_is_on_every_line_inside_also_of_other_libraries(stream: io.StringIO) -> None:
    with logs.about(event_fields(an_event())):
        logging.getLogger("somebody.else").warning("inside")
    logging.getLogger("somebody.else").warning("outside")
    inside, outside = lines(stream)
    assert inside["operation_id"] == "e-1"
    assert "operation_id" not in outside


def test_threads_do_not_mix_their_lines(stream: io.StringIO) -> None:
    def write(n: int) -> None:
        for i in range(200):
            structlog.get_logger("tidegate").info("line", writer=n, i=i)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(stream)) == 1600


@final
class Kept(logging.Handler):
    """What a service that collects errors hangs in."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_handlers_of_the_app_see_our_lines_too_and_each_stands_on_the_stream_once(stream: io.StringIO) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if type(handler) is logging.StreamHandler]  # not pytest's
    logs_of_all, logs_of_ours = Kept(), Kept()
    ours = logging.getLogger("tidegate.worker")
    ours.addHandler(logs_of_ours)
    try:
        log = structlog.get_logger("tidegate.worker")
        log.info("before")
        log.error("event_dead", reason="rejected")
        root.addHandler(logs_of_all)
        log.info("behind")
    finally:
        ours.removeHandler(logs_of_ours)
    told = [
        (record.name, record.levelname, json.loads(record.getMessage())["message"]) for record in logs_of_ours.records
    ]
    assert told == [("tidegate.worker", "ERROR", "event_dead"), ("tidegate.worker", "INFO", "behind")]
    assert [json.loads(record.getMessage())["message"] for record in logs_of_all.records] == ["behind"]
    assert [line["message"] for line in lines(stream)] == ["before", "event_dead", "behind"]


async def test_the_lines_of_one_turn_go_out_together_at_its_end_and_before_anybody_elses(stream: io.StringIO) -> None:
    log = structlog.get_logger("tidegate.worker")
    log.info("one")
    log.info("two")
    assert lines(stream) == []
    await asyncio.sleep(0)
    assert [line["message"] for line in lines(stream)] == ["one", "two"]
    log.info("three")
    logging.getLogger("elsewhere").warning("four")
    assert [line["message"] for line in lines(stream)] == ["one", "two", "three", "four"]
    log.info("five")
    await asyncio.to_thread(log.warning, "six")
    assert [line["message"] for line in lines(stream)] == ["one", "two", "three", "four", "five", "six"]


@final
class Full(io.StringIO):
    """A stream on a disk that is full for a while."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


async def test_a_stream_that_takes_nothing_stops_nobody_and_is_written_to_again(stream: io.StringIO) -> None:
    out = Full()
    logs.configure(Log(format="json"), out)
    log = structlog.get_logger("tidegate.worker")
    log.error("lost")
    await asyncio.sleep(0)
    await asyncio.to_thread(log.error, "lost too")
    out.full = False
    log.error("written")
    await asyncio.sleep(0)
    assert [line["message"] for line in lines(out)] == ["written"]


def test_what_a_loop_left_unwritten_goes_out_with_the_next_one(stream: io.StringIO) -> None:
    """A loop that is stopped in the turn in which a line was written never comes to its end."""
    log = structlog.get_logger("tidegate.worker")
    for message in ("one", "two"):
        loop = asyncio.new_event_loop()
        loop.call_soon(lambda said=message, ending=loop: (ending.stop(), log.info(said)))
        loop.run_forever()
        loop.close()
    log.info("three")
    assert [line["message"] for line in lines(stream)] == ["one", "two", "three"]


def test_a_console_shows_the_same_without_json() -> None:
    out = io.StringIO()
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    logs.configure(Log(format="console"), out)
    try:
        structlog.get_logger().error("failed", exc_info=TransientError("503"), payload="4111")
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
        structlog.reset_defaults()
    assert "failed" in out.getvalue()
    assert "4111" not in out.getvalue()


@final
class Shout(str):
    """A text of a kind of its own, which prints another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "4111"


class Share(float):
    """A number of a kind of its own."""


class Word(str, enum.Enum):  # noqa: UP042 - one whose value is not the text
    """A text that holds more than it says."""

    SAID = "said", "4111"

    def __new__(cls, text: str, _hidden: str) -> Self:
        self = str.__new__(cls, text)
        self._value_ = _hidden
        return self


class Colour(enum.Enum):
    """A name."""

    RED = 1


class Level(enum.IntEnum):
    """A number with a name."""

    HIGH = 3


def nested(levels: int) -> list[Any]:
    """A list in a list in a list."""
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner]
    return inner


ODD: dict[str, tuple[object, object]] = {
    "not ASCII": ("é \U0001f600", "é \U0001f600"),
    "a lone surrogate": ("a\ud800b é", "a\ud800b é"),
    "a number of more than 64 bits": (2**64, 2**64),
    "a number below 64 bits": (-(2**63) - 1, -(2**63) - 1),
    "a number that Python will not write": (1 << 20_000, "<int of 20001 bits>"),
    "NaN": (float("nan"), None),
    "infinity": ([float("-inf"), 0.5], [None, 0.5]),
    "NaN beside a lone surrogate": ([float("nan"), 2**64, "\udfff"], [None, 2**64, "\udfff"]),
    "nested": ({"a": [{"b": (1, {2})}, None, True]}, {"a": [{"b": [1, [2]]}, None, True]}),
    "keys that are no text": ({1: "x", None: {2.5: "y"}}, {"1": "x", "None": {"2.5": "y"}}),
    "three hundred levels": (nested(300), nested(300)),
    "a text of a kind of its own": (Shout("said"), "said"),
    "words and numbers of an enum": ([FinalStatus.FAILED, Level.HIGH], ["failed", 3]),
    "a number of a kind of its own": (Share(0.5), 0.5),
    "a word whose value is another one": (Word.SAID, "said"),
    "an enum": (Colour.RED, "<Colour>"),
    "a UUID": (uuid.UUID(int=7), "<UUID>"),
}


@pytest.mark.parametrize("what", ODD)
def test_whatever_is_said_is_one_line_of_valid_json_in_utf8(stream: io.StringIO, what: str) -> None:
    given, told = ODD[what]
    structlog.get_logger().info("x", before="é", odd=given, behind=1)
    written = stream.getvalue()
    assert written.encode().count(b"\n") == 1
    line = json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert line["odd"] == told
    assert (line["before"], line["behind"]) == ("é", 1)
    assert '"before":"é"' in written  # text stays readable, also beside what has to be escaped


def test_a_long_text_is_cut(stream: io.StringIO) -> None:
    structlog.get_logger().info("x", entity_id="k" * 1_000_000)
    assert len(lines(stream)[0]["entity_id"]) == logs.TEXT_MAX + 1
