"""Applies batches to projections: claims, writes, outbox rows and checkpoints in one transaction, or nothing of it.

The transaction takes the steps of the one lock order: fence, lanes of parked keys, generation lock, probe, then for
each projection claims and the user's tables, then failure rows, outbox, checkpoints. What if the process stops between
two lines? Everything before the commit is undone by the database, and the records are read again from the checkpoints.
What if the answer to the commit is lost? The batch is applied again: its claims are all taken, its checkpoints stand
where this batch put them, and that is recognised as done. What if this worker is a zombie? Its fence row does not come
back, and nothing is written. A projection that fails leaves the transaction to the others and is settled by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from ..dlq.burial import Burial
from ..dlq.guard import HandlerRaised
from ..dlq.parked_limits import ParkedLimits
from ..inbox import checkpoint
from ..inbox.clock import Clock
from ..inbox.event import Partition
from ..inbox.faults import Fault, classify
from ..inbox.holding import Holdings
from ..inbox.meter import Meter
from ..inbox.moving import Points, behind, raise_checkpoints
from ..inbox.points import Writes
from ..inbox.store import STORE_ERRORS, Store
from .attempt import Attempt, Result
from .batch import Batch, BoundProjection, Projected
from .keeping import hidden
from .rows import Rows
from .settling import Breakers, ConflictsFound, NoBreakers, Settler
from .steps import Mover, Steps, TooManyWait

Failed = list[tuple[BoundProjection, Exception]]
"""Projections that left the transaction, each with what it met."""


@final
class Applier:
    """Applies the batches of one stream track. Owned by the event loop; one batch at a time."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        projections: Sequence[BoundProjection],
        holdings: Holdings,
        burial: Burial,
        meter: Meter,
        clock: Clock,
        ping: Callable[[str], Awaitable[bool]],
        wrote_outbox: Callable[[], None],
        breakers: Breakers | None = None,
        limits: ParkedLimits | None = None,
        move: Mover = checkpoint.move,
    ) -> None:
        """`move` is given where the batches' progress stands elsewhere than in the handlers' checkpoints."""
        self._store = store
        self._consumer = consumer
        self._projections = sorted(projections, key=lambda bound: bound.key)
        self._holdings = holdings
        self._breakers = breakers or NoBreakers()
        self._steps = Steps(
            store, consumer, holdings, Rows(burial, meter, clock), meter, clock, wrote_outbox, limits, move
        )
        self._settler = Settler(store, self._steps, meter, clock, ping, self._breakers)
        self._lock = asyncio.Lock()

    async def raise_to(self, points: Points) -> bool:
        """Raise checkpoints to points below which everything is durable. False: not while a batch runs."""
        if self._lock.locked():
            return not any(behind(self._holdings, bound.key, points) for bound in self._projections)
        async with self._lock:
            for bound in self._projections:
                await raise_checkpoints(self._store, self._consumer, self._holdings, bound.key, points)
        return True

    async def apply(self, batch: Batch) -> frozenset[Partition]:
        """Make the batch durable for every projection; gives back the partitions that are ours no more.

        Raises DependencyError where a dependency is away (call again once it is back: nothing is done twice) and
        FatalError where the process must leave.
        """
        async with self._lock:
            try:
                lost, failed = await self._together(batch)
            except STORE_ERRORS as error:
                if self._settler.constraints_now or classify(error) is not Fault.DATA:
                    raise
                self._settler.constraints_now = True  # only a deferred constraint is refused at the commit
                lost, failed = await self._together(batch)
            for bound, error in failed:
                lost |= await self._settler.settle(batch, bound, error)
        return lost

    async def _together(self, batch: Batch) -> tuple[frozenset[Partition], Failed]:
        """One transaction for all. A projection that takes the connection with it leaves, and the others go again."""
        failed: Failed = []
        staying = self._projections
        while staying:
            attempt = Attempt(batch, alone=len(self._projections) == 1)
            try:
                await self._transact(attempt, staying)
            except _Left as left:
                failed.append((left.bound, left.error))
                staying = [bound for bound in staying if bound is not left.bound]
                continue
            self._steps.confirm(attempt)
            for result in attempt.results:
                self._breakers.fine(result.bound.name, len(result.admitted.fresh))
            return attempt.lost, failed + attempt.failed
        return frozenset(), failed

    async def _transact(self, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Steps 1 to 8. Raises _Left where a projection's failure undoes everything."""
        async with self._store.transaction(Writes.BATCH) as conn:
            try:
                await self._steps.open(conn, attempt, projections)
            except TooManyWait as found:
                raise _Left(found.bound, found) from found
            for bound in projections:
                await self._savepoint(conn, attempt, bound)
            try:
                await self._steps.close(conn, attempt)
            except DBAPIError as error:
                if not attempt.alone:
                    raise
                raise _Left(projections[0], hidden(error)) from error

    async def _savepoint(self, conn: AsyncConnection, attempt: Attempt, bound: BoundProjection) -> None:
        """One projection's part. Alone it needs no savepoint: its failure undoes the whole transaction."""
        savepoint = None if attempt.alone else await conn.begin_nested()
        try:
            await self._project(conn, attempt, bound)
        except (HandlerRaised, ConflictsFound) as stopped:
            error = stopped.error if isinstance(stopped, HandlerRaised) else stopped
            if savepoint is None or conn.invalidated:
                raise _Left(bound, error) from error
            await savepoint.rollback()
            attempt.failed.append((bound, error))
            attempt.forget(bound)
            return
        if savepoint is not None:
            try:
                await savepoint.commit()
            except DBAPIError as error:
                raise _Left(bound, hidden(error)) from error

    async def _project(self, conn: AsyncConnection, attempt: Attempt, bound: BoundProjection) -> None:
        """Steps 4 and 5: claims, then the user's function on what is new."""
        admitted = await self._steps.admit(conn, attempt, bound)
        if admitted.conflicts:
            raise ConflictsFound(admitted)
        started, projected = time.perf_counter(), Projected()
        if admitted.fresh:
            projected = await bound.run(admitted.fresh, conn, constraints_now=self._settler.constraints_now)
        attempt.results.append(Result(bound, admitted, projected, time.perf_counter() - started))


class _Left(Exception):
    """A projection's failure that undid the whole transaction."""

    def __init__(self, bound: BoundProjection, error: Exception) -> None:
        self.bound = bound
        self.error = error
        super().__init__(f"{bound.name!r} failed")
