"""What becomes of a batch by which a projection failed: searched, pass by pass, until each event has its end.

Each pass is a transaction of its own with everything in it: fence, lanes, claims, the user's function on one piece
after the other (each in a savepoint, so that later ones meet what earlier ones wrote), failure rows, letters,
checkpoints. It commits if it found nothing new; otherwise it is undone, and the next one has the new verdicts from its
beginning, because the lanes of what fails are locked before anything is claimed. Only errors of the user's function are
looked into; those of our own statements go out to the caller, who applies the batch again. What if the process stops
between two passes? Nothing was written, and the search begins anew with the records that are read again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from ..dlq.guard import HandlerRaised
from ..dlq.outcomes import fatal_by
from ..dlq.reporting import PROJECTION, report_retry
from ..dlq.rules import DATABASE, Decision, DependencyAway, Fatal, Lost, Transient, decide, may_be_an_outage
from ..inbox.clock import Clock
from ..inbox.errors import DependencyError, OwnershipLost
from ..inbox.event import Partition
from ..inbox.faults import Fault, classify
from ..inbox.meter import Meter
from ..inbox.outbox import NewOutgoing
from ..inbox.points import Writes
from ..inbox.store import STORE_ERRORS, Store
from .attempt import Attempt, Result
from .batch import Batch, BoundProjection, Projected
from .fates import TOO_MANY, Died
from .keeping import hidden
from .search import Search
from .steps import Steps, TooManyWait, no_room
from .verdicts import Admitted


class Breakers(Protocol):
    """Whoever looks at how many die (`tidegate.dlq.breakers.DeadBreakers`)."""

    async def admits(self, handler: str, outcomes: tuple[bool, ...] | None = None) -> bool:
        """May the letters be written? False, after a wait: begin with the batch again."""
        ...

    def admits_if_closed(self, handler: str, outcomes: tuple[bool, ...] | None = None) -> bool:
        """The same for a batch that holds some for which there is no room in the queue. Nobody waits."""
        ...

    def fine(self, handler: str, events: int = 1) -> None:
        """So many events came to a good end."""
        ...


@final
class NoBreakers:
    """Nobody looks."""

    async def admits(self, handler: str, outcomes: tuple[bool, ...] | None = None) -> bool:
        return True

    def admits_if_closed(self, handler: str, outcomes: tuple[bool, ...] | None = None) -> bool:
        return True

    def fine(self, handler: str, events: int = 1) -> None: ...


class ConflictsFound(Exception):
    """The batch holds events whose id was claimed with other bytes: their lanes must be locked before the claims."""

    def __init__(self, admitted: Admitted) -> None:
        self.events = tuple(admitted.conflicts)
        super().__init__()


class _Unsettled(Exception):
    """The pass learned something: the next one begins with it."""


@final
class Settler:
    """For the projections of one stream track, one batch at a time. Owned by the event loop."""

    def __init__(
        self,
        store: Store,
        steps: Steps,
        meter: Meter,
        clock: Clock,
        ping: Callable[[str], Awaitable[bool]],
        breakers: Breakers,
    ) -> None:
        self._store = store
        self._steps = steps
        self._meter = meter
        self._clock = clock
        self._ping = ping
        self._breakers = breakers
        self.constraints_now = False
        """Deferred constraints are checked behind each run, since one was broken at a commit."""

    async def settle(self, batch: Batch, bound: BoundProjection, error: Exception) -> frozenset[Partition]:
        """Search until every event has its end. Raises DependencyError, OwnershipLost and FatalError, which are none.

        Gives the partitions that are ours no more.
        """
        search = self._search(bound)
        if isinstance(error, ConflictsFound):
            search.found_conflicts(error.events)
        elif isinstance(error, TooManyWait):
            search.found_too_many(error.events)
        else:
            search.failed_whole(await self._decision(bound, error), error, batch.events)
        asked: set[int] = set()
        while True:
            await self._rest(bound, search)
            if not await self._admitted(batch, bound, search, asked):
                search, asked = self._search(bound), set[int]()
            attempt = await self._pass(batch, bound, search)
            if attempt is not None:
                break
        self._steps.confirm(attempt)
        if not asked:
            self._breakers.fine(bound.name, sum(len(result.admitted.fresh) for result in attempt.results))
        return attempt.lost

    def _search(self, bound: BoundProjection) -> Search:
        return Search(bound.name, bound.projection.policy, bound.projection.deadline_s, self._clock)

    async def _rest(self, bound: BoundProjection, search: Search) -> None:
        """Tell what is tried again, and wait as long as that takes."""
        for event, error, attempts, delay_s, decision in search.again:
            self._meter.retried(bound.name, 1)
            report_retry(event, bound.name, PROJECTION, error, attempts, delay_s, decision)
        if search.delay_s is not None:
            await asyncio.sleep(search.delay_s)

    async def _admitted(self, batch: Batch, bound: BoundProjection, search: Search, asked: set[int]) -> bool:
        """Ask before letters are written, once for each that died and at the first time for the whole batch.

        Where some find no room in the queue, the batch waits as for that: a try would find the queue as it was.
        """
        fates = search.known().fates
        died = {number for number, fate in fates.items() if isinstance(fate, Died)}
        new = died - asked
        if not new:
            return True
        events = [id(event) for event in batch.events]
        outcomes = tuple(number in died for number in events) if not asked else (True,) * len(new)
        asked |= died
        if any(fates[number] == TOO_MANY for number in new):
            if not self._breakers.admits_if_closed(bound.name, outcomes):
                raise no_room(bound)
            return True
        return await self._breakers.admits(bound.name, outcomes)

    async def _pass(self, batch: Batch, bound: BoundProjection, search: Search) -> Attempt | None:
        """One pass: committed where it is given back."""
        attempt = Attempt(batch, alone=True)
        try:
            async with self._store.transaction(Writes.VERDICTS, bound.name) as conn:
                await self._steps.open(conn, attempt, [bound], search.known())
                admitted = await self._steps.admit(conn, attempt, bound)
                if admitted.conflicts:
                    raise ConflictsFound(admitted)
                started = time.perf_counter()
                search.begin(admitted.fresh)
                projected = await self._try_pieces(conn, bound, search)
                if not search.is_settled:
                    raise _Unsettled
                attempt.share(bound).verdicts = search.known()
                attempt.results.append(Result(bound, admitted, projected, time.perf_counter() - started))
                await self._steps.close(conn, attempt)
        except _Unsettled:
            return None
        except ConflictsFound as conflicts:
            search.found_conflicts(conflicts.events)
            return None
        except TooManyWait as found:
            search.found_too_many(found.events)
            return None
        except STORE_ERRORS as error:
            if self.constraints_now or classify(error) is not Fault.DATA:
                raise
            self.constraints_now = True
            return None
        return attempt

    async def _try_pieces(self, conn: AsyncConnection, bound: BoundProjection, search: Search) -> Projected:
        """Good pieces stay, so that later events meet what earlier ones wrote; a bad one is undone.

        The connection goes with a piece that ran past its deadline inside a statement, the whole transaction with one
        that hid an error of the database: then the pass is over.
        """
        outgoing: list[NewOutgoing] = []
        stale = 0
        while (piece := search.next()) is not None:
            savepoint = await conn.begin_nested()
            try:
                projected = await bound.run(piece, conn, constraints_now=self.constraints_now)
            except HandlerRaised as raised:
                is_over = conn.invalidated
                if not is_over:
                    await savepoint.rollback()
                search.failed(await self._decision(bound, raised.error), raised.error)
                if is_over:
                    raise _Unsettled from raised
                continue
            try:
                await savepoint.commit()
            except DBAPIError as error:
                search.failed(await self._decision(bound, hidden(error)), hidden(error))
                raise _Unsettled from error
            search.went_well()
            outgoing += projected.outgoing
            stale += projected.stale
        return Projected(outgoing, stale)

    async def _decision(self, bound: BoundProjection, error: Exception) -> Decision:
        """What the error means for its events; what it means for the process goes out."""
        decision = decide(error, classify, bound.projection.policy.rules, self._clock.now())
        if isinstance(decision, Fatal):
            raise fatal_by(decision, error)
        if isinstance(decision, Lost):
            raise OwnershipLost from error
        if isinstance(decision, DependencyAway):
            if not await self._ping(decision.name):
                raise DependencyError(decision.name, "it does not answer") from error
            return Transient(because=decision.because, led_by=decision.led_by)
        if may_be_an_outage(error, decision, classify) and not await self._ping(DATABASE):
            raise DependencyError(DATABASE, "it does not answer") from error
        return decision
