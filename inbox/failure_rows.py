"""Failure rows as values: what is to be written, and what was read. No IO; time is an argument."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from .columns import ID_TEXT_CHARS_MAX, INDEXED_TEXT_CHARS_MAX, NAME_CHARS_MAX
from .event import Event, Headers, Partition, Record
from .identity import key_hash16, payload_hash8, position_id16
from .outcome import Dead, FailureState, Reason
from .record_bytes import decode_headers, encode_headers
from .safe_text import safe_text


class Place(NamedTuple):
    """For whom a record failed: the handler, its version, and the incarnation of the record's topic."""

    handler_id: int
    version: int
    incarnation: int


class Verdict(NamedTuple):
    """Why a row is where it is. Texts are made safe and bounded here."""

    reason: str
    message: str = ""
    exception_type: str = ""
    stack_digest: str = ""

    @classmethod
    def of(cls, dead: Dead) -> Verdict:
        """The verdict on a dead event."""
        return cls(dead.reason, dead.why, dead.exception_type, dead.stack_digest).safe()

    def safe(self) -> Verdict:
        """The same in text that the database can hold."""
        return Verdict(
            safe_text(self.reason, NAME_CHARS_MAX),
            safe_text(self.message),
            safe_text(self.exception_type, NAME_CHARS_MAX),
            safe_text(self.stack_digest, NAME_CHARS_MAX),
        )


@final
@dataclass(slots=True, kw_only=True)
class NewFailure:
    """A row to be put; made by `dead`, `dead_record`, `queued`, `unknown` and `linked`, so that it is a legal one.

    `lane_key` is the record's key where the row stands in its lane; None where it is `alone`, in a lane of its own.
    `holds`: a dead row behind which its lane waits. Nobody changes one; it is not frozen, because that makes it four
    times as slow to make.
    """

    handler: int
    version: int
    topic: str
    incarnation: int
    partition: int
    record_offset: int
    event_id: bytes
    payload_hash8: int
    lane: bytes
    lane_key: bytes | None
    holds: bool = False
    state: FailureState
    due: datetime.datetime | None = None
    duplicate_of: int | None = None
    verdict: Verdict
    attempts: int
    class_attempts: int = 0
    retrying_since: datetime.datetime | None = None
    effect_id: int | None = None
    first_failed_at: datetime.datetime
    last_failed_at: datetime.datetime
    id_text: str
    type: str = ""
    tenant: str | None = None
    brand: str | None = None
    correlation_id: str
    operation_id: str
    schema_id: int | None = None
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int
    origin: str = "event"
    """`letter` where it was put back out of a dead-letter topic: then its event id is unique, not its position."""
    replay_count: int = 0

    @property
    def position(self) -> tuple[int, int, str, int, int, int]:
        """What is unique: a redelivery of the same position finds its row."""
        return (self.handler, self.version, self.topic, self.incarnation, self.partition, self.record_offset)

    @property
    def home(self) -> Partition:
        """Whoever holds this partition's fence works the row."""
        return Partition(self.topic, self.partition)

    @property
    def alone(self) -> bool:
        """It waits for no other, and no other for it."""
        return self.lane_key is None

    @property
    def waits(self) -> bool:
        """It holds its lane: queued, unknown, or dead where the dead do."""
        return self.state in {FailureState.QUEUED, FailureState.UNKNOWN} or self.holds


def dead(
    place: Place,
    event: Event[Any],
    verdict: Dead,
    *,
    attempts: int,
    now: datetime.datetime,
    first_failed_at: datetime.datetime | None = None,
    schema_id: int | None = None,
    alone: bool = False,
    holds: bool = False,
    replay_count: int = 0,
) -> NewFailure:
    """An event that no retry helps. `holds`: its key waits until a person has decided."""
    return _of_event(
        place, event, Verdict.of(verdict), attempts, now,
        alone=alone, state=FailureState.DEAD, first_failed_at=first_failed_at,
        schema_id=schema_id, holds=holds, replay_count=replay_count,
    )  # fmt: skip


def dead_record(
    place: Place,
    record: Record,
    verdict: Dead,
    *,
    now: datetime.datetime,
    id_text: str = "",
    type: str = "",
    tenant: str | None = None,
    brand: str | None = None,
    schema_id: int | None = None,
    alone: bool = False,
    replay_count: int = 0,
) -> NewFailure:
    """A record that never became an event (undecodable, unmatched, without an id): known by its position."""
    event_id = position_id16(record.topic, place.incarnation, record.partition, record.offset)
    event: Event[None] = Event(
        None,
        record,
        type=type,
        event_id=event_id,
        id_text=id_text or f"{record.topic}/{record.partition}@{record.offset}",
        payload_hash=payload_hash8(record.value),
        tenant=tenant,
        brand=brand,
    )
    return dead(place, event, verdict, attempts=1, now=now, schema_id=schema_id, alone=alone, replay_count=replay_count)


def queued(
    place: Place,
    event: Event[Any],
    verdict: Verdict,
    *,
    due: datetime.datetime,
    attempts: int,
    now: datetime.datetime,
    alone: bool = False,
    class_attempts: int = 0,
    retrying_since: datetime.datetime | None = None,
    effect_id: int | None = None,
) -> NewFailure:
    """An event that is tried again, not before `due`, or waits behind earlier ones of its key.

    `class_attempts` of its `attempts` ended with one class of exception, the first of them at `retrying_since`.
    `effect_id` is the call that it waits for.
    """
    return _of_event(
        place, event, verdict.safe(), attempts, now,
        alone=alone, state=FailureState.QUEUED, due=due,
        class_attempts=class_attempts, retrying_since=retrying_since, effect_id=effect_id,
    )  # fmt: skip


def unknown(
    place: Place,
    event: Event[Any],
    verdict: Verdict,
    *,
    attempts: int,
    now: datetime.datetime,
    alone: bool = False,
    effect_id: int | None = None,
) -> NewFailure:
    """An event whose outcome a person decides; `effect_id` is the call of which nobody knows."""
    return _of_event(
        place, event, verdict.safe(), attempts, now, alone=alone, state=FailureState.UNKNOWN, effect_id=effect_id
    )


def linked(place: Place, event: Event[Any], original_id: int, *, now: datetime.datetime) -> NewFailure:
    """The same event at another position while its first one has a failure row: not run, ends with that one.

    It waits for its original and stands in no lane.
    """
    return _of_event(
        place, event, Verdict("duplicate"), 0, now, alone=True, state=FailureState.LINKED, duplicate_of=original_id
    )


def _of_event(
    place: Place,
    event: Event[Any],
    verdict: Verdict,
    attempts: int,
    now: datetime.datetime,
    *,
    alone: bool,
    state: FailureState,
    first_failed_at: datetime.datetime | None = None,
    **more: Any,
) -> NewFailure:
    record = event.record
    lane_key = None if alone else record.key
    if lane_key is None:
        lane = position_id16(record.topic, place.incarnation, record.partition, record.offset)
    else:
        lane = key_hash16(lane_key)
    return NewFailure(
        handler=place.handler_id,
        version=place.version,
        topic=record.topic,
        incarnation=place.incarnation,
        partition=record.partition,
        record_offset=record.offset,
        event_id=event.event_id,
        payload_hash8=event.payload_hash,
        lane=lane,
        lane_key=lane_key,
        state=state,
        verdict=verdict,
        attempts=attempts,
        first_failed_at=first_failed_at or now,
        last_failed_at=now,
        id_text=safe_text(event.id_text, ID_TEXT_CHARS_MAX),
        type=safe_text(event.type, NAME_CHARS_MAX),
        tenant=_optional(event.tenant),
        brand=_optional(event.brand),
        correlation_id=indexed_text(event.correlation_id),
        operation_id=indexed_text(event.operation_id),
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        timestamp_type=record.timestamp_type,
        **more,
    )


def indexed_text(text: str) -> str:
    """Text as it stands in an index: look-ups must pass through here too."""
    return safe_text(text, INDEXED_TEXT_CHARS_MAX)


def _optional(text: str | None) -> str | None:
    return None if text is None else safe_text(text, NAME_CHARS_MAX)


@final
class Failure(NamedTuple):
    """A row as it was read. `row_version` goes back with whatever is done to it.

    A tuple, because thousands are read at once: to make one takes a tenth of what a dataclass takes.
    """

    id: int
    state: FailureState
    handler: int
    version: int
    topic: str
    incarnation: int
    partition: int
    record_offset: int
    home_topic: str
    home_partition: int
    event_id: bytes
    payload_hash8: int
    lane: bytes
    seq: int
    reason: str
    due: datetime.datetime | None
    duplicate_of: int | None
    attempts: int
    replay_count: int
    row_version: int
    first_failed_at: datetime.datetime
    last_failed_at: datetime.datetime
    exception_type: str
    message: str
    stack_digest: str
    id_text: str
    type: str
    tenant: str | None
    brand: str | None
    correlation_id: str
    operation_id: str
    schema_id: int | None
    key: bytes | None
    value: bytes | None
    headers: bytes
    timestamp_ms: int
    timestamp_type: int
    alone: bool = False
    holds: bool = False
    class_attempts: int = 0
    retrying_since: datetime.datetime | None = None
    effect_id: int | None = None
    edited_value: bytes | None = None
    """What a person repaired `value` to; it is handled in its place."""
    edit_id: bytes | None = None
    """16 bytes: which repair."""
    redacted_at: datetime.datetime | None = None
    origin: str = "event"
    attempt_id: bytes | None = None
    """16 bytes: what is claimed for a forced or repaired run, where the event's own id may be claimed already."""

    @property
    def home(self) -> Partition:
        """The partition whose owner works the row, as it was when it was written."""
        return Partition(self.home_topic, self.home_partition)

    @property
    def record(self) -> Record:
        """The record as it was received, byte for byte."""
        return self._record(self.value)

    def _record(self, value: bytes | None) -> Record:
        return Record(
            self.topic,
            self.partition,
            self.record_offset,
            self.key,
            value,
            decode_headers(self.headers),
            self.timestamp_ms,
            self.timestamp_type,
        )

    @property
    def repaired(self) -> Record:
        """The record as it is handled: with the repaired value, where there is one."""
        return self._record(self.value if self.edited_value is None else self.edited_value)

    @property
    def dead_reason(self) -> Reason | None:
        """The reason as a word of the dead letters' vocabulary; None where it is none of them."""
        try:
            return Reason(self.reason)
        except ValueError:
            return None


def headers_bytes(row: NewFailure) -> bytes:
    """The row's headers as they are stored."""
    return encode_headers(row.headers)
