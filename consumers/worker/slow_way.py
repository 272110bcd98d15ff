"""The slow way: rows of the failure table that are queued are taken up by their home's owner.

Whatever is queued comes here: put back by a replay, waiting for its next attempt, or behind an earlier event of its
key. Of each lane the row with the lowest place, one at a time, through the same handlers. No lock is held while a
handler runs. What if the process stops meanwhile? The row is still queued, and is taken up again; what the handler
wrote was in the transaction that did not commit. What if an operator discards the row meanwhile? Its version changed:
the claim is written all the same, with a line in the audit. A record that could not be decoded, and now can, is handed
to every handler that takes its type: it becomes one queued row for each of them, in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.burial import Burial
from ...dlq.fates import ForReview, Later
from ...dlq.policy import FailurePolicy
from ...dlq.reporting import (
    COMMAND,
    PROJECTION,
    RECORD,
    report_dead,
    report_done,
    report_parked,
    report_skipped,
    report_unknown,
)
from ...dlq.retry import RetryState
from ...inbox import audit, claim, failure, fence, outbox
from ...inbox.clock import Clock
from ...inbox.errors import DependencyError, OwnershipLost, RecordError
from ...inbox.event import Event, Partition
from ...inbox.failure_rows import Failure, Place, Verdict
from ...inbox.failure_rows import queued as queued_row
from ...inbox.handlers import RESERVED
from ...inbox.holding import Holding, Holdings
from ...inbox.meter import Meter
from ...inbox.outcome import Dead, FinalStatus, Reason
from ...inbox.points import Point, Writes, reach
from ...inbox.store import STORE_ERRORS, Store
from ...projections.batch import BoundProjection, Projected
from ..intake import EventIntake
from .attempts import Attempts, Subject
from .commands import BoundCommand, CommandRunner
from .completion import COMMAND_VERSION, Fate, conflict_fate
from .dependencies import Dependencies
from .repeats import CONFLICT
from .turns import Alone, Turn, at_once, beside

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
"""A replay starts within a second; the look is one query on a partial index that is nearly always empty."""

RECORDS: Final = FailurePolicy("continue")
"""That of records that reached no handler."""

LOOK_MIN_S: Final = 0.02
"""Whatever ends or is parked asks for a look: fifty of them a second are enough."""

ROWS_MAX: Final = 100
"""Rows taken up at once: the slow way shares the pool with the fast one."""


class ConflictMet(Exception):
    """The event's id was claimed by a record with other bytes while its row waited."""


@final
class SlowWay:
    """Owned by the event loop; `run` until cancelled. `quiet` takes up nothing more, `drained` waits for what runs."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        holdings: Holdings,
        intake: EventIntake,
        handler_ids: Mapping[str, int],
        commands: Mapping[str, BoundCommand],
        projections: Mapping[int, BoundProjection],
        runner: CommandRunner,
        attempts: Attempts,
        burial: Burial,
        dependencies: Dependencies,
        meter: Meter,
        clock: Clock,
        wrote_outbox: Callable[[], None],
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._holdings = holdings
        self._intake = intake
        self._handler_ids = handler_ids
        self._names = {handler_id: name for name, handler_id in handler_ids.items()}
        self._commands = {bound.handler_id: bound for bound in commands.values()}
        self._projections = projections
        self._runner = runner
        self._attempts = attempts
        self._burial = burial
        self._dependencies = dependencies
        self._meter = meter
        self._clock = clock
        self._wrote_outbox = wrote_outbox
        self._running: dict[int, asyncio.Task[None]] = {}
        self._homes: dict[int, Partition] = {}
        self._wake = asyncio.Event()
        self._quiet = False
        self._held = False
        self._apart: set[int] = set()
        self._alone: Alone = beside
        self._turn: Turn = at_once

    def assemble(self, alone: Alone, turn: Turn) -> None:
        """How a row is handled with nothing beside it, and how one waits until its handler's rate lets it begin."""
        self._alone = alone
        self._turn = turn

    def quiet(self) -> None:
        """Take up nothing more."""
        self._quiet = True

    def hold(self) -> None:
        """Take up nothing more until `go_on`."""
        self._held = True

    def go_on(self) -> None:
        """Take up rows again."""
        self._held = False
        self._wake.set()

    async def stands_still(self) -> None:
        """Return once nothing runs but what wants to be alone, or is."""
        while running := [task for row_id, task in self._running.items() if row_id not in self._apart]:
            await asyncio.wait(running)

    async def drained(self) -> None:
        """Return once nothing runs."""
        if self._running:
            await asyncio.wait(self._running.values())

    def wake(self) -> None:
        """There may be something to take up: a row was put, or one is done whose lane has more."""
        self._wake.set()

    async def run(self) -> None:
        """Look, take up, again: now and then, and as soon as something is done."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                for row in await self._look():
                    if self._is_suspect(row):  # before its task is there: nobody who wants to be alone waits for it
                        self._apart.add(row.id)
                    task = group.create_task(self._take_up(row))
                    self._running[row.id] = task
                    self._homes[row.id] = row.home
                    task.add_done_callback(lambda _, row_id=row.id: self._is_over(row_id))
                await asyncio.sleep(LOOK_MIN_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), LOOK_S)

    def _is_over(self, row_id: int) -> None:
        self._running.pop(row_id, None)
        self._homes.pop(row_id, None)
        self._apart.discard(row_id)
        self._wake.set()

    def _is_suspect(self, row: Failure) -> bool:
        """Its record has killed a process, or was in the hands of two that died."""
        holding = self._holdings.current(row.home)
        return row.reason == Reason.KILLED_PROCESS or (holding is not None and row.id in holding.suspect_rows)

    async def _look(self) -> list[Failure]:
        room = ROWS_MAX - len(self._running)
        homes = [holding.partition for holding in self._holdings]
        if self._quiet or self._held or room <= 0 or not homes:
            return []
        try:
            async with self._store.look() as conn:
                rows = await self._pick(conn, homes, room)
            await self._note(rows)
            return [] if self._held else rows  # held meanwhile: they are looked for again
        except STORE_ERRORS as error:
            log.warning("slow_way_waits", error=type(error).__name__)
            return []

    async def _pick(self, conn: AsyncConnection, homes: list[Partition], room: int) -> list[Failure]:
        """Rows of handlers whose breaker is closed; where one of the others may be tried, that one by itself."""
        breakers, busy, now = self._runner.breakers, tuple(self._running), self._clock.now()
        tables, handlers = self._store.tables, [*self._commands, *self._projections, self._handler_ids[RESERVED]]
        for handler_id in handlers:
            if breakers.is_due(name := self._names[handler_id]):
                rows = await failure.pick(conn, tables, [handler_id], homes, {}, now, 1, busy=busy)
                if rows and breakers.take_try(name):
                    return rows
        free = [handler_id for handler_id in handlers if not breakers.is_open(self._names[handler_id])]
        return await failure.pick(conn, tables, free, homes, {}, now, room, busy=busy)

    async def _note(self, rows: list[Failure]) -> None:
        """After an unclean end it is written down which rows are in hand, once for each look that finds any.

        Who dies then leaves word of what to handle alone. Without a death behind it nothing is written.
        """
        for holding in self._holdings:
            came = {row.id for row in rows if row.home == holding.partition}
            if not (holding.after_crash and came):
                continue
            in_hand = came | {row_id for row_id, home in self._homes.items() if home == holding.partition}
            async with self._store.transaction(Writes.SUSPECT) as conn:
                await fence.take_in_hand(
                    conn, self._store.tables, self._consumer, holding.partition, holding.fence_epoch,
                    in_hand | holding.suspect_rows,
                )  # fmt: skip

    # --------------------------------------------------------------------------------------------------- one row

    async def _take_up(self, row: Failure) -> None:
        """One row to its end. What is lost or away leaves it queued, for the next look of whoever owns its home."""
        holding = self._holdings.current(row.home)
        if holding is None:
            return
        try:
            if row.id in self._apart:
                async with self._alone(row, holding):
                    await self._handle(row, holding)
                holding.suspect_rows.discard(row.id)
            else:
                await self._handle(row, holding)
        except OwnershipLost:
            self._meter.lost(1)
        except DependencyError as error:
            await self._dependencies.wait(error.dependency)
        except STORE_ERRORS as error:
            log.warning("row_again", failure_id=row.id, error=type(error).__name__)

    async def give_up(self, row: Failure, holding: Holding, dead: Dead) -> None:
        """The row killed the process again; no handler is asked."""
        await self._end_as(row, holding, self._names[row.handler], dead, row.attempts + 1)

    async def _handle(self, row: Failure, holding: Holding) -> None:
        name = self._names[row.handler]
        try:
            event, route = await asyncio.to_thread(self._intake.event_of, row.record)
        except RecordError as error:
            await self._end_as(row, holding, name, Dead(error.reason, str(error)), row.attempts + 1)
            return
        try:
            if name == RESERVED:
                await self._hand_out(row, holding, event, (*sorted(route.projections), *route.lanes))
            elif (bound := self._projections.get(row.handler)) is not None:
                await self._project(row, holding, bound, event)
            else:
                await self._command(row, holding, self._commands[row.handler], event)
        except ConflictMet:
            fate = conflict_fate(CONFLICT, self._policy_of(row.handler), row.attempts + 1)
            await self._end_as(row, holding, name, fate, row.attempts + 1)

    async def _command(self, row: Failure, holding: Holding, bound: BoundCommand, event: Event[Any]) -> None:
        async def finish(conn: AsyncConnection) -> None:
            await self._complete(conn, row)

        await self._turn(bound.command.name, lambda: self._held and row.id not in self._apart)
        name, started = bound.command.name, self._clock.monotonic_s()
        ended, attempts = await self._runner.settle(bound, holding, event, finish, row.id, self._history(row))
        if ended.fate is not None:
            if isinstance(ended.fate, Dead) and not self._runner.breakers.admits_now(bound.command.name):
                return  # held back by its breaker: it is still queued, and taken up again
            await self._end_as(row, holding, name, ended.fate, attempts)
            return
        if not ended.claimed:
            async with self._store.transaction(Writes.ROW, name) as conn:
                await self._open(conn, row, holding)
                mine = await self._claim(conn, row, (bound.handler_id, COMMAND_VERSION), event)
                await finish(conn)
                if mine:
                    await outbox.put(conn, self._store.tables, list(ended.outgoing))
        self._done(event, name, COMMAND, started, FinalStatus.SKIPPED if ended.skipped else FinalStatus.COMPLETED)

    async def _project(self, row: Failure, holding: Holding, bound: BoundProjection, event: Event[Any]) -> None:
        async def attempt(*, run: bool = True) -> bool:
            async with self._store.transaction(Writes.ROW, bound.name) as conn:
                await self._open(conn, row, holding)
                projected = Projected()
                if await self._claim(conn, row, bound.key, event) and run:
                    projected = await bound.run([event], conn)
                await self._complete(conn, row)
                await outbox.put(conn, self._store.tables, list(projected.outgoing))
            if projected.stale:
                self._meter.stale(bound.name, projected.stale)
            return True

        started = self._clock.monotonic_s()
        subject = Subject(bound.name, PROJECTION, event, bound.projection.policy)
        settled = await self._attempts.until_settled(subject, attempt, self._history(row))
        if settled.fate is not None:
            if isinstance(settled.fate, Dead) and not self._runner.breakers.admits_now(bound.name):
                return
            await self._end_as(row, holding, bound.name, settled.fate, settled.attempts)
            return
        status = FinalStatus.COMPLETED
        if settled.skipped is not None:
            report_skipped(event, bound.name, PROJECTION, settled.skipped, settled.attempts)
            await attempt(run=False)
            status = FinalStatus.SKIPPED
        self._done(event, bound.name, PROJECTION, started, status)

    def _history(self, row: Failure) -> RetryState:
        """What the row tells of its attempts: those of this round count, a replay begins a new one."""
        since, now, now_s = row.retrying_since or row.last_failed_at, self._clock.now(), self._clock.monotonic_s()
        tries = row.class_attempts if row.retrying_since is not None else 0
        latest = row.last_failed_at
        return RetryState.of_row(
            row.attempts, tries, row.exception_type, since, now, now_s=now_s, last_failed_at=latest
        )

    def _policy_of(self, handler_id: int) -> FailurePolicy:
        bound = self._projections.get(handler_id)
        if bound is not None:
            return bound.projection.policy
        command = self._commands.get(handler_id)
        return RECORDS if command is None else command.command.policy

    async def _hand_out(self, row: Failure, holding: Holding, event: Event[Any], names: tuple[str, ...]) -> None:
        """A record that can be read by now: one queued row for each handler of its type."""
        now = self._clock.now()
        async with self._store.transaction(Writes.HAND_OUT) as conn:
            await self._hold(conn, row, holding)
            rows = [
                queued_row(
                    Place(self._handler_ids[name], self._version(name), row.incarnation), event,
                    Verdict(row.reason, "handed out after its repair"), due=now, attempts=0, now=now,
                    alone=self._policy_of(self._handler_ids[name]).on_failure != "block",
                )
                for name in names
            ]  # fmt: skip
            places = await failure.draw_places(conn, self._store.tables, rows, [(row.id, row.row_version)])
            await claim.lock_generations(conn, self._store.tables)
            mine = [(row.event_id, row.payload_hash8)]
            await claim.claim(conn, self._store.tables, row.handler, COMMAND_VERSION, mine, optimistic=False)
            await failure.put(conn, self._store.tables, rows, places)
            await self._complete(conn, row)
        self._done(event, RESERVED, RECORD, self._clock.monotonic_s())

    def _version(self, name: str) -> int:
        bound = self._projections.get(self._handler_ids[name])
        return COMMAND_VERSION if bound is None else bound.projection.version

    # ------------------------------------------------------------------------------------------------- the pieces

    async def _hold(self, conn: AsyncConnection, row: Failure, holding: Holding) -> None:
        """Step 1."""
        fences = {row.home: holding.fence_epoch}
        if not await fence.hold(conn, self._store.tables, self._consumer, fences):
            raise OwnershipLost(f"{row.home} is held by somebody else")

    async def _open(self, conn: AsyncConnection, row: Failure, holding: Holding) -> None:
        """Steps 1 to 3."""
        await self._hold(conn, row, holding)
        await failure.lock_lanes(conn, self._store.tables, [(row.id, row.row_version)])
        await claim.lock_generations(conn, self._store.tables)

    async def _claim(self, conn: AsyncConnection, row: Failure, key: tuple[int, int], event: Event[Any]) -> bool:
        """Step 4: True where the event is ours to handle, False for a repeat. Raises ConflictMet."""
        mine = [(event.event_id, event.payload_hash)]
        claimed = await claim.claim(conn, self._store.tables, *key, mine, optimistic=False)
        reach(Point.CLAIMED, self._names[row.handler])
        if claimed.new is None or event.event_id in claimed.new:
            return True
        if claimed.taken.get(event.event_id, event.payload_hash) != event.payload_hash:
            raise ConflictMet
        self._meter.duplicates(self._names[row.handler], 1)
        return False

    async def _complete(self, conn: AsyncConnection, row: Failure) -> None:
        """Step 6 and 7: the row is gone, what became of it stands in the audit."""
        gone = await failure.complete(conn, self._store.tables, [(row.id, row.row_version)])
        act = "completed" if gone else "completed_though_changed"
        line = self._burial.audit_line(row, self._names[row.handler], act)
        await audit.write(conn, self._store.tables, line)

    async def _end_as(self, row: Failure, holding: Holding, name: str, fate: Fate, attempts: int) -> None:
        """The row stays, as what became of it: dead once more, for a person to decide, or queued until it is due."""
        async with self._store.transaction(Writes.VERDICT, name) as conn:
            await self._hold(conn, row, holding)
            seen = (row.id, row.row_version)
            await failure.lock_lanes(conn, self._store.tables, [seen])
            changed = await self._change(conn, row, name, fate, attempts)
        if changed:
            self._tell(row, name, fate, attempts)
        self._wrote_outbox()

    async def _change(self, conn: AsyncConnection, row: Failure, name: str, fate: Fate, attempts: int) -> bool:
        """Steps 6 and 7. A dead one has a letter of its own: its id counts the replays."""
        tables, seen, now = self._store.tables, (row.id, row.row_version), self._clock.now()
        if isinstance(fate, Later):
            return await failure.postpone(
                conn, tables, seen, fate.verdict,
                due=fate.due, attempts=fate.attempts, class_attempts=fate.class_attempts,
                retrying_since=fate.retrying_since, now=now,
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

    def _done(
        self, event: Event[Any], name: str, kind: str, started_s: float, status: FinalStatus = FinalStatus.COMPLETED
    ) -> None:
        duration_s = self._clock.monotonic_s() - started_s
        if status is FinalStatus.SKIPPED:
            self._meter.skipped(name, 1)
        else:
            self._meter.handled(name, 1, duration_s)
        report_done(event, name, kind, status, duration_s)
        self._wrote_outbox()
