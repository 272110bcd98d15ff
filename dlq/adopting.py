"""Letters out of a dead-letter topic: which of them are whose, and what stands against putting them back. No IO.

Where a letter goes is told by configuration alone: the consumer, the topic that its letters come from, the handlers
that the app has. What a letter's headers say must agree with that, and never chooses anything else, because whoever
can write to the topic can write them. Names are literal. The event is made of the record's own bytes and headers, as
the consumer declares it, so its identity is the one that it had; what is no event any more stays in the topic.

Whose a letter is, is told before anything else of it, by the headers that the consumer declares for tenant and brand:
what is refused is counted within the asker's reach only.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

from ..inbox.errors import RecordError
from ..inbox.event import Event, Record
from ..inbox.failure_rows import NewFailure, Verdict, queued
from ..inbox.failure_rows import Place as RowPlace
from ..inbox.handlers import RESERVED
from .foreign import LetterFormat
from .letter import Letter, read_letter
from .reach import Place
from .replay_order import (
    REPLAYS_MAX,
    Left,
    Obstacle,
    Order,
    tenant_obstacle,
    too_often,
    version_obstacle,
)
from .selection import Filter

MakeEvent = Callable[[Record], Event[Any]]
"""The consumer's own intake. Raises RecordError."""

ScopeOf = Callable[[Record], tuple[str | None, str | None]]
"""Tenant and brand of a record, by the headers that the consumer declares for them."""

ADOPTED = "adopted"
"""The reason of a row whose letter does not say one."""


class Handler(NamedTuple):
    """A handler that the app has."""

    id: int
    version: int
    alone: bool
    """Its rows wait for no other of their key."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whose letters the topic holds, by configuration: a consumer, the topic it reads, and the handlers it has.

    `handler` is the one that was named; letters of others are not meant, and those that name none are for it.
    """

    consumer: str
    source: str
    partitions: int
    incarnation: int
    handlers: Mapping[str, Handler]
    scope_of: ScopeOf
    handler: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A letter that may be put back, as far as itself tells."""

    letter: Letter
    event: Event[Any]
    handler_name: str
    handler: Handler
    reference: str
    place: Place

    def row(self, now: datetime.datetime, due: datetime.datetime) -> NewFailure:
        """Its row: due at once, at home in the source's partition."""
        letter, record = self.letter, self.event.record
        place = RowPlace(self.handler.id, self.handler.version, letter.origin_incarnation or 0)
        words = (letter.exception_message or "", letter.exception_type or "", letter.stack_digest or "")
        verdict = Verdict(letter.reason or ADOPTED, *words)
        row = queued(
            place, self.event, verdict, due=due, attempts=letter.attempts or 0, now=now,
            alone=self.handler.alone or record.key is None,
        )  # fmt: skip
        return replace(row, origin="letter", replay_count=(letter.replay_count or 0) + 1)


class Passed(NamedTuple):
    """A letter that is not put back, and where it is: elsewhere nobody hears of it."""

    reference: str
    obstacle: Obstacle
    place: Place


def judge(record: Record, target: Target, order: Order, make: MakeEvent) -> Candidate | Passed | None:
    """What the letter in `record` is; None: the order does not mean it."""
    letter = read_letter(record)
    reference = f"{record.topic}/{record.partition}@{record.offset}"
    if not _is_meant(letter, order.filter or Filter(), target):
        return None
    name, received = _handler_of(letter, target), _record_of(letter, record, target)
    place = _place_of(letter, received, name, target)
    if (obstacle := _obstacle_of(letter, name, target, order)) is not None:
        return Passed(reference, obstacle, place)
    try:
        event = make(received)
    except RecordError as error:
        return Passed(reference, Obstacle(f"it is no event: {error.reason.value}"), place)
    if (other := tenant_obstacle(event.tenant, order)) is not None:
        return Passed(reference, other, place)
    if not _event_is_meant(event, order.filter or Filter()):
        return None
    return Candidate(letter, event, name, target.handlers[name], reference, place)


def _place_of(letter: Letter, received: Record, name: str, target: Target) -> Place:
    """A claim letter without the record's headers has ours only."""
    is_whole = "headers" not in (letter.left_out or ())
    tenant, brand = target.scope_of(received) if is_whole else (letter.tenant, letter.brand)
    return Place(target.consumer, name, tenant, brand)


def _obstacle_of(letter: Letter, name: str, target: Target, order: Order) -> Obstacle | None:
    if (obstacle := _not_ours(letter, target)) is not None:
        return obstacle
    if name not in target.handlers:
        return Obstacle("it is of a handler that the app does not have")
    if version_obstacle(target.consumer, name, letter.handler_version or 0, order) is not None:
        return LATER
    if (letter.replay_count or 0) >= REPLAYS_MAX and not order.force:
        return too_often(letter.replay_count or 0)
    return None


def _not_ours(letter: Letter, target: Target) -> Obstacle | None:
    if letter.origin_topic is not None and letter.origin_topic != target.source:
        return Obstacle("its header names another topic than the one whose letters these are")
    if letter.format is LetterFormat.TIDEGATE and letter.consumer != target.consumer:
        return Obstacle("its header names another consumer")
    if letter.left_out:
        return Obstacle("a part of it was too large for the topic and stayed in the inbox")
    return None


def _handler_of(letter: Letter, target: Target) -> str:
    """Ours say it; what others wrote is for the handler that was named, or for all that take its type."""
    if letter.format is LetterFormat.TIDEGATE:
        return letter.handler or RESERVED
    return target.handler or RESERVED


def _record_of(letter: Letter, record: Record, target: Target) -> Record:
    """The record as it was received: at the place that the letter tells, where the source has such a partition."""
    partition, offset = letter.origin_partition, letter.origin_offset
    if partition is None or offset is None or partition >= target.partitions:
        partition, offset = record.partition % target.partitions, record.offset
    timestamp_ms, kind = letter.origin_timestamp_ms, letter.origin_timestamp_type
    if timestamp_ms is None or kind is None:
        timestamp_ms, kind = record.timestamp_ms, record.timestamp_type
    return Record(target.source, partition, offset, letter.key, letter.value, letter.headers, timestamp_ms, kind)


def _is_meant(letter: Letter, wanted: Filter, target: Target) -> bool:
    """What the letter's own words are filtered by."""
    ours = letter.format is LetterFormat.TIDEGATE
    if ours and target.handler is not None and letter.handler != target.handler:
        return False
    if wanted.key is not None and letter.key != wanted.key:
        return False
    if wanted.header is not None and wanted.header not in letter.headers:
        return False
    said = [
        (wanted.reason, letter.reason),
        (wanted.exception_type, letter.exception_type),
        (wanted.correlation_id, letter.correlation_id),
        (wanted.operation_id, letter.operation_id),
    ]
    if any(asked is not None and asked != told for asked, told in said):
        return False
    return _is_within(letter.last_failed_at, wanted.since, wanted.until)


def _is_within(at: datetime.datetime | None, since: datetime.datetime | None, until: datetime.datetime | None) -> bool:
    if since is None and until is None:
        return True
    return at is not None and (since is None or at >= since) and (until is None or at < until)


def _event_is_meant(event: Event[Any], wanted: Filter) -> bool:
    if wanted.event_id is not None and wanted.event_id != event.id_text:
        return False
    return wanted.brand is None or wanted.brand == event.brand


LATER: Obstacle = Obstacle("it is of a later version of its handler than this app has: use the newer release")
"""Without the number: anybody may have written it, and each other one would be a cause of its own in the journal."""

STANDS: Obstacle = Obstacle("it stands in the inbox: replay it there", Left.SKIPPED)
TOO_OLD: Obstacle = Obstacle(
    "it is older than what the inbox remembers: force it (--force), if you know that it was not handled"
)
