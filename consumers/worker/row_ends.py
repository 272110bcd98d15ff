"""How rows of the slow way end: claimed and gone, or staying as what became of them. Steps of one transaction each.

Several rows may end in one: of one handler, and of any number of homes. Who holds them is asked first (step 1), then
their lanes are locked (2), the generations (3), claims (4), the user's tables (5, the caller's), then the rows go (6),
and what became of them stands in the audit (7). A row whose home is somebody else's by now leaves, the rest commits.

A forced or repaired run is claimed by an identity of its own; with it the event's own id is claimed, with the hash of
the bytes as received, so that no later delivery of the event runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.burial import Burial
from ...dlq.fates import ForReview, Later
from ...dlq.policy import FailurePolicy
from ...dlq.replay_journal import REPEATED
from ...dlq.reporting import RECORD, report_dead, report_done, report_done_many, report_parked, report_unknown
from ...inbox import audit, claim, effects, failure, fence, outbox
from ...inbox.audit import AuditLine
from ...inbox.clock import Clock
from ...inbox.errors import OwnershipLost
from ...inbox.event import Event
from ...inbox.failure_rows import Failure, Verdict
from ...inbox.holding import Holding
from ...inbox.lanes import Locked
from ...inbox.meter import Meter
from ...inbox.outcome import Dead, FinalStatus
from ...inbox.points import Point, Writes, reach
from ...inbox.store import Store
from .completion import Fate, in_doubt_fate

COMPLETED: Final = "completed"
"""The audit's word for rows that were handled."""


class ConflictMet(Exception):
    """The event's id was claimed by a record with other bytes while its row waited."""


@final
@dataclass(slots=True, eq=False)
class Taken:
    """A row that was taken up, with its home's holding, its event and the (handler id, version) that claims it."""

    row: Failure
    holding: Holding
    event: Event[Any]
    key: tuple[int, int]


class Opened(NamedTuple):
    """Rows that are ours, and the lanes that were locked with them."""

    ours: list[Taken]
    locked: Locked


@final
@dataclass(slots=True)
class Claims:
    """What the claims of one handler's rows came to."""

    mine: list[Taken] = field(default_factory=list[Taken])
    repeats: list[Taken] = field(default_factory=list[Taken])
    """Their event was handled already."""
    conflicts: list[Taken] = field(default_factory=list[Taken])
    """Their id was claimed with other bytes."""
    later: list[Taken] = field(default_factory=list[Taken])
    """Their id is another row's of the same transaction."""


@final
class RowEnds:
    """The steps, for the rows of one consumer. Owned by the event loop."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        names: Mapping[int, str],
        policy_of: Callable[[int], FailurePolicy],
        burial: Burial,
        meter: Meter,
        clock: Clock,
        wrote_outbox: Callable[[], None],
    ) -> None:
        self._store = store
        self._tables = store.tables
        self._consumer = consumer
        self._names = names
        self._policy_of = policy_of
        self._burial = burial
        self._meter = meter
        self._clock = clock
        self._wrote_outbox = wrote_outbox

    # ------------------------------------------------------------------------------------------------ several at once

    async def open(self, conn: AsyncConnection, taken: Sequence[Taken]) -> Opened:
        """Steps 1 to 3: those of the rows that are ours. Raises OwnershipLost where none is."""
        held = await self._held(conn, {one.holding.partition: one.holding.fence_epoch for one in taken})
        ours = [one for one in taken if one.holding.partition in held]
        in_lanes = [(one.row.id, one.row.row_version) for one in ours if not one.row.alone]
        locked = await failure.lock_lanes(conn, self._tables, in_lanes)
        await claim.lock_generations(conn, self._tables)
        return Opened(ours, locked)

    async def claim(self, conn: AsyncConnection, taken: Sequence[Taken]) -> Claims:
        """Step 4, of rows with one key."""
        first: dict[bytes, Taken] = {}
        claims = Claims()
        for one in taken:
            if first.setdefault(one.event.event_id, one) is not one:
                claims.later.append(one)
        ids = {event_id: one.event.payload_hash for event_id, one in first.items()}
        own = {one.row.event_id: one.row.payload_hash8 for one in first.values() if one.row.attempt_id is not None}
        every = sorted({**own, **ids}.items())
        found = await claim.claim(conn, self._tables, *taken[0].key, every, optimistic=len(every) >= COPIED_MIN)
        reach(Point.CLAIMED, self._names[taken[0].key[0]])
        if found.new is None:
            claims.mine += first.values()
            return claims
        for event_id, one in first.items():
            if event_id in found.new:
                claims.mine.append(one)
            elif found.taken.get(event_id, one.event.payload_hash) == one.event.payload_hash:
                claims.repeats.append(one)
            else:
                claims.conflicts.append(one)
        return claims

    async def complete(
        self,
        conn: AsyncConnection,
        mine: Sequence[Taken],
        repeats: Sequence[Taken] = (),
        locked: Locked | None = None,
    ) -> None:
        """Steps 6 and 7: the rows are gone, what became of them stands in the audit. `locked`: as `open` told."""
        rows = [(one.row.id, one.row.row_version) for one in (*mine, *repeats)]
        gone = await failure.complete(conn, self._tables, rows, locked)
        line, lines = self._burial.audit_line, list[AuditLine]()
        for handler, same in groupby(mine, key=lambda one: one.row.handler):
            ended = [one.row for one in same if one.row.id in gone]
            lines += self._burial.audit_lines(ended, self._names[handler], COMPLETED)
        lines += [line(one.row, self._names[one.row.handler], REPEATED) for one in repeats if one.row.id in gone]
        changed = [one.row for one in (*mine, *repeats) if one.row.id not in gone]
        lines += [line(row, self._names[row.handler], "completed_though_changed") for row in changed]
        await audit.write_many(conn, self._tables, lines)

    def done(
        self, taken: Sequence[Taken], kind: str, started_s: float, status: FinalStatus = FinalStatus.COMPLETED
    ) -> None:
        """Rows of one handler came to their end."""
        if not taken:
            return
        name, duration_s = self._names[taken[0].row.handler], self._clock.monotonic_s() - started_s
        if status is FinalStatus.SKIPPED:
            self._meter.skipped(name, len(taken))
        else:
            self._meter.handled(name, len(taken), duration_s)
        if len(taken) == 1:
            report_done(taken[0].event, name, kind, status, duration_s)
        else:  # a line for each would cost as much as all else; the audit has one for each
            report_done_many([one.event for one in taken], name, kind, status, duration_s)
        self._wrote_outbox()

    def repeated(self, taken: Sequence[Taken]) -> None:
        """So many of one handler's were repeats."""
        if taken:
            self._meter.duplicates(self._names[taken[0].row.handler], len(taken))

    def name_of(self, taken: Sequence[Taken]) -> str:
        """The handler of these rows; nothing where there are several."""
        handlers = {one.row.handler for one in taken}
        return self._names[handlers.pop()] if len(handlers) == 1 else ""

    # --------------------------------------------------------------------------------------------------------- one row

    async def hold(self, conn: AsyncConnection, holding: Holding) -> None:
        """Step 1. Raises OwnershipLost."""
        await self._held(conn, {holding.partition: holding.fence_epoch})

    async def _held(self, conn: AsyncConnection, fences: Mapping[Any, int]) -> frozenset[Any]:
        held = await fence.hold(conn, self._tables, self._consumer, fences)
        if not held:
            raise OwnershipLost(f"{next(iter(fences), 'nothing')} is held by somebody else")
        return frozenset(held)

    async def claim_one(self, conn: AsyncConnection, one: Taken) -> bool:
        """Step 4: True where the event is ours to handle, False for a repeat. Raises ConflictMet."""
        claims = await self.claim(conn, [one])
        if claims.conflicts:
            raise ConflictMet
        self.repeated(claims.repeats)
        return bool(claims.mine)

    async def complete_one(self, conn: AsyncConnection, one: Taken, *, repeat: bool = False) -> None:
        """Steps 6 and 7."""
        await (self.complete(conn, [], [one]) if repeat else self.complete(conn, [one]))

    async def claim_received(self, conn: AsyncConnection, one: Taken) -> None:
        """Step 4, of what was claimed under another identity: the event's own id too."""
        if one.row.attempt_id is not None:
            own = [(one.row.event_id, one.row.payload_hash8)]
            await claim.claim(conn, self._tables, *one.key, own, optimistic=False)

    async def end_as(self, row: Failure, holding: Holding, fate: Fate, attempts: int) -> None:
        """The row stays, as what became of it: dead once more, for a person to decide, or queued until it is due.

        It is not dead while nobody knows the end of the call that it names.
        """
        name = self._names[row.handler]
        async with self._store.transaction(Writes.VERDICT, name) as conn:
            await self.hold(conn, holding)
            await failure.lock_lanes(conn, self._tables, [(row.id, row.row_version)])
            if row.effect_id is not None:  # earlier attempts left it in doubt
                fate = in_doubt_fate(fate, await effects.first_open(conn, self._tables, [row.effect_id]), attempts)
            changed = await self._change(conn, row, name, fate, attempts)
        if changed:
            self._tell(row, name, fate, attempts)
        self._wrote_outbox()

    async def _change(self, conn: AsyncConnection, row: Failure, name: str, fate: Fate, attempts: int) -> bool:
        """Steps 6 and 7. A dead one has a letter of its own: its id counts the replays."""
        tables, seen, now = self._tables, (row.id, row.row_version), self._clock.now()
        if isinstance(fate, Later):
            return await failure.postpone(
                conn, tables, seen, fate.verdict,
                due=fate.due, attempts=fate.attempts, class_attempts=fate.class_attempts,
                retrying_since=fate.retrying_since, effect_id=fate.effect_id, now=now,
            )  # fmt: skip
        if isinstance(fate, ForReview):
            return await failure.review(
                conn, tables, seen, fate.verdict, attempts=fate.attempts, now=now, effect_id=fate.effect_id
            )
        holds = self._policy_of(row.handler).after_dead == "hold" and not row.alone
        buried = await failure.bury(conn, tables, seen, Verdict.of(fate), attempts=attempts, now=now, holds=holds)
        if buried:
            await outbox.put(conn, tables, [self._burial.letter_again(row, name, fate, attempts, holds=holds)])
        return buried

    def _tell(self, row: Failure, name: str, fate: Fate, attempts: int) -> None:
        event = Event(None, row.record, id_text=row.id_text)
        if isinstance(fate, Dead):
            self._meter.dead(name, fate.reason, 1)
            report_dead(event, name, RECORD, fate, attempts)
        elif isinstance(fate, ForReview):
            self._meter.unknown(name, 1)
            report_unknown(event, name, RECORD, fate.verdict, fate.attempts)
        else:
            report_parked(event, name, RECORD, fate.verdict, fate.attempts, fate.due)


COPIED_MIN = 50
"""Claims that are worth a COPY and its savepoint: fewer are inserted in one statement."""
