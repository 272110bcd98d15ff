"""Applies batches to projections: claims, writes, outbox rows and checkpoints in one transaction, or nothing of it.

The transaction takes the steps of the one lock order: fence, (lanes of what is dead), generation lock, probe, then for
each projection claims and the user's tables, then failure rows, outbox, checkpoints. What if the process stops between
two lines? Everything before the commit is undone by the database, and the records are read again from the checkpoints.
What if the answer to the commit is lost? The batch is applied again: its claims are all taken, its checkpoints stand
where this batch put them, and that is recognised as done. What if this worker is a zombie? Its fence row does not come
back, and nothing is written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ..dlq.burial import Burial, Buried, letters_of
from ..dlq.failure_text import exception_type
from ..dlq.guard import HandlerRaised
from ..dlq.reporting import PROJECTION, report_dead, report_retry
from ..dlq.retry import RetryPolicy, RetryState
from ..dlq.rules import Decision, DependencyAway, Fatal, Lost, Transient, decide
from ..inbox import checkpoint, claim, failure, fence, outbox
from ..inbox.clock import Clock
from ..inbox.errors import DependencyError, FatalError, OwnershipLost
from ..inbox.event import Event, Partition
from ..inbox.failure_rows import Place
from ..inbox.failure_rows import linked as linked_row
from ..inbox.faults import Fault, classify
from ..inbox.holding import Holdings
from ..inbox.meter import Meter
from ..inbox.moving import Points, behind, judge, raise_checkpoints
from ..inbox.outcome import Reason
from ..inbox.store import STORE_ERRORS, Store
from .attempt import Attempt, Result
from .batch import Batch, BoundProjection
from .verdicts import NO_VERDICTS, Admitted, Search, Verdicts, admit, pieces_of


class ConflictsFound(Exception):
    """The batch holds events whose id was claimed with other bytes: their lanes must be locked before the claims."""

    def __init__(self, events: Sequence[Event[Any]]) -> None:
        self.events = tuple(events)
        super().__init__()


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
        retry: RetryPolicy | None = None,
    ) -> None:
        self._store = store
        self._tables = store.tables
        self._consumer = consumer
        self._projections = sorted(projections, key=lambda bound: bound.key)
        self._holdings = holdings
        self._burial = burial
        self._meter = meter
        self._clock = clock
        self._ping = ping
        self._wrote_outbox = wrote_outbox
        self._retry = retry or RetryPolicy()
        self._optimistic = True
        self._constraints_now = False
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
                if self._constraints_now or classify(error) is not Fault.DATA:
                    raise
                self._constraints_now = True  # only a deferred constraint is refused at the commit
                lost, failed = await self._together(batch)
            for bound, error in failed:
                lost |= await self._settle(batch, bound, error)
        return lost

    # ------------------------------------------------------------------------------------------------ all together

    async def _together(self, batch: Batch) -> tuple[frozenset[Partition], list[tuple[BoundProjection, Exception]]]:
        """One transaction for all. A projection that takes the connection with it leaves, and the others go again."""
        failed: list[tuple[BoundProjection, Exception]] = []
        staying = self._projections
        while staying:
            attempt = Attempt(batch, alone=len(self._projections) == 1)
            try:
                await self._transact(attempt, staying)
            except _Left as left:
                failed.append((left.bound, left.error))
                staying = [bound for bound in staying if bound is not left.bound]
                continue
            self._confirm(attempt)
            return attempt.lost, failed + attempt.failed
        return frozenset(), failed

    async def _transact(self, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Steps 1 to 8. Raises _Left where a projection's failure undoes everything."""
        async with self._store.transaction() as conn:
            await self._hold(conn, attempt, projections)
            await self._probe(conn, attempt, projections)
            for bound in projections:
                await self._savepoint(conn, attempt, bound)
            await self._close(conn, attempt)

    async def _savepoint(self, conn: AsyncConnection, attempt: Attempt, bound: BoundProjection) -> None:
        """One projection's part. Alone it needs no savepoint: its failure undoes the whole transaction."""
        savepoint = None if attempt.alone else await conn.begin_nested()
        try:
            await self._project(conn, attempt, bound, NO_VERDICTS)
        except (HandlerRaised, ConflictsFound) as stopped:
            error = stopped.error if isinstance(stopped, HandlerRaised) else stopped
            if savepoint is None or conn.invalidated:
                raise _Left(bound, error) from error
            await savepoint.rollback()
            attempt.failed.append((bound, error))
            attempt.forget(bound)
            return
        if savepoint is not None:
            await savepoint.commit()

    # ------------------------------------------------------------------------------------------------- the pieces

    async def _hold(self, conn: AsyncConnection, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Step 1: who may write, and what that leaves of the batch for each projection."""
        fences = self._holdings.fences(attempt.batch.partitions)
        held = await fence.hold(conn, self._tables, self._consumer, fences)
        attempt.holdings = {
            partition: holding
            for partition, epoch in attempt.batch.partitions.items()
            if partition in held and (holding := self._holdings.current(partition, epoch)) is not None
        }
        attempt.lost = frozenset(attempt.batch.partitions) - frozenset(attempt.holdings)
        attempt.events = {bound.key: attempt.batch.events_of(bound, attempt.holdings) for bound in projections}

    async def _probe(self, conn: AsyncConnection, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Step 3: what stands in the failure table already."""
        generations = await claim.lock_generations(conn, self._tables, [bound.handler_id for bound in projections])
        if generations.failing:
            ids = {event.event_id for events in attempt.events.values() for event in events}
            keys = [bound.key for bound in projections]
            attempt.known = await claim.probe(conn, self._tables, keys, sorted(ids), generations, newest=False)

    async def _project(
        self, conn: AsyncConnection, attempt: Attempt, bound: BoundProjection, verdicts: Verdicts
    ) -> None:
        """Steps 4 and 5: claims, then the user's function on what is new."""
        admitted = await self._admit(conn, attempt, bound, verdicts)
        if admitted.conflicts:
            raise ConflictsFound(admitted.conflicts)
        started = time.perf_counter()
        published: list[outbox.NewOutgoing] = []
        for piece in pieces_of(admitted.fresh, verdicts.starts):
            published += await bound.run(piece, conn, constraints_now=self._constraints_now)
        attempt.results.append(Result(bound, admitted, published, time.perf_counter() - started))

    async def _admit(
        self, conn: AsyncConnection, attempt: Attempt, bound: BoundProjection, verdicts: Verdicts
    ) -> Admitted:
        admitted = admit(attempt.events[bound.key], attempt.known, bound.key, verdicts.dead)
        rows = sorted([(event.event_id, event.payload_hash) for event in admitted.fresh])
        if rows:
            claimed = await claim.claim(conn, self._tables, *bound.key, rows, optimistic=self._optimistic)
            self._optimistic = claimed.new is None  # repeats come in runs: ask for each id until a batch has none
            if claimed.new is not None:
                admitted.sort_out(claimed.new, claimed.taken)
        admitted.judge_rest()
        return admitted

    async def _close(self, conn: AsyncConnection, attempt: Attempt) -> None:
        """Steps 6 to 8: rows of repeats, records to go out, checkpoints."""
        await self._link(conn, attempt)
        attempt.outgoing += [record for result in attempt.results for record in result.published]
        await outbox.put(conn, self._tables, attempt.outgoing)
        attempt.moves = [
            move for result in attempt.results for move in attempt.batch.moves(result.bound, attempt.holdings)
        ]
        judge(await checkpoint.move(conn, self._tables, attempt.moves), len(attempt.moves))

    async def _link(self, conn: AsyncConnection, attempt: Attempt) -> None:
        """A repeat of what stands in the failure table is linked to it: visible, not run, ending with it."""
        rows = [
            linked
            for result in attempt.results
            for event in result.admitted.duplicates
            if (linked := self._linked(attempt, result.bound, event)) is not None
        ]
        if rows:
            await failure.link(conn, self._tables, rows)

    def _linked(self, attempt: Attempt, bound: BoundProjection, event: Event[Any]) -> failure.NewFailure | None:
        original = attempt.buried.get((bound.key, event.event_id))
        if original is None:
            found = attempt.known.failures.get(claim.ClaimKey(*bound.key, event.event_id), ())
            same = [row for row in found if row.payload_hash == event.payload_hash]
            if not same or any(_is_at(row, event) for row in found):
                return None
            original = same[0].duplicate_of or same[0].failure_id
        incarnation = attempt.holdings[Partition(event.topic, event.partition)].incarnation
        return linked_row(Place(*bound.key, incarnation), event, original, now=self._clock.now())

    def _confirm(self, attempt: Attempt) -> None:
        """The commit was answered: from here on the checkpoints are what we remember."""
        for move in attempt.moves:
            holding = attempt.holdings[Partition(move.topic, move.partition)]
            holding.checkpoints[(move.handler_id, move.version)] = move.new
        if attempt.outgoing:
            self._wrote_outbox()
        for result in attempt.results:
            self._meter.handled(result.bound.name, len(result.admitted.fresh), result.seconds)
            if result.admitted.duplicates:
                self._meter.duplicates(result.bound.name, len(result.admitted.duplicates))

    # ---------------------------------------------------------------------------------- one projection that failed

    async def _settle(self, batch: Batch, bound: BoundProjection, error: Exception) -> frozenset[Partition]:
        """Retry within the policy's bounds, then find the bad events; ends with every event of the batch settled."""
        state = RetryState()
        verdicts = NO_VERDICTS
        while True:
            if isinstance(error, ConflictsFound):
                verdicts = verdicts.with_conflicts(error.events)
            else:
                state, verdicts = await self._after_failure(batch, bound, error, state, verdicts)
            try:
                return await self._alone(batch, bound, verdicts)
            except HandlerRaised as raised:
                error = raised.error
            except ConflictsFound as conflicts:
                error = conflicts

    async def _after_failure(
        self, batch: Batch, bound: BoundProjection, error: Exception, state: RetryState, verdicts: Verdicts
    ) -> tuple[RetryState, Verdicts]:
        """Wait before another try, or find out which events no try will help."""
        if not isinstance(await self._decision(error), Transient):
            return state, await self._bisect(batch, bound, Search(verdicts, state.attempts_total + 1, patient=True))
        state = state.failed(exception_type(error), self._clock.monotonic_s())
        delay_s = self._retry.next_delay_s(state, self._clock.random())
        if delay_s is None:
            search = Search(verdicts, state.attempts_total, patient=False)
            return RetryState(), await self._bisect(batch, bound, search)
        self._meter.retried(bound.name, 1)
        first = next(event for stretch in batch.stretches for event in stretch.events)
        report_retry(first, bound.name, PROJECTION, error, state.attempts_total, delay_s)
        await asyncio.sleep(delay_s)
        return state, verdicts

    async def _decision(self, error: Exception) -> Decision:
        decision = decide(error, classify)
        if isinstance(decision, Fatal):
            raise error if isinstance(error, FatalError) else FatalError(str(error), fix="see the error above")
        if isinstance(decision, Lost):
            raise OwnershipLost from error
        if isinstance(decision, DependencyAway):
            if not await self._ping(decision.name):
                raise DependencyError(decision.name, "it does not answer") from error
            return Transient()
        return decision

    async def _alone(self, batch: Batch, bound: BoundProjection, verdicts: Verdicts) -> frozenset[Partition]:
        """The projection's own transaction, with the dead events' rows and letters in it (steps 1 to 8)."""
        attempt = Attempt(batch, alone=True)
        async with self._store.transaction() as conn:
            await self._hold(conn, attempt, [bound])
            dead = [event for event in attempt.events[bound.key] if id(event) in verdicts.dead]
            buried = [self._bury(attempt, bound, event, verdicts) for event in dead]
            places = await failure.draw_places(conn, self._tables, [row for row, _ in buried])
            await self._probe(conn, attempt, [bound])
            await self._project(conn, attempt, bound, verdicts)
            puts = await failure.put(conn, self._tables, [row for row, _ in buried], places)
            attempt.outgoing += letters_of(puts, buried)
            attempt.buried = {
                (bound.key, event.event_id): put.id
                for event, put in zip(dead, puts, strict=True)
                if verdicts.dead[id(event)].reason is not Reason.CONFLICT
            }
            await self._close(conn, attempt)
        self._confirm(attempt)
        for event in dead:
            self._meter.dead(bound.name, verdicts.dead[id(event)].reason, 1)
            report_dead(event, bound.name, PROJECTION, verdicts.dead[id(event)])
        return attempt.lost

    def _bury(self, attempt: Attempt, bound: BoundProjection, event: Event[Any], verdicts: Verdicts) -> Buried:
        incarnation = attempt.holdings[Partition(event.topic, event.partition)].incarnation
        place = Place(*bound.key, incarnation)
        attempts = verdicts.attempts.get(id(event), 1)
        return self._burial.bury(place, bound.name, event, verdicts.dead[id(event)], attempts=attempts)

    async def _bisect(self, batch: Batch, bound: BoundProjection, search: Search) -> Verdicts:
        """Find the events that fail, in transactions that end in rollback."""
        while True:
            attempt = Attempt(batch, alone=True)
            async with self._store.trial() as conn:
                await self._hold(conn, attempt, [bound])
                await self._probe(conn, attempt, [bound])
                admitted = await self._admit(conn, attempt, bound, Verdicts(search.dead))
                search.begin(admitted.fresh)
                if await self._try_pieces(conn, bound, search):
                    return search.verdicts()

    async def _try_pieces(self, conn: AsyncConnection, bound: BoundProjection, search: Search) -> bool:
        """Good pieces stay in the trial, so that later events meet what earlier ones wrote; a bad one is halved.

        False: the connection went with a failed piece (it ran past its deadline inside a statement); try again.
        """
        place = 0
        while place < len(search.pieces):
            piece = search.pieces[place]
            savepoint = await conn.begin_nested()
            try:
                await bound.run(piece, conn, constraints_now=self._constraints_now)
            except HandlerRaised as raised:
                is_over = conn.invalidated
                if not is_over:
                    await savepoint.rollback()
                decision = await self._decision(raised.error) if len(piece) == 1 else None
                place = search.failed(place, decision, raised.error)
                if is_over:
                    return False
                continue
            await savepoint.commit()
            place += 1
        return True


class _Left(Exception):
    """A projection's failure that undid the whole transaction."""

    def __init__(self, bound: BoundProjection, error: Exception) -> None:
        self.bound = bound
        self.error = error
        super().__init__(f"{bound.name!r} failed")


def _is_at(row: claim.FailureFound, event: Event[Any]) -> bool:
    return (*row.partition, row.offset) == (event.topic, event.partition, event.offset)
