"""A record (bytes from Kafka) and an event (a record that was decoded). No IO; time is an argument."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = tuple[Header, ...]

TIMESTAMP_NOT_AVAILABLE: Final = 0
"""Kafka's marker of a record without a timestamp (its type, not its value)."""


class Partition(NamedTuple):
    """A topic's partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class Record:
    """A record as Kafka delivered it: nothing is decoded, nothing lost (None stays None, headers keep order).

    `headers` may be given as a function; it is called once, when the headers are first read.
    `timestamp_ms` is milliseconds since 1970 as the producer or broker wrote them, whatever they mean;
    `timestamp_type` is Kafka's 0 (not available), 1 (create time) or 2 (log append time).
    """

    __slots__ = ("_headers", "key", "offset", "partition", "timestamp_ms", "timestamp_type", "topic", "value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | Callable[[], list[Header] | None] = (),
        timestamp_ms: int = -1,
        timestamp_type: int = TIMESTAMP_NOT_AVAILABLE,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self._headers = headers
        self.timestamp_ms = timestamp_ms
        self.timestamp_type = timestamp_type

    @property
    def headers(self) -> Headers:
        """All headers in their order; a header may repeat and its value may be None."""
        headers = self._headers
        if callable(headers):
            headers = self._headers = tuple(headers() or ())
        return headers

    def header(self, name: str) -> bytes | None:
        """The value of the last header called `name`; None where there is none (or where it is null)."""
        found = None
        for key, value in self.headers:
            if key == name:
                found = value
        return found

    @property
    def size_bytes(self) -> int:
        """Key and value together: what holding this record in memory costs at least."""
        return len(self.key or b"") + len(self.value or b"")

    @property
    def timestamp(self) -> datetime.datetime | None:
        """The timestamp in UTC; None where there is none or where it is beyond what a datetime can hold."""
        if self.timestamp_type == TIMESTAMP_NOT_AVAILABLE:
            return None
        try:
            return _EPOCH + datetime.timedelta(milliseconds=self.timestamp_ms)
        except OverflowError:
            return None

    def age_s(self, now: datetime.datetime) -> float | None:
        """Seconds since the timestamp, never negative (clocks differ); None where there is no usable timestamp."""
        at = self.timestamp
        return None if at is None else max(0.0, (now - at).total_seconds())

    def __repr__(self) -> str:
        return f"Record({self.topic}/{self.partition}@{self.offset})"


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Event(Generic[T]):
    """A decoded record. `value` is None for a tombstone (a delete marker), which is not an empty value.

    In a unit test of a handler write `Event(value)`: all else has a default.
    """

    __slots__ = (
        *("_correlation_id", "_id", "_operation_id", "brand", "event_id", "payload_hash", "record", "tenant", "type"),
        "value",
    )

    def __init__(
        self,
        value: T,
        record: Record | None = None,
        type: str = "",
        event_id: bytes = b"\0" * 16,
        id_text: str | bytes = "",
        payload_hash: int = 0,
        tenant: str | None = None,
        brand: str | None = None,
        correlation_id: str | None = None,
    ) -> None:
        self.value = value
        self.record = record if record is not None else Record("", 0, 0, None, None)
        self.type = type
        self.event_id = event_id
        self._id = id_text
        self.payload_hash = payload_hash
        self.tenant = tenant
        self.brand = brand
        self._correlation_id = correlation_id
        self._operation_id: str | None = None

    @property
    def id_text(self) -> str:
        """The event's declared id, readable."""
        given = self._id
        return given if isinstance(given, str) else given.decode("utf-8", "replace")

    @property
    def topic(self) -> str:
        """The topic that the record was read from."""
        return self.record.topic

    @property
    def partition(self) -> int:
        """The partition that the record was read from."""
        return self.record.partition

    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
        return self.record.offset

    @property
    def key(self) -> bytes | None:
        """The record's key; b"" is a key, None is not."""
        return self.record.key

    @property
    def headers(self) -> Headers:
        """The record's headers, in order."""
        return self.record.headers

    @property
    def timestamp(self) -> datetime.datetime | None:
        """The record's timestamp in UTC, None where it is not usable."""
        return self.record.timestamp

    @property
    def is_tombstone(self) -> bool:
        """True for a record without a value: whatever had this key is deleted."""
        return self.record.value is None and self.value is None

    @property
    def correlation_id(self) -> str:
        """The `correlation-id` header, else the event's id."""
        if self._correlation_id is None:
            given = self.record.header("correlation-id")
            self._correlation_id = given.decode("utf-8", "replace") if given else self.id_text
        return self._correlation_id

    @property
    def operation_id(self) -> str:
        """The business operation that a repeat of this event is a repeat of: the event's id, unless a replay of it
        was asked to be another one.
        """
        return self.id_text if self._operation_id is None else self._operation_id

    def as_run(self, claimed_by: bytes | None, operation_id: str) -> Event[T]:
        """The same event in a forced or repaired run, which is claimed by an identity of its own; or as another
        operation.
        """
        if claimed_by is not None:
            self.event_id = claimed_by
        self._operation_id = operation_id
        return self

    def __repr__(self) -> str:
        return f"Event({self.type or '?'} {self.topic}/{self.partition}@{self.offset})"
