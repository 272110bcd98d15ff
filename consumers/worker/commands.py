"""Runs command handlers: attempts, bounded retries, and what their end means. Order is the engine's, durability the
completer's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.failure_text import dead as dead_outcome
from ...dlq.failure_text import exception_type
from ...dlq.guard import HandlerRaised, Raised, guarded
from ...dlq.retry import RetryPolicy, RetryState
from ...dlq.rules import DeadNow, Decision, DependencyAway, Fatal, Lost, Transient, decide
from ...inbox import claim, outbox
from ...inbox.clock import Clock
from ...inbox.errors import FatalError, OwnershipLost
from ...inbox.event import Event
from ...inbox.faults import classify
from ...inbox.holding import Holding, Holdings
from ...inbox.meter import Meter
from ...inbox.outcome import Dead, Reason
from ...inbox.store import STORE_ERRORS, Store
from ..app import Command
from ..engine.signals import LaneItem
from .completing import COMMAND_VERSION, Completer, Completion
from .dependencies import Dependencies
from .handling import HandlerContext, Mediator, NothingToDo
from .publishing import Encoder, Publication
from .transaction import LazyTx
from .watching import Running


@dataclass(frozen=True, slots=True)
class BoundCommand:
    """A command with its handler id in the database."""

    command: Command
    handler_id: int


CONFLICT = "another record with this event id and different bytes was handled before"

T = TypeVar("T")
Finish = Callable[[AsyncConnection], Awaitable[None]]
"""Ends a row of the slow way in the transaction that claims its event."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the attempts ended. `claimed`: the handler's own transaction claimed the event (or found it claimed)."""

    outgoing: tuple[outbox.NewOutgoing, ...] = ()
    dead: Dead | None = None
    claimed: bool = False
    skipped: bool = False


@final
class CommandRunner:
    """Runs the commands of one consumer. Owned by the event loop.

    `returned(track)` frees a place in the engine; `lost(item)` says that the fence did not come back; `failed(error)`
    ends the worker.
    """

    def __init__(
        self,
        store: Store,
        consumer: str,
        holdings: Holdings,
        mediator: Mediator,
        encoder: Encoder,
        completer: Completer,
        dependencies: Dependencies,
        meter: Meter,
        clock: Clock,
        returned: Callable[[str], None],
        lost: Callable[[LaneItem], None],
        running: Running,
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._holdings = holdings
        self._mediator = mediator
        self._encoder = encoder
        self._completer = completer
        self._dependencies = dependencies
        self._meter = meter
        self._clock = clock
        self._returned = returned
        self._lost = lost
        self._running = running
        self.retry = RetryPolicy()
        self._in_flight: dict[tuple[int, bytes], asyncio.Event] = {}

    async def run(self, bound: BoundCommand, item: LaneItem) -> None:
        """Handle one event to its end, then hand it to the completer. Losing the partition is no failure."""
        name = bound.command.name
        leave = await self._enter(bound, item.event)
        started = time.perf_counter()
        try:
            ended, attempts = await self._until_ended(bound, item)
        except OwnershipLost:
            self._meter.lost(1)
            self._lost(item)
            return
        finally:
            leave()
            self._returned(name)
        self._count(name, ended, time.perf_counter() - started)
        self._completer.add(
            Completion(name, bound.handler_id, item, ended.outgoing, ended.dead, attempts, claimed=ended.claimed)
        )

    async def _enter(self, bound: BoundCommand, event: Event[Any]) -> Callable[[], None]:
        """An id that is in flight in this process holds its repeat back until it is decided."""
        key = (bound.handler_id, event.event_id)
        while (other := self._in_flight.get(key)) is not None:
            await other.wait()
        mine = self._in_flight[key] = asyncio.Event()

        def leave() -> None:
            del self._in_flight[key]
            mine.set()

        return leave

    async def settle(
        self, bound: BoundCommand, holding: Holding, event: Event[Any], finish: Finish, row_id: int
    ) -> tuple[Ended, int]:
        """The same for a row of the slow way: `finish` runs in the handler's own transaction, where it has one."""
        item = LaneItem(holding.partition, holding.epoch, event.offset, event)
        return await self._until_ended(bound, item, finish, row_id)

    async def _until_ended(
        self, bound: BoundCommand, item: LaneItem, finish: Finish | None = None, row_id: int = 0
    ) -> tuple[Ended, int]:
        number = 0

        async def attempt() -> Ended:
            nonlocal number
            number += 1
            return await self._attempt(bound, item, number, finish, row_id)

        dead, attempts, ended = await self.until_decided(bound.command.name, attempt, item.event, bound.command.retry)
        if dead is not None:
            return Ended(dead=dead), attempts
        assert ended is not None, "an attempt ends with a value or with an error"
        return ended, attempts

    async def until_decided(
        self, name: str, attempt: Callable[[], Awaitable[T]], event: Event[Any], policy: RetryPolicy
    ) -> tuple[Dead | None, int, T | None]:
        """Attempt until it comes back, or until no further attempt is due: (why it is dead, attempts, the value).

        A dependency that is away costs no attempt. Raises OwnershipLost and FatalError.
        """
        state = RetryState()
        while True:
            try:
                return None, state.attempts_total + 1, await attempt()
            except HandlerRaised as raised:
                error = raised.error
            except STORE_ERRORS as store_error:
                error = store_error
            decision = await self._decision(error)
            if decision is None:
                continue
            if isinstance(decision, DeadNow):
                return dead_outcome(decision.reason, error, event.record), state.attempts_total + 1, None
            state = state.failed(exception_type(error), self._clock.monotonic_s())
            delay_s = policy.next_delay_s(state, self._clock.random())
            if delay_s is None:
                return dead_outcome(decision.exhausted, error, event.record), state.attempts_total, None
            self._meter.retried(name, 1)
            await asyncio.sleep(delay_s)

    async def _decision(self, error: Exception) -> Transient | DeadNow | None:
        """What the error means; None: a dependency was away and is back, no attempt counted."""
        decision: Decision = decide(error, classify)
        if isinstance(decision, Fatal):
            raise error if isinstance(error, FatalError) else FatalError(str(error), fix="see the error above")
        if isinstance(decision, Lost):
            raise OwnershipLost from error
        if isinstance(decision, DependencyAway):
            if await self._dependencies.answers(decision.name):
                return Transient()
            await self._dependencies.wait(decision.name)
            return None
        return decision

    async def _attempt(
        self, bound: BoundCommand, item: LaneItem, number: int, finish: Finish | None, row_id: int
    ) -> Ended:
        """One attempt. Raises HandlerRaised with what the user's function raised, or what the database did."""
        event = item.event
        if event.is_tombstone:
            return Ended(dead=Dead(Reason.TOMBSTONE, "a tombstone says that its key is gone: there is nothing to do"))
        holding = self._holding(item)
        tx = LazyTx(self._store, self._consumer, item.partition, holding.fence_epoch)
        publication = Publication(self._encoder, bound.command.name, event)
        context = HandlerContext(event, number, tx, publication)
        with self._running.handling(bound.command.name, event):
            outcome = await guarded(self._mediator.carry_out(bound.command, context), bound.command.deadline_s)
        if isinstance(outcome, Raised):
            await tx.close(outcome.error)
            raise HandlerRaised(outcome.error)
        outgoing = tuple(publication.outgoing)
        if tx.opened is None:
            return Ended(outgoing, skipped=isinstance(outcome.value, NothingToDo))
        try:
            ended = await self._complete_in(tx, bound, event, outgoing, finish, row_id)
        except BaseException as error:
            await tx.close(error)
            raise
        await tx.close()
        return ended

    async def _complete_in(
        self,
        tx: LazyTx,
        bound: BoundCommand,
        event: Event[Any],
        outgoing: tuple[outbox.NewOutgoing, ...],
        finish: Finish | None,
        row_id: int,
    ) -> Ended:
        """Claim and outbox rows in the handler's transaction (steps 3, 4, 6, 7); a repeat undoes what it wrote."""
        conn, tables, key = await tx.connection(), self._store.tables, (bound.handler_id, COMMAND_VERSION)
        generations = await claim.lock_generations(conn, tables, [bound.handler_id])
        known = await claim.probe(conn, tables, [key], [event.event_id], generations, newest=False)
        failing = [row for rows in known.failures.values() for row in rows if row.failure_id != row_id]
        mine = [(event.event_id, event.payload_hash)]
        claimed = await claim.claim(conn, tables, *key, mine, optimistic=False)
        if failing or (claimed.new is not None and event.event_id not in claimed.new):
            await conn.rollback()
            if claimed.taken.get(event.event_id, event.payload_hash) != event.payload_hash:
                return Ended(dead=Dead(Reason.CONFLICT, CONFLICT))
            self._meter.duplicates(bound.command.name, 1)
            return Ended(claimed=True)
        if finish is not None:
            await finish(conn)
        await outbox.put(conn, tables, list(outgoing))
        await tx.commit()
        return Ended(outgoing, claimed=True)

    def _holding(self, item: LaneItem) -> Holding:
        holding = self._holdings.current(item.partition, item.epoch)
        if holding is None:
            raise OwnershipLost(f"{item.partition} is not ours any more")
        return holding

    def _count(self, name: str, ended: Ended, seconds: float) -> None:
        if ended.dead is not None:
            self._meter.dead(name, ended.dead.reason, 1)
        elif ended.skipped:
            self._meter.skipped(name, 1)
        else:
            self._meter.handled(name, 1, seconds)
