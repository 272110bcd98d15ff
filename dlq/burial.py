"""Burying an event: the failure row and the letter that commit together. No IO; time comes from the clock given.

The committed outbox row with its payload *is* the saved letter: what happens to the topic later loses nothing. A burial
that is repeated (the answer to the commit was lost, the record was delivered again) makes the same row and the same
letter, and the tables keep one of each.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final

from ..inbox import failure_rows
from ..inbox.audit import CORRELATIONS, EVENTS, LETTERS, AuditLine
from ..inbox.clock import Clock
from ..inbox.event import Event, Record
from ..inbox.failure import Put
from ..inbox.failure_rows import Failure, NewFailure, Place
from ..inbox.handlers import RESERVED
from ..inbox.outbox import NewOutgoing
from ..inbox.outcome import Dead
from ..inbox.safe_text import Detail
from .letter import (
    HELD,
    LETTER_BYTES_MAX,
    RELEASED,
    Letter,
    Victim,
    dead_letter_id,
    dead_letter_topic,
    write_letter,
)
from .letter_headers import COUNTED_MAX, REPLAYS, to_int, to_text

NO_LIMITS: Final[Mapping[str, int]] = MappingProxyType({})

WORKER: Final = "worker"
"""The actor of acts that no person ordered."""

SchemaIdOf = Callable[[Record], int | None]
"""The id of a value's schema, as its framing tells it."""


class Buried(NamedTuple):
    """What one burial writes."""

    row: NewFailure
    letter: NewOutgoing


def _no_schema_id(_: Record) -> int | None:
    return None


@final
class Burial:
    """Makes rows and letters for one consumer.

    Args:
        consumer: its name, which is also the group's and part of the letters' topic.
        clock: what time it is.
        limits: the largest letter that each dead-letter topic takes, by its name; LETTER_BYTES_MAX where not known.
        schema_id_of: given by the codec, where values carry the id of their schema.
    """

    def __init__(
        self,
        consumer: str,
        clock: Clock,
        limits: Mapping[str, int] = NO_LIMITS,
        schema_id_of: SchemaIdOf = _no_schema_id,
    ) -> None:
        self._consumer = consumer
        self._clock = clock
        self._limits = limits
        self._schema_id_of = schema_id_of

    def bury(
        self,
        place: Place,
        handler: str,
        event: Event[Any],
        dead: Dead,
        *,
        attempts: int = 1,
        first_failed_at: datetime.datetime | None = None,
        traceparent: str | None = None,
        alone: bool = False,
        holds: bool = False,
    ) -> Buried:
        """The row and the letter of an event that `handler` (its name) gave up; `holds`: its key waits for a person."""
        row = failure_rows.dead(
            place,
            event,
            dead,
            attempts=attempts,
            now=self._clock.now(),
            first_failed_at=first_failed_at,
            schema_id=self._schema_id_of(event.record),
            alone=alone,
            holds=holds,
            replay_count=replays_of(event.record),
        )
        return Buried(row, self._letter(row, event.record, handler, traceparent, row.replay_count))

    def reject(
        self, place: Place, record: Record, dead: Dead, *, tenant: str | None = None, brand: str | None = None
    ) -> Buried:
        """The row and the letter of a record that reached no handler: it is known by its position."""
        schema_id = self._schema_id_of(record)
        row = failure_rows.dead_record(
            place, record, dead, now=self._clock.now(), tenant=tenant, brand=brand, schema_id=schema_id,
            replay_count=replays_of(record),
        )  # fmt: skip
        return Buried(row, self._letter(row, record, RESERVED, None, row.replay_count))

    def letter_again(
        self,
        row: Failure,
        handler: str,
        dead: Dead,
        attempts: int,
        *,
        traceparent: str | None = None,
        holds: bool = False,
    ) -> NewOutgoing:
        """The letter of a row that was replayed and is dead once more: another letter, with another id."""
        fresh = failure_rows.dead(
            Place(row.handler, row.version, row.incarnation),
            _event_of(row),
            dead,
            attempts=attempts,
            now=self._clock.now(),
            first_failed_at=row.first_failed_at,
            schema_id=self._schema_id_of(row.record) if row.schema_id is None else row.schema_id,
            alone=row.alone,
            holds=holds,
        )
        letter = self._letter(fresh, row.record, handler, traceparent, row.replay_count)
        return replace(letter, failure_id=row.id)

    def audit_line(self, row: Failure, handler: str, act: str) -> AuditLine:
        """What the worker did to a row, for the audit: the row itself may be gone after it."""
        return AuditLine(
            act=act,
            actor=WORKER,
            consumer=self._consumer,
            handler=handler,
            failure_id=row.id,
            event_id=row.event_id,
            correlation_id=row.correlation_id,
            operation_id=row.operation_id,
            tenant=row.tenant,
            brand=row.brand,
            details={"reason": row.reason, "replay_count": row.replay_count, "attempts": row.attempts},
        )

    def audit_lines(self, rows: Sequence[Failure], handler: str, act: str) -> list[AuditLine]:
        """The same of many rows: those that have all in common but their events share a line, which names each of them.

        A line for each of a thousand rows would cost more than to handle them.
        """
        alike: dict[tuple[object, ...], list[Failure]] = {}
        for row in rows:
            common = (row.tenant, row.brand, row.reason, row.replay_count, row.attempts)
            alike.setdefault(common, []).append(row)
        return [self._shared_line(same, handler, act) for same in alike.values()]

    def _shared_line(self, rows: Sequence[Failure], handler: str, act: str) -> AuditLine:
        line = self.audit_line(rows[0], handler, act)
        if len(rows) == 1:
            return line
        named: dict[str, Detail] = {
            LETTERS: tuple([row.id for row in rows]),
            EVENTS: tuple([row.event_id.hex() for row in rows]),
            CORRELATIONS: tuple([row.correlation_id for row in rows]),
        }
        nobody = {"failure_id": None, "event_id": None, "correlation_id": "", "operation_id": ""}
        return replace(line, **nobody, details={**line.details, **named})

    def _letter(
        self, row: NewFailure, record: Record, handler: str, traceparent: str | None, replay_count: int
    ) -> NewOutgoing:
        victim = Victim(self._consumer, handler, row.version, row.event_id)
        letter_id = dead_letter_id(victim, record, row.incarnation, replay_count)
        letter = letter_of(row, record, self._consumer, handler, letter_id, replay_count)
        if traceparent is not None:
            letter = replace(letter, traceparent=traceparent)
        topic = dead_letter_topic(record.topic, self._consumer)
        written = write_letter(letter, self._limits.get(topic, LETTER_BYTES_MAX))
        return NewOutgoing(
            id=letter_id,
            kind="letter",
            topic=topic,
            key=written.key,
            payload=written.value,
            headers=written.headers,
            correlation_id=row.correlation_id,
            consumer=self._consumer,
            home=row.home,
        )


def replays_of(record: Record) -> int:
    """How often a record came back to its own topic by a replay: 0 for nearly every one.

    Anybody may write the header: all it does is to ask for `--force` sooner.
    """
    given = record.header(REPLAYS)
    count = None if given is None else to_int(to_text(given))
    return 0 if count is None else min(max(count, 0), COUNTED_MAX)


def letters_of(puts: Sequence[Put], buried: Sequence[Buried]) -> list[NewOutgoing]:
    """The letters to put into the outbox after the rows were put: each names its row.

    A row that stood there already (a redelivery after the burial) has its letter, and gets no second one.
    """
    pairs = zip(puts, buried, strict=True)
    return [replace(letter, failure_id=put.id) for put, (_, letter) in pairs if put.created]


def letter_of(
    row: NewFailure | Failure, record: Record, consumer: str, handler: str, letter_id: bytes, replay_count: int
) -> Letter:
    """A failure row as the letter that tells of it."""
    reason, message, exception_type, stack_digest = _verdict(row)
    return Letter(
        key=record.key,
        value=record.value,
        headers=record.headers,
        dead_letter_id=letter_id.hex(),
        reason=reason,
        disposition=HELD if row.holds and not row.alone else RELEASED,
        exception_type=exception_type or None,
        exception_message=message or None,
        stack_digest=stack_digest or None,
        event_id=row.id_text,
        correlation_id=row.correlation_id,
        causation_id=row.id_text,
        operation_id=row.operation_id,
        traceparent=_traceparent(record),
        tenant=row.tenant,
        brand=row.brand,
        consumer=consumer,
        handler=handler,
        handler_version=row.version,
        attempts=row.attempts,
        first_failed_at=row.first_failed_at,
        last_failed_at=row.last_failed_at,
        origin_topic=row.topic,
        origin_incarnation=row.incarnation,
        origin_partition=row.partition,
        origin_offset=row.record_offset,
        origin_timestamp_ms=row.timestamp_ms,
        origin_timestamp_type=row.timestamp_type,
        schema_id=row.schema_id,
        replay_count=replay_count,
    )


def _traceparent(record: Record) -> str | None:
    """The trace that the record came in, where it is one. Source: W3C Trace Context, "traceparent"."""
    value = record.header("traceparent")
    return value.decode("ascii") if value is not None and _TRACEPARENT.fullmatch(value) else None


_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def _verdict(row: NewFailure | Failure) -> tuple[str, str, str, str]:
    if isinstance(row, NewFailure):
        return row.verdict
    return row.reason, row.message, row.exception_type, row.stack_digest


def _event_of(row: Failure) -> Event[None]:
    """As much of the event as a row needs; its value is not decoded, a letter moves bytes."""
    return Event(
        None,
        row.record,
        type=row.type,
        event_id=row.event_id,
        id_text=row.id_text,
        payload_hash=row.payload_hash8,
        tenant=row.tenant,
        brand=row.brand,
        correlation_id=row.correlation_id,
    )
