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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.burial import Burial
from ...dlq.failure_text import dead as dead_outcome
from ...dlq.policy import FailurePolicy
from ...dlq.reporting import COMMAND, PROJECTION, report_skipped
from ...inbox import failure, fence, outbox
from ...inbox.clock import Clock
from ...inbox.errors import DependencyError, OwnershipLost, RecordError
from ...inbox.event import Partition
from ...inbox.failure_rows import Failure
from ...inbox.handlers import RESERVED
from ...inbox.holding import Holding, Holdings
from ...inbox.homes import Homes, Places
from ...inbox.meter import Meter
from ...inbox.outcome import Dead, FinalStatus, Reason
from ...inbox.points import Writes
from ...inbox.store import STORE_ERRORS, Store
from ...inbox.versions import is_run
from ...projections.batch import BoundProjection, Projected
from ..intake import EventIntake
from .attempts import Attempts, Subject
from .commands import BoundCommand, CommandRunner
from .completion import COMMAND_VERSION, Fate, conflict_fate
from .concluding import Ended
from .dependencies import Dependencies
from .handing_out import HandsOut
from .looking_ahead import NOTHING, Found, LookAhead, is_alike, kills
from .repeats import CONFLICT
from .rested_rows import RestedRows
from .row_batches import BATCH_BYTES_MAX, BATCH_ROWS_MAX, RowBatches
from .row_ends import ConflictMet, RowEnds, Taken
from .row_groups import RowGroups
from .taking_up import event_of_row, history_of
from .turns import Alone, Turn, at_once, beside

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.25
"""A replay starts within that: a second is the time of twenty thousand letters. The look is one query on partial
indexes that are nearly always empty: 2 ms of processor time, here and in the database."""

RECORDS: Final = FailurePolicy("continue")
"""That of records that reached no handler."""

LOOK_MIN_S: Final = 0.02
"""Whatever ends or is parked asks for a look: fifty of them a second are enough."""

ROWS_MAX: Final = 100
"""Rows of a handler taken up at once by themselves: the slow way shares the pool with the fast one."""

ROWS_A_PLACE: Final = 10
"""Rows in hand for each place of a command's handler: enough that no place is free until the next look. The others wait
in the table, where a person may still discard them in time."""

ROWS_BESIDE: Final = 20
"""Rows of a batch that go on by themselves, at a time: they fail for good, most of them."""


@final
class SlowWay:
    """Owned by the event loop; `run` until cancelled. `quiet` takes up nothing more, `drained` waits for what runs."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        holdings: Holdings,
        homes: Homes,
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
        self._homes = homes
        self._intake = intake
        self._handler_ids = handler_ids
        self._names = {handler_id: name for name, handler_id in handler_ids.items()}
        self._commands = {bound.handler_id: bound for bound in commands.values()}
        self._projections = projections
        self._runner = runner
        self._attempts = attempts
        self._dependencies = dependencies
        self._meter = meter
        self._clock = clock
        self._ends = RowEnds(store, consumer, self._names, self._policy_of, burial, meter, clock, wrote_outbox)
        self._groups = RowGroups(store, self._ends, dependencies)
        self._batches = RowBatches(store, homes, intake, self._ends, meter, clock)
        self._ahead = LookAhead(store, holdings, homes, intake, clock)
        self._hands_out = HandsOut(store, self._ends, handler_ids, projections, self._policy_of, clock)
        self._rested = RestedRows(clock)
        self._running: dict[asyncio.Task[None], Sequence[Failure]] = {}
        """A row by itself, or rows of one projection in a batch."""
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
        while running := [task for task, rows in self._running.items() if rows[0].id not in self._apart]:
            await asyncio.wait(running)

    async def drained(self) -> None:
        """Return once nothing runs."""
        if self._running:
            await asyncio.wait(self._running)

    def wake(self) -> None:
        """There may be something to take up: a row was put, or one is done whose lane has more."""
        self._wake.set()

    async def run(self) -> None:
        """Look, take up, again: now and then, and as soon as something is done."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                for rows in await self._look():
                    if len(rows) > 1:
                        self._start(group.create_task(self._take_up_many(rows)), rows)
                        continue
                    if self._is_suspect(rows[0]):  # before its task is there: who wants to be alone waits not for it
                        self._apart.add(rows[0].id)
                    self._start(group.create_task(self._take_up(rows[0])), rows)
                await asyncio.sleep(LOOK_MIN_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()

    def _start(self, task: asyncio.Task[None], rows: Sequence[Failure]) -> None:
        self._running[task] = rows
        task.add_done_callback(self._is_over)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        rows = self._running.pop(task)
        if len(rows) == 1:
            self._apart.discard(rows[0].id)
        self._wake.set()

    def _batched(self) -> set[int]:
        """The projections of which a batch is worked."""
        return {rows[0].handler for rows in self._running.values() if len(rows) > 1}

    def _busy(self) -> list[int]:
        """The rows that are worked by themselves, and those that rest."""
        return [*(rows[0].id for rows in self._running.values() if len(rows) == 1), *self._rested.ids()]

    def _rooms(self, handlers: Iterable[int]) -> dict[int, int]:
        """How many more of their rows may be taken up by themselves: of each handler, so that none waits for others."""
        running = Counter(rows[0].handler for rows in self._running.values() if len(rows) == 1)
        rooms: dict[int, int] = {}
        for handler_id in handlers:
            command = self._commands.get(handler_id)
            most = ROWS_MAX if command is None else min(ROWS_MAX, ROWS_A_PLACE * command.command.concurrency)
            if (room := most - running[handler_id]) > 0:
                rooms[handler_id] = room
        return rooms

    def _is_suspect(self, row: Failure) -> bool:
        """Its record has killed a process, or was in the hands of two that died."""
        return kills(row) or any(row.id in holding.suspect_rows for holding in self._holdings)

    async def _look(self) -> list[list[Failure]]:
        """What to take up now: rows that are worked together, and rows alone."""
        places = self._homes.places()
        if self._quiet or self._held or not places.homes:
            return []
        try:
            async with self._store.look() as conn:
                rows = await self._pick(conn, places)
            await self._note(rows)
            return [] if self._held else rows  # held meanwhile: they are looked for again
        except STORE_ERRORS as error:
            log.warning("slow_way_waits", error=type(error).__name__)
            return []

    async def _pick(self, conn: AsyncConnection, places: Places) -> list[list[Failure]]:
        """Rows of handlers whose breaker is closed; where one of the others may be tried, that one by itself."""
        breakers, now, tables = self._runner.breakers, self._clock.now(), self._store.tables
        batched = self._batched()
        busy = self._busy()
        handlers = [*self._commands, *self._projections, self._handler_ids[RESERVED]]
        for handler_id in handlers:
            if handler_id not in batched and breakers.is_due(name := self._names[handler_id]):
                rows = await failure.pick(conn, tables, [handler_id], *places, now, 1, busy=busy)
                if rows and breakers.take_try(name):
                    return [rows]
        free = [handler_id for handler_id in handlers if not breakers.is_open(self._names[handler_id])]
        rooms = self._rooms(handler_id for handler_id in free if handler_id not in self._projections)
        rows = await failure.pick(
            conn, tables, rooms, *places, now, sum(rooms.values()), busy=busy, bytes_max=BATCH_BYTES_MAX, rooms=rooms
        )
        self._doubt(rows)
        found = [[row] for row in rows]
        projections = [handler_id for handler_id in free if handler_id in self._projections.keys() - batched]
        some = ROWS_MAX if any(holding.unclean_ends for holding in self._holdings) else BATCH_ROWS_MAX
        if len(projections) > 1 and not await failure.pick(conn, tables, projections, *places, now, 1, busy=busy):
            return found  # most looks end here, or with the one look at the only projection
        for handler_id in projections:
            most = min(some, self._projections[handler_id].projection.batch_max)
            rows = await failure.pick(
                conn, tables, [handler_id], *places, now, most, busy=busy, bytes_max=BATCH_BYTES_MAX
            )
            found += self._together(rows)
        return found

    def _doubt(self, rows: Sequence[Failure]) -> None:
        """After an unclean end the first rows that come are handled alone: the dead owner may have had them in hand."""
        unseen = any(holding.rows_unseen for holding in self._holdings)
        for row in rows if unseen else ():
            if not self._is_suspect(row) and (holding := self._homes.holding(row.home)) is not None:
                holding.doubt(row.id)

    def _together(self, rows: list[Failure]) -> list[list[Failure]]:
        """One projection's rows: those that may end in one transaction, and the others."""
        self._doubt(rows)
        suspects = frozenset[int]().union(*[holding.suspect_rows for holding in self._holdings])
        alike = [row for row in rows if is_alike(row) and row.id not in suspects]
        if len(alike) == len(rows):
            return [rows] if rows else []
        together = {row.id for row in alike}
        return [*([alike] if alike else []), *([row] for row in rows if row.id not in together)]

    async def _note(self, found: list[list[Failure]]) -> None:
        """After an unclean end it is written down which rows are in hand, once for each look that finds any.

        Who dies then leaves word of what to handle alone. Without a death behind it nothing is written.
        """
        for holding in self._holdings:
            if not (holding.unclean_ends and found):
                continue
            came = self._at_home(found, holding.partition)
            if not came:
                continue
            in_hand = came | self._at_home(self._running.values(), holding.partition)
            async with self._store.transaction(Writes.SUSPECT) as conn:
                await fence.take_in_hand(
                    conn, self._store.tables, self._consumer, holding.partition, holding.fence_epoch,
                    in_hand | holding.suspect_rows,
                )  # fmt: skip

    def _at_home(self, found: Iterable[Sequence[Failure]], partition: Partition) -> set[int]:
        return {row.id for rows in found for row in rows if self._homes.owner(row.home) == partition}

    async def _take_up_many(self, rows: list[Failure]) -> None:
        """Rows of one projection, and those that come behind them, which are looked for meanwhile."""
        bound, task, found = self._projections[rows[0].handler], asyncio.current_task(), Found(rows)
        assert task is not None, "a look starts it as one"
        while found.rows:
            self._running[task] = found.rows
            async with asyncio.TaskGroup() as group:
                ahead = group.create_task(self._ahead.behind(bound, found.rows, self._busy()))
                went_well = await self._work_many(bound, found)
            self._wake.set()
            stops = self._quiet or self._held or self._runner.breakers.is_open(bound.name)
            found = ahead.result() if went_well and not stops else NOTHING

    async def _work_many(self, bound: BoundProjection, found: Found) -> bool:
        """What cannot end with the others goes by itself, some of them at a time. False: nothing goes now."""
        try:
            single = await self._batches.work(bound, *found)
        except OwnershipLost:
            self._meter.lost(len(found.rows))
            return False
        except DependencyError as error:
            await self._dependencies.wait(error.dependency)
            return False
        except STORE_ERRORS as error:
            log.warning("rows_again", handler=bound.name, error=type(error).__name__)
            return False
        for start in range(0, len(single), ROWS_BESIDE):
            if not (self._quiet or self._held or self._runner.breakers.is_open(bound.name)):
                await asyncio.gather(*[self._take_up(row) for row in single[start : start + ROWS_BESIDE]])
        return not single

    # --------------------------------------------------------------------------------------------------- one row

    async def _take_up(self, row: Failure) -> None:
        """One row to its end. What is lost or away leaves it queued, for the next look of whoever owns its home."""
        holding = self._homes.holding(row.home)
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
            self._rested.failed(row.id)

    async def give_up(self, row: Failure, holding: Holding, dead: Dead) -> None:
        """The row killed the process again; no handler is asked."""
        await self._ends.end_as(row, holding, dead, row.attempts + 1)

    async def _handle(self, row: Failure, holding: Holding) -> None:
        name = self._names[row.handler]
        try:
            if name == RESERVED:
                event, route = await asyncio.to_thread(self._intake.event_of, row.repaired)
            else:
                event, route = await asyncio.to_thread(event_of_row, self._intake, row)
        except RecordError as error:
            await self._end(row, holding, Dead(error.reason, str(error)), row.attempts + 1)
            return
        try:
            if name == RESERVED:
                await self._hands_out.hand_out(row, holding, event, (*sorted(route.projections), *route.lanes))
            elif (bound := self._projections.get(row.handler)) is not None:
                await self._project(Taken(row, holding, event, _claimed_by(row, bound)), bound)
            else:
                command = self._commands[row.handler]
                await self._command(Taken(row, holding, event, (command.handler_id, COMMAND_VERSION)), command)
        except ConflictMet:
            fate = conflict_fate(CONFLICT, self._policy_of(row.handler), row.attempts + 1)
            await self._end(row, holding, fate, row.attempts + 1)

    async def _end(self, row: Failure, holding: Holding, fate: Fate, attempts: int) -> None:
        """It stays, as what became of it. Held back by its breaker it is still queued, and taken up again."""
        if isinstance(fate, Dead) and not self._runner.breakers.admits_now(self._names[row.handler]):
            return
        await self._ends.end_as(row, holding, fate, attempts)

    async def _command(self, one: Taken, bound: BoundCommand) -> None:
        async def finish(conn: AsyncConnection) -> None:
            await self._ends.claim_received(conn, one)
            await self._ends.complete_one(conn, one)

        row, name = one.row, bound.command.name
        await self._turn(name, lambda: self._held and row.id not in self._apart)
        started_s = self._clock.monotonic_s()
        ended, attempts = await self._runner.settle(bound, one.holding, one.event, finish, history_of(row, self._clock))
        mine = ended.claimed and not ended.repeat
        if ended.fate is None and not mine:
            try:
                mine = await self._groups.end(one, ended.outgoing)
            except STORE_ERRORS as error:  # as on the fast way: no further attempt would be written either
                ended = Ended(fate=dead_outcome(Reason.REJECTED, error, one.event.record))
        if ended.fate is not None:
            await self._end(row, one.holding, ended.fate, attempts)
            return
        if ended.skipped and mine:
            report_skipped(one.event, name, COMMAND, ended.skipped, attempts)
        skipped = ended.skipped is not None
        self._ends.done([one], COMMAND, started_s, FinalStatus.SKIPPED if skipped else FinalStatus.COMPLETED)

    async def _project(self, one: Taken, bound: BoundProjection) -> None:
        async def attempt(*, run: bool = True) -> bool:
            async with self._store.transaction(Writes.ROW, bound.name) as conn:
                await self._ends.open(conn, [one])
                projected = Projected()
                mine = await self._ends.claim_one(conn, one)
                if mine and run:
                    projected = await bound.run([one.event], conn)
                await self._ends.complete_one(conn, one, repeat=not mine)
                await outbox.put(conn, self._store.tables, list(projected.outgoing))
            if projected.stale:
                self._meter.stale(bound.name, projected.stale)
            return True

        started_s = self._clock.monotonic_s()
        subject = Subject(bound.name, PROJECTION, one.event, bound.projection.policy)
        settled = await self._attempts.until_settled(subject, attempt, history_of(one.row, self._clock))
        if settled.fate is not None:
            await self._end(one.row, one.holding, settled.fate, settled.attempts)
            return
        status = FinalStatus.COMPLETED
        if settled.skipped is not None:
            await attempt(run=False)
            report_skipped(one.event, bound.name, PROJECTION, settled.skipped, settled.attempts)
            status = FinalStatus.SKIPPED
        self._ends.done([one], PROJECTION, started_s, status)

    def _policy_of(self, handler_id: int) -> FailurePolicy:
        bound = self._projections.get(handler_id)
        if bound is not None:
            return bound.projection.policy
        command = self._commands.get(handler_id)
        return RECORDS if command is None else command.command.policy


def _claimed_by(row: Failure, bound: BoundProjection) -> tuple[int, int]:
    """A row that a backfill left claims for its run: the live version claimed the event when it came."""
    return (row.handler, row.version) if is_run(row.version) else bound.key
