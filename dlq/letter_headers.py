"""The dead letter's headers: one table of names, what each one says, how it is written and within what bounds. No IO.

Anybody may write a letter, so what was read of one goes through its field's bound, whoever wrote it (`bounded`).
docs/dead-letter-format.md is the same table for people; a test keeps the two equal.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .failure_text import MESSAGE_CHARS_MAX, TYPE_CHARS_MAX, clean, printable, shortened

FORMAT_VERSION = 1
"""Raised when a header changes its meaning; new headers do not raise it."""

PREFIX = "tidegate-"
"""Ours. What is not in the table below is not a dead-letter header and is left alone, whatever it begins with."""

SHARE_GROUP_PREFIX = "__dlq.errors."
"""Apache Kafka's own names, written by its brokers for share groups (KIP-1191)."""

ID_CHARS_MAX = 255
"""What fits a column and a terminal. Longer ids are shortened here; the inbox finds them by their hash anyway."""

_TIMESTAMP_TYPES = ("NoTimestampType", "CreateTime", "LogAppendTime")
"""Kafka's names of its types 0, 1 and 2, as Kafka Connect and Spring write them too."""


def to_bytes(text: str) -> bytes:
    """UTF-8, whatever stood in `text`."""
    return text.encode("utf-8", "replace")


def to_text(value: bytes) -> str:
    """The text of a header, whoever wrote it."""
    return printable(value.decode("utf-8", "replace"))


def _id(value: str) -> str:
    if len(value) <= ID_CHARS_MAX and value.isascii() and value.isprintable():  # nearly every one
        return value
    return shortened(printable(value), ID_CHARS_MAX)


def _type_name(value: str) -> str:
    return shortened(printable(value), TYPE_CHARS_MAX)


def _message(value: str) -> str:
    return shortened(clean(value), MESSAGE_CHARS_MAX)


def to_int(text: str) -> int | None:
    """A decimal number that a 64-bit column can hold; None for everything else.

    >>> to_int("42"), to_int("-1"), to_int("nine"), to_int("1" * 5000)
    (42, -1, None, None)
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _INT_DIGITS_MAX):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


_INT_DIGITS_MAX = 19

COUNTED_MAX: Final = 1_000_000
"""More tries or replays than anything here makes; with some more on top they still fit their columns."""

_INT_MAX: Final = 2**31 - 1
"""What a column for versions and partitions holds; of lives of a topic there are fewer."""

_LONG_MAX: Final = 2**63 - 1
"""What a column for offsets holds."""


def _up_to(most: int) -> Callable[[int], int | None]:
    """What is less than nothing makes no sense, what is more than `most` counts as that: guards go by large numbers."""

    def bound(number: int) -> int | None:
        return None if number < 0 else min(number, most)

    return bound


def _instant(value: datetime.datetime) -> str:
    return (value if value.tzinfo is datetime.UTC else value.astimezone(datetime.UTC)).isoformat()


def to_instant(text: str) -> datetime.datetime | None:
    """An ISO 8601 time with its offset, in UTC; None for everything else."""
    try:
        parsed = datetime.datetime.fromisoformat(text)
        return parsed.astimezone(datetime.UTC) if parsed.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _timestamp_type(value: int) -> str:
    return _TIMESTAMP_TYPES[value] if 0 <= value < len(_TIMESTAMP_TYPES) else _TIMESTAMP_TYPES[0]


def to_timestamp_type(text: str) -> int | None:
    """Kafka's number of the timestamp type called `text`; None for an unknown one."""
    return _TIMESTAMP_TYPES.index(text) if text in _TIMESTAMP_TYPES else None


def _as_is(value: Any) -> Any:
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(_id(text).split(","))


class LetterHeader(NamedTuple):
    """One header: its name without the prefix, the letter's field, how that is written and read, and what it says.

    `bound` is what becomes of a value that somebody wrote, so that the inbox can hold it; None where it makes no sense.
    """

    suffix: str
    field: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    meaning: str
    bound: Callable[[Any], Any] = _as_is

    @property
    def name(self) -> str:
        """The name on the wire."""
        return PREFIX + self.suffix


def _text(suffix: str, meaning: str, write: Callable[[str], str] = _id) -> LetterHeader:
    return LetterHeader(suffix, suffix.replace("-", "_"), write, _as_is, meaning, write)


def _number(suffix: str, meaning: str, most: int) -> LetterHeader:
    return LetterHeader(suffix, suffix.replace("-", "_"), str, to_int, meaning, _up_to(most))


def _time(suffix: str, meaning: str) -> LetterHeader:
    return LetterHeader(suffix, suffix.replace("-", "_"), _instant, to_instant, meaning)


LETTER_HEADERS: tuple[LetterHeader, ...] = (
    _text("dead-letter-id", "Identity of this letter, 32 hex digits; a repeat of the same burial has the same."),
    _text("reason", "Why the event is dead: a word of the closed vocabulary."),
    _text("disposition", "What became of its key: `released` (later events go on) or `held` (they wait)."),
    _text("exception-type", "Class of the exception, with its module.", _type_name),
    _text("exception-message", "Its message, shortened; without secrets, SQL parameters and payload.", _message),
    _text("stack-digest", "16 hex digits, equal for failures raised along the same frames."),
    _text("event-id", "The event's id as its declared rule reads it; the position where it could not be read."),
    _text("correlation-id", "Ties together everything that one request set off."),
    _text("causation-id", "What caused this: the event's id."),
    _text("operation-id", "The business operation, the same in every repeat."),
    _text("traceparent", "W3C trace context: of the handling where it has one, else the one that the record came in."),
    _text("tenant", "Tenant, where the consumer declares a header for it."),
    _text("brand", "Brand, where the consumer declares a header for it."),
    _text("consumer", "The consumer, which is also the Kafka group."),
    _text("handler", "The projection or command; empty for a record that reached none."),
    _number("handler-version", "The projection's version; 0 for a command.", _INT_MAX),
    _number("attempts", "How often it was tried, the last time included.", COUNTED_MAX),
    _time("first-failed-at", "When it failed first; ISO 8601, UTC."),
    _time("last-failed-at", "When it failed last; ISO 8601, UTC."),
    _text("origin-topic", "Topic of the record."),
    _number("origin-incarnation", "Which life of that topic: 0, and one more each time it was re-created.", _INT_MAX),
    _number("origin-partition", "Partition of the record.", _INT_MAX),
    _number("origin-offset", "Offset of the record.", _LONG_MAX),
    LetterHeader(
        "origin-timestamp",
        "origin_timestamp_ms",
        str,
        to_int,
        "Timestamp of the record, milliseconds since 1970 as received.",
    ),
    LetterHeader(
        "origin-timestamp-type",
        "origin_timestamp_type",
        _timestamp_type,
        to_timestamp_type,
        "`CreateTime`, `LogAppendTime` or `NoTimestampType`.",
    ),
    _number("schema-id", "The value's id in the schema registry, where it has one.", _LONG_MAX),
    _number("replay-count", "How often the event was replayed before this letter.", COUNTED_MAX),
    _text("claim", "Only in a claim letter: SHA-256, in hex, of the value that stays in the inbox."),
    _number("claim-bytes", "Only in a claim letter: the value's length.", _LONG_MAX),
    LetterHeader(
        "claim-left-out",
        "left_out",
        ",".join,
        _words,
        "Only in a claim letter: what was left out of it: `value`, `headers`, `key`, with commas.",
    ),
)
"""Every header that carries a field of the letter, in the order in which they are written."""

_BOUNDS: Final = {header.field: header.bound for header in LETTER_HEADERS}


def bounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a letter as they were read, within what the inbox can hold.

    >>> bounded({"attempts": 2**63 - 1, "origin_incarnation": -1, "tenant": None})
    {'attempts': 1000000, 'origin_incarnation': None, 'tenant': None}
    """
    return {field: None if value is None else _BOUNDS[field](value) for field, value in fields.items()}


REPLAY = PREFIX + "replay"
"""The replay instruction for a machine: JSON."""

REPLAY_COMMAND = PREFIX + "replay-command"
"""The replay instruction for a person: a command line for a POSIX shell, a dry run until `--yes` is added."""

RUNBOOK = PREFIX + "runbook"
"""The page that says what to do about this reason."""

REPLAYS = PREFIX + "replay-count"
"""Of a letter, and of a record that was sent to its source topic once more."""

VERSION = PREFIX + "letter-version"
"""The format's version."""

DERIVED_HEADERS: tuple[tuple[str, str], ...] = (
    (VERSION, f"Version of this format: `{FORMAT_VERSION}`."),
    (REPLAY, "How to replay it, for a machine: JSON, see below."),
    (REPLAY_COMMAND, "How to replay it, for a person: the command line, a dry run until you add `--yes`."),
    (RUNBOOK, "What to do before: the page of its reason, as a path in this documentation."),
)
"""Headers that repeat what the others say, in another form."""

SHARE_GROUP_HEADERS: tuple[tuple[str, str], ...] = (
    ("topic", "origin_topic"),
    ("partition", "origin_partition"),
    ("offset", "origin_offset"),
    ("group", "consumer"),
    ("delivery.count", "attempts"),
    ("message", "exception_message"),
)
"""Kafka's own dead-letter headers (suffix, field), written so that tools which know them find their way."""

OUR_NAMES = frozenset(
    [header.name for header in LETTER_HEADERS]
    + [name for name, _ in DERIVED_HEADERS]
    + [SHARE_GROUP_PREFIX + suffix for suffix, _ in SHARE_GROUP_HEADERS]
)
"""What is replaced in a record that already was a letter (or pretends to), so that headers never grow."""
