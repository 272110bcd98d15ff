"""The slow way: rows of the failure table that are queued (put back by a replay) are taken up by their home's owner.

Of each lane the row with the lowest place, one at a time, through the same handlers. No lock is held while a handler
runs. What if the process stops meanwhile? The row is still queued, and is taken up again; what the handler wrote was in
the transaction that did not commit. What if an operator discards the row meanwhile? Its version changed: the claim is
written all the same, with a line in the audit. A record that could not be decoded, and now can, is handed to every
handler that takes its type: it becomes one queued row for each of them, in one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.burial import Burial
from ...dlq.reporting import COMMAND, PROJECTION, RECORD, report_dead, report_done
from ...inbox import audit, claim, failure, fence, outbox
from ...inbox.clock import Clock
from ...inbox.errors import DependencyError, OwnershipLost, RecordError
from ...inbox.event import Event
from ...inbox.failure_rows import Failure, Place, Verdict
from ...inbox.failure_rows import queued as queued_row
from ...inbox.handlers import RESERVED
from ...inbox.holding import Holding, Holdings
from ...inbox.meter import Meter
from ...inbox.outcome import Dead, FinalStatus
from ...inbox.store import STORE_ERRORS, Store
from ...projections.batch import BoundProjection
from ..intake import EventIntake
from .commands import CONFLICT, BoundCommand, CommandRunner
from .completing import COMMAND_VERSION
from .dependencies import Dependencies

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
"""A replay starts within a second; the look is one query on a partial index that is nearly always empty."""

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
        self._burial = burial
        self._dependencies = dependencies
        self._meter = meter
        self._clock = clock
        self._wrote_outbox = wrote_outbox
        self._running: dict[int, asyncio.Task[None]] = {}
        self._quiet = False

    def quiet(self) -> None:
        """Take up nothing more."""
        self._quiet = True

    async def drained(self) -> None:
        """Return once nothing runs."""
        if self._running:
            await asyncio.wait(self._running.values())

    async def run(self) -> None:
        """Look, take up, again."""
        async with asyncio.TaskGroup() as group:
            while True:
                for row in await self._look():
                    task = group.create_task(self._take_up(row))
                    self._running[row.id] = task
                    task.add_done_callback(lambda _, row_id=row.id: self._running.pop(row_id, None))
                await asyncio.sleep(LOOK_S)

    async def _look(self) -> list[Failure]:
        room = ROWS_MAX - len(self._running)
        homes = [holding.partition for holding in self._holdings]
        if self._quiet or room <= 0 or not homes:
            return []
        try:
            async with self._store.transaction() as conn:
                return await failure.pick(
                    conn,
                    self._store.tables,
                    [*self._commands, *self._projections, self._handler_ids[RESERVED]],
                    homes,
                    {},
                    self._clock.now(),
                    room,
                    busy=tuple(self._running),
                )
        except STORE_ERRORS as error:
            log.warning("slow_way_waits", error=type(error).__name__)
            return []

    # --------------------------------------------------------------------------------------------------- one row

    async def _take_up(self, row: Failure) -> None:
        """One row to its end. What is lost or away leaves it queued, for the next look of whoever owns its home."""
        holding = self._holdings.current(row.home)
        if holding is None:
            return
        try:
            await self._handle(row, holding)
        except OwnershipLost:
            self._meter.lost(1)
        except DependencyError as error:
            await self._dependencies.wait(error.dependency)
        except STORE_ERRORS as error:
            log.warning("row_again", failure_id=row.id, error=type(error).__name__)

    async def _handle(self, row: Failure, holding: Holding) -> None:
        name = self._names[row.handler]
        try:
            event, route = await asyncio.to_thread(self._intake.event_of, row.record)
        except RecordError as error:
            await self._bury_again(row, holding, name, Dead(error.reason, str(error)), attempts=row.attempts + 1)
            return
        try:
            if name == RESERVED:
                await self._hand_out(row, holding, event, (*sorted(route.projections), *route.lanes))
            elif (bound := self._projections.get(row.handler)) is not None:
                await self._project(row, holding, bound, event)
            else:
                await self._command(row, holding, self._commands[row.handler], event)
        except ConflictMet:
            await self._bury_again(row, holding, name, CONFLICT, attempts=row.attempts + 1)

    async def _command(self, row: Failure, holding: Holding, bound: BoundCommand, event: Event[Any]) -> None:
        async def finish(conn: AsyncConnection) -> None:
            await self._complete(conn, row)

        started = self._clock.monotonic_s()
        ended, attempts = await self._runner.settle(bound, holding, event, finish, row.id)
        if ended.dead is not None:
            await self._bury_again(row, holding, bound.command.name, ended.dead, row.attempts + attempts)
            return
        if not ended.claimed:
            async with self._store.transaction() as conn:
                await self._open(conn, row, holding)
                mine = await self._claim(conn, row, (bound.handler_id, COMMAND_VERSION), event)
                await finish(conn)
                if mine:
                    await outbox.put(conn, self._store.tables, list(ended.outgoing))
        self._done(event, bound.command.name, COMMAND, started)

    async def _project(self, row: Failure, holding: Holding, bound: BoundProjection, event: Event[Any]) -> None:
        async def attempt() -> None:
            async with self._store.transaction() as conn:
                await self._open(conn, row, holding)
                outgoing: list[outbox.NewOutgoing] = []
                if await self._claim(conn, row, bound.key, event):
                    outgoing = await bound.run([event], conn)
                await self._complete(conn, row)
                await outbox.put(conn, self._store.tables, outgoing)

        started = self._clock.monotonic_s()
        dead, attempts, _ = await self._runner.until_decided(bound.name, attempt, event, self._runner.retry, PROJECTION)
        if dead is not None:
            await self._bury_again(row, holding, bound.name, dead, row.attempts + attempts)
            return
        self._done(event, bound.name, PROJECTION, started)

    async def _hand_out(self, row: Failure, holding: Holding, event: Event[Any], names: tuple[str, ...]) -> None:
        """A record that can be read by now: one queued row for each handler of its type."""
        now = self._clock.now()
        async with self._store.transaction() as conn:
            await self._hold(conn, row, holding)
            rows = [
                queued_row(
                    Place(self._handler_ids[name], self._version(name), row.incarnation), event,
                    Verdict(row.reason, "handed out after its repair"), due=now, attempts=0, now=now,
                )
                for name in names
            ]  # fmt: skip
            places = await failure.draw_places(conn, self._store.tables, rows)
            await claim.lock_generations(conn, self._store.tables, [row.handler])
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
        await claim.lock_generations(conn, self._store.tables, [row.handler])

    async def _claim(self, conn: AsyncConnection, row: Failure, key: tuple[int, int], event: Event[Any]) -> bool:
        """Step 4: True where the event is ours to handle, False for a repeat. Raises ConflictMet."""
        mine = [(event.event_id, event.payload_hash)]
        claimed = await claim.claim(conn, self._store.tables, *key, mine, optimistic=False)
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

    async def _bury_again(self, row: Failure, holding: Holding, name: str, dead: Dead, attempts: int) -> None:
        """Dead once more, with a letter of its own: its id counts the replays."""
        letter = self._burial.letter_again(row, name, dead, attempts)
        async with self._store.transaction() as conn:
            await self._hold(conn, row, holding)
            buried = await failure.bury(
                conn,
                self._store.tables,
                (row.id, row.row_version),
                Verdict.of(dead),
                attempts=attempts,
                now=self._clock.now(),
            )
            if buried:
                await outbox.put(conn, self._store.tables, [letter])
        self._meter.dead(name, dead.reason, 1)
        report_dead(Event(None, row.record, id_text=row.id_text), name, RECORD, dead, attempts)
        self._wrote_outbox()

    def _done(self, event: Event[Any], name: str, kind: str, started_s: float) -> None:
        duration_s = self._clock.monotonic_s() - started_s
        self._meter.handled(name, 1, duration_s)
        report_done(event, name, kind, FinalStatus.COMPLETED, duration_s)
        self._wrote_outbox()
