"""What a backfill does with each record of its window, and what became of it: decided here, carried out elsewhere.
No IO.

What the inbox knew before a chunk was opened is noted, so that these decisions come out the same when the chunk is
handled once more after a kill.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from ...inbox.backfills import Counts
from ...inbox.claim import ClaimKey, FailureFound, Probe
from ...inbox.event import TIMESTAMP_NOT_AVAILABLE, Event, Partition, Record
from ...inbox.outcome import FailureState, Reason
from ...projections.projection import Projection
from ..client.ports import Rejected, Taken
from ..routing import class_of
from .order import Bounds, Frame


class Cause(enum.StrEnum):
    """Why a record was not handled. Its value is its name in the journal."""

    NOT_FOR_HANDLER = "not_for_handler"
    OUTSIDE_WINDOW = "outside_window"
    OTHER_TENANT = "other_tenant"
    HANDLED_BEFORE = "handled_before"
    IN_INBOX = "in_inbox"
    """It waits there, is dead, or waits for a person: that is its place, and `tidegate dlq` is for it."""
    DISCARDED = "discarded"
    REPEAT = "repeat"
    TOO_OLD = "too_old"
    AFTER_RESTORE = "after_restore"
    QUEUED = "queued"
    DEAD = "dead"
    UNKNOWN = "unknown"
    UNREADABLE = "unreadable"
    RETENTION = "retention"


SKIPPED = frozenset(
    {Cause.NOT_FOR_HANDLER, Cause.OUTSIDE_WINDOW, Cause.OTHER_TENANT, Cause.HANDLED_BEFORE, Cause.IN_INBOX,
     Cause.DISCARDED, Cause.REPEAT}
)  # fmt: skip
REFUSED = frozenset({Cause.TOO_OLD, Cause.AFTER_RESTORE})

_STATES = {
    FailureState.QUEUED: Cause.QUEUED,
    FailureState.DEAD: Cause.DEAD,
    FailureState.UNKNOWN: Cause.UNKNOWN,
    FailureState.DISCARDED: Cause.DISCARDED,
    FailureState.LINKED: Cause.REPEAT,
}
"""What a row at an event's own position says of it."""


@final
@dataclass(slots=True)
class Tally:
    """Counts as they grow."""

    handled: int = 0
    causes: Counter[Cause] = field(default_factory=Counter[Cause])

    def counts(self) -> Counts:
        """As the journal takes them."""
        skipped = sum(n for cause, n in self.causes.items() if cause in SKIPPED)
        refused = sum(n for cause, n in self.causes.items() if cause in REFUSED)
        failed = self.causes.total() - skipped - refused
        return Counts(self.handled, skipped, refused, failed, {cause.value: n for cause, n in self.causes.items()})


@final
@dataclass(frozen=True, slots=True)
class Target:
    """Whose events these are: `projection` is None for a command.

    `live` is the live version's key where this one is a run beside it. The run does not ask for its claims, and what is
    dead for it may well be alive here; but what a person discarded is wanted by nobody.
    """

    name: str
    handler_id: int
    version: int
    projection: Projection | None
    live: tuple[int, int] | None = None

    @property
    def key(self) -> tuple[int, int]:
        """(handler id, version): whose claims they are."""
        return (self.handler_id, self.version)

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Those that the inbox is asked for."""
        return [self.key] if self.live is None else [self.key, self.live]

    def events_of(self, taken: Taken) -> list[Event[Any]]:
        """Those of its types."""
        projection = self.projection
        if projection is None:
            return [taken.events[index] for index in taken.lanes.get(self.name, ())]
        return [e for e in taken.events if e.is_tombstone or projection.accepts(e.type, class_of(e.value))]


TenantOf = Callable[[Record], str | None]
"""Whose a record is, by the header that is declared to say it."""


@final
@dataclass(slots=True)
class Sifted:
    """A chunk's records: the handler's events, those that no handler can be given, and how many are neither."""

    events: list[Event[Any]]
    rejects: list[Rejected]
    left: Counter[Cause]


def sift(records: Sequence[Record], taken: Taken, target: Target, frame: Frame, tenant_of: TenantOf) -> Sifted:
    """What of these records (`taken` is what the intake made of them) the handler has to see."""
    inside = {record.offset for record in records if _is_inside(record, frame)}
    events = [event for event in target.events_of(taken) if event.offset in inside]
    mine = [event for event in events if frame.tenant in (None, event.tenant)]
    unreadable = [r for r in taken.rejects if r.reason is not Reason.UNMATCHED and r.record.offset in inside]
    rejects = [r for r in unreadable if frame.tenant in (None, tenant_of(r.record))]
    left = Counter({Cause.OTHER_TENANT: len(events) - len(mine) + len(unreadable) - len(rejects)})
    left[Cause.OUTSIDE_WINDOW] = len(records) - len(inside)
    left[Cause.NOT_FOR_HANDLER] = len(records) - len(mine) - len(rejects) - left.total()
    return Sifted(mine, rejects, +left)


def _is_inside(record: Record, frame: Frame) -> bool:
    """A record without a time counts: the offsets around it are those of the window."""
    no_time = record.timestamp_type == TIMESTAMP_NOT_AVAILABLE
    return no_time or frame.since_ms <= record.timestamp_ms < frame.until_ms


def known_before(events: Iterable[Event[Any]], known: Probe, target: Target) -> set[int]:
    """Offsets of those that were handled, or stand in the failure table, with these very bytes.

    Other bytes under a known id are a conflict, which goes the way of any.
    """
    offsets: set[int] = set()
    for event in events:
        claim_key = ClaimKey(*target.key, event.event_id)
        rows = known.failures.get(claim_key, ())
        same = any(row.payload_hash == event.payload_hash for row in rows)
        here = _at(event, rows) or _discarded(event, known, target)
        if same or known.claims.get(claim_key) == event.payload_hash or here is not None:
            offsets.add(event.offset)
    return offsets


@final
@dataclass(slots=True)
class Plan:
    """What becomes of a chunk's events: `fresh` are to be handled, the others are known, refused, or repeats."""

    fresh: list[Event[Any]]
    known: list[Event[Any]]
    causes: Counter[Cause]


def plan(events: Iterable[Event[Any]], known: Collection[int], bounds: Bounds, *, force: bool) -> Plan:
    """Sort a partition's events, in their order, by the offsets that were `known` before."""
    made = Plan([], [], Counter())
    seen: set[tuple[bytes, int]] = set()
    for event in events:
        place = Partition(event.topic, event.partition)
        if event.offset in known:
            made.known.append(event)
        elif not force and event.offset < bounds.births.get(place, 0):
            made.causes[Cause.TOO_OLD] += 1
        elif not force and event.offset < bounds.restored.get(place, 0):
            made.causes[Cause.AFTER_RESTORE] += 1
        elif (event.event_id, event.payload_hash) in seen:
            made.causes[Cause.REPEAT] += 1
        else:
            seen.add((event.event_id, event.payload_hash))
            made.fresh.append(event)
    return made


def outcome(made: Plan, now: Probe, target: Target) -> tuple[Tally, list[Event[Any]]]:
    """What became of them by what the inbox says now; and those that are not done at all."""
    tally, undone = Tally(causes=Counter(made.causes)), list[Event[Any]]()
    for event in made.known:
        rows = now.failures.get(ClaimKey(*target.key, event.event_id), ())
        discarded = _discarded(event, now, target)
        tally.causes[_why_known(rows if discarded is None else (*rows, discarded))] += 1
    for event in made.fresh:
        claim_key = ClaimKey(*target.key, event.event_id)
        row = _at(event, now.failures.get(claim_key, ()))
        if row is not None:
            tally.causes[_STATES[row.state]] += 1
        elif claim_key in now.claims:
            tally.handled += 1
        else:
            undone.append(event)
    return tally, undone


def _why_known(rows: Sequence[FailureFound]) -> Cause:
    if not rows:
        return Cause.HANDLED_BEFORE
    return Cause.DISCARDED if all(row.state is FailureState.DISCARDED for row in rows) else Cause.IN_INBOX


def _discarded(event: Event[Any], known: Probe, target: Target) -> FailureFound | None:
    """The live version's row of this very record, where a person discarded it."""
    if target.live is None:
        return None
    row = _at(event, known.failures.get(ClaimKey(*target.live, event.event_id), ()))
    return row if row is not None and row.state is FailureState.DISCARDED else None


def _at(event: Event[Any], rows: Sequence[FailureFound]) -> FailureFound | None:
    place = (event.topic, event.partition, event.offset)
    return next((row for row in rows if (*row.partition, row.offset) == place), None)
