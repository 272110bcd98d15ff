"""Dead letters that others wrote, read into our model: Spring, Kafka Streams, Kafka Connect, share groups. No IO.

| family | headers | source of the names |
|---|---|---|
| Spring Kafka | `kafka_dlt-*`, numbers as big-endian integers | `DeadLetterPublishingRecoverer` |
| Spring's retry topics | `kafka_original-*`, `kafka_exception-*`, `retry_topic-*`, the same | `RetryTopicHeaders` |
| Kafka Streams | `__streams.errors.*`, text | KIP-1034 |
| Kafka Connect | `__connect.errors.*`, text | KIP-298 |
| share groups | `__dlq.errors.*`, text | KIP-1191 |
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from ..inbox.event import Headers, Record
from ..inbox.identity import position_id16
from .failure_text import safe_text
from .letter_headers import SHARE_GROUP_PREFIX, to_int, to_text, to_timestamp_type


class LetterFormat(enum.StrEnum):
    """Who wrote a letter."""

    TIDEGATE = "tidegate"
    SPRING = "spring"
    STREAMS = "streams"
    CONNECT = "connect"
    SHARE_GROUP = "share-group"
    NONE = "none"


Fields: TypeAlias = dict[str, Any]


def foreign_fields(record: Record) -> tuple[LetterFormat, Headers, Fields]:
    """Who wrote the letter, the record's own headers, and the fields of `Letter` that its headers tell.

    The letter's identity is its own position: the writer gave it none. How long and how large they may be is not said
    here: see `letter_headers.bounded`.
    """
    fields: Fields = {
        "dead_letter_id": position_id16(record.topic, 0, record.partition, record.offset).hex(),
    }
    for family in _FAMILIES:
        if any(name.startswith(family.prefixes) for name, _ in record.headers):
            own = tuple(header for header in record.headers if not family.has(header[0]))
            return family.format, own, fields | family.fields(record)
    return LetterFormat.NONE, record.headers, fields


def _message(value: bytes) -> str:
    return safe_text(to_text(value[:_MESSAGE_BYTES_READ]))


_MESSAGE_BYTES_READ = 4_000
"""Others do not bound their messages; ours shows 500 characters anyway."""


def _exception_of_text(value: bytes) -> str:
    """Kafka Streams writes `Throwable.toString()`: the class, a colon, the message."""
    return to_text(value).partition(":")[0]


def _digest(value: bytes) -> str:
    """The Java stack trace's frames, hashed; its first line holds the message and is left out."""
    frames = [line.strip() for line in value.splitlines() if line.lstrip().startswith(b"at ")]
    return hashlib.blake2b(b"\n".join(frames), digest_size=8).hexdigest()


def _decimal(value: bytes) -> int | None:
    return to_int(to_text(value))


def _number(value: bytes) -> int | None:
    """Decimal text, or Java's big-endian bytes: an int's four, a long's eight, as few as a BigInteger needs.

    Eight ASCII digits are text: as a big-endian number they would be an offset beyond 10^18.

    >>> _number(b"42"), _number((7).to_bytes(8, "big")), _number(bytes([3])), _number(b"x" * 9), _number(b"")
    (42, 7, 3, None, None)
    """
    if value.removeprefix(b"-").isdigit():
        return to_int(value.decode("ascii"))
    return int.from_bytes(value, "big", signed=True) if 1 <= len(value) <= _LONG_BYTES else None


def _attempts(value: bytes) -> int | None:
    """Older releases wrote a single byte, and Spring reads one as a number to this day: "4" is 52.

    >>> _attempts(b"4"), _attempts(bytes([4])), _attempts(b"40")
    (52, 4, 40)
    """
    return value[0] if len(value) == 1 else _number(value)


_LONG_BYTES = 8
"""What is longer is no number that Spring writes, and its size is whoever's choice."""


def _timestamp_type(value: bytes) -> int | None:
    return to_timestamp_type(to_text(value))


class _Row(NamedTuple):
    name: str
    field: str
    read: Callable[[bytes], Any]
    first: bool = False
    """Headers repeat when a letter is buried again: the first one tells the origin, the last one the latest failure."""


class _Family(NamedTuple):
    format: LetterFormat
    prefixes: tuple[str, ...]
    rows: tuple[_Row, ...]

    def has(self, name: str) -> bool:
        """Whether a header is the writer's, and not the record's own."""
        return name.startswith(self.prefixes) or any(name == row.name for row in self.rows)

    def fields(self, record: Record) -> Fields:
        """What the headers tell; an earlier row of a field wins over a later one."""
        found: Fields = {}
        for row in self.rows:
            values = [value for name, value in record.headers if name == row.name and value is not None]
            told = row.read(values[0 if row.first else -1]) if values else None
            if told is not None and row.field not in found:
                found[row.field] = told
        return found


def _spring(suffix: str, field: str, read: Callable[[bytes], Any], *, first: bool = False) -> tuple[_Row, _Row]:
    """As the recoverer names it, and as the retry topics do."""
    return _Row("kafka_dlt-" + suffix, field, read, first), _Row("kafka_" + suffix, field, read, first)


def _texts(prefix: str, *rows: tuple[str, str, Callable[[bytes], Any]]) -> tuple[_Row, ...]:
    return tuple(_Row(prefix + suffix, field, read) for suffix, field, read in rows)


_PLACE: Final = (
    ("topic", "origin_topic", to_text),
    ("partition", "origin_partition", _decimal),
    ("offset", "origin_offset", _decimal),
)

_FAMILIES: Final = (
    _Family(
        LetterFormat.SPRING,
        ("kafka_dlt-", "retry_topic-"),
        (
            *_spring("original-topic", "origin_topic", to_text, first=True),
            *_spring("original-partition", "origin_partition", _number, first=True),
            *_spring("original-offset", "origin_offset", _number, first=True),
            *_spring("original-timestamp", "origin_timestamp_ms", _number, first=True),
            *_spring("original-timestamp-type", "origin_timestamp_type", _timestamp_type, first=True),
            *_spring("original-consumer-group", "consumer", to_text),
            # the outer exception is Spring's own wrapper; the cause is the listener's
            *_spring("exception-cause-fqcn", "exception_type", to_text),
            *_spring("exception-fqcn", "exception_type", to_text),
            *_spring("key-exception-fqcn", "exception_type", to_text),
            *_spring("exception-message", "exception_message", _message),
            *_spring("key-exception-message", "exception_message", _message),
            *_spring("exception-stacktrace", "stack_digest", _digest),
            *_spring("key-exception-stacktrace", "stack_digest", _digest),
            _Row("retry_topic-attempts", "attempts", _attempts),
            _Row("kafka_deliveryAttempt", "attempts", _number),
            _Row("retry_topic-original-timestamp", "origin_timestamp_ms", _number, first=True),
        ),
    ),
    _Family(
        LetterFormat.STREAMS,
        ("__streams.errors.",),
        _texts(
            "__streams.errors.",
            *_PLACE,
            ("exception", "exception_type", _exception_of_text),
            ("message", "exception_message", _message),
            ("stacktrace", "stack_digest", _digest),
        ),
    ),
    _Family(
        LetterFormat.CONNECT,
        ("__connect.errors.",),
        _texts(
            "__connect.errors.",
            *_PLACE,
            ("connector.name", "consumer", to_text),
            ("class.name", "handler", to_text),
            ("exception.class.name", "exception_type", to_text),
            ("exception.message", "exception_message", _message),
            ("exception.stacktrace", "stack_digest", _digest),
        ),
    ),
    _Family(
        LetterFormat.SHARE_GROUP,
        (SHARE_GROUP_PREFIX,),
        _texts(
            SHARE_GROUP_PREFIX,
            *_PLACE,
            ("group", "consumer", to_text),
            ("delivery.count", "attempts", _decimal),
            ("message", "exception_message", _message),
        ),
    ),
)
