"""Runs command handlers: attempts, bounded retries, and what their end means. Order is the engine's, durability the
completer's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.failure_text import dead as dead_outcome
from ...dlq.failure_text import exception_type
from ...dlq.guard import HandlerRaised, Raised, contained_call, guarded
from ...dlq.reporting import COMMAND, report_retry
from ...dlq.retry import RetryPolicy, RetryState
from ...dlq.rules import DATABASE, DeadNow, Decision, DependencyAway, Fatal, Lost, Transient, decide
from ...inbox import claim, outbox
from ...inbox.clock import Clock
from ...inbox.errors import FatalError, OwnershipLost
from ...inbox.event import Event
from ...inbox.faults import Fault, classify
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
from .repeats import CONFLICT, InFlight, standing
from .transaction import LazyTx, TxPoolFullError
from .watching import Running


@dataclass(frozen=True, slots=True)
class BoundCommand:
    """A command with its handler id in the database."""

    command: Command
    handler_id: int


ENDED_ITSELF: Final = Dead(
    Reason.REJECTED, "the handler ended the transaction of ctx.tx itself: leave commit and rollback to the framework"
)

T = TypeVar("T")
Finish = Callable[[AsyncConnection], Awaitable[None]]
"""Ends a row of the slow way in the transaction that claims its event."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the attempts ended. `claimed`: the claim is durable; as a `repeat` it is another transaction's."""

    outgoing: tuple[outbox.NewOutgoing, ...] = ()
    dead: Dead | None = None
    claimed: bool = False
    repeat: bool = False
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
        self.in_flight = InFlight()

    def make(self, bound: BoundCommand, item: LaneItem) -> object | NothingToDo | None:
        """Ask the trigger at once, so that an event with nothing to do costs no task: it goes to its claim directly.

        None where that has to wait (an id that is in flight or was seen before) or goes wrong (the attempt will tell).
        """
        key = (bound.handler_id, item.event.event_id)
        if item.event.is_tombstone or not self.in_flight.is_free(key):
            return None
        outcome = contained_call(bound.command.trigger, item.event)
        if isinstance(outcome, Raised):
            return None
        if outcome.value is None:
            leave = self.in_flight.enter_free(key)
            self._completer.add(Completion(bound.command.name, bound.handler_id, item, skipped=True, landed=leave))
            return NothingToDo()
        return outcome.value

    async def run(self, bound: BoundCommand, item: LaneItem, made: object | None = None) -> None:
        """Handle one event to its end, then hand it to the completer. Losing the partition is no failure.

        `made` is what the trigger made of it already.
        """
        name = bound.command.name
        leave, ask = await self.in_flight.enter((bound.handler_id, item.event.event_id))
        started = time.perf_counter()
        try:
            ended = await self._known(bound, item.event) if ask else None
            ended, attempts = (ended, 1) if ended is not None else await self._until_ended(bound, item, made=made)
        except OwnershipLost:
            leave()
            self._meter.lost(1)
            self._lost(item)
            return
        finally:
            self._returned(name)
        seconds = time.perf_counter() - started
        self._completer.add(
            Completion(
                name, bound.handler_id, item, ended.outgoing, ended.dead, attempts,
                ended.claimed, ended.repeat, ended.skipped, seconds, leave,
            )
        )  # fmt: skip

    async def _known(self, bound: BoundCommand, event: Event[Any]) -> Ended | None:
        """What the inbox says of an id that was seen before; None where it is still to be handled."""
        key = claim.ClaimKey(bound.handler_id, COMMAND_VERSION, event.event_id)
        while True:
            try:
                async with self._store.transaction() as conn:
                    found = await claim.probe(conn, self._store.tables, [key[:2]], [event.event_id])
                break
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                await self._dependencies.wait(DATABASE)
        if key in found.failures:
            return Ended(dead=standing(event.payload_hash, found.failures[key]))
        if key not in found.claims:
            return None
        if found.claims[key] != event.payload_hash:
            return Ended(dead=CONFLICT)
        return Ended(claimed=True, repeat=True)

    async def settle(
        self, bound: BoundCommand, holding: Holding, event: Event[Any], finish: Finish, row_id: int
    ) -> tuple[Ended, int]:
        """The same for a row of the slow way: `finish` runs in the handler's own transaction, where it has one."""
        item = LaneItem(holding.partition, holding.epoch, event.offset, event)
        return await self._until_ended(bound, item, finish, row_id)

    async def _until_ended(
        self,
        bound: BoundCommand,
        item: LaneItem,
        finish: Finish | None = None,
        row_id: int = 0,
        made: object | None = None,
    ) -> tuple[Ended, int]:
        number = 0

        async def attempt() -> Ended:
            nonlocal number
            number += 1
            return await self._attempt(bound, item, number, finish, row_id, made)

        dead, attempts, ended = await self.until_decided(
            bound.command.name, attempt, item.event, bound.command.policy.retry
        )
        if dead is not None:
            return Ended(dead=dead), attempts
        assert ended is not None, "an attempt ends with a value or with an error"
        return ended, attempts

    async def until_decided(
        self,
        name: str,
        attempt: Callable[[], Awaitable[T]],
        event: Event[Any],
        policy: RetryPolicy,
        kind: str = COMMAND,
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
            report_retry(event, name, kind, error, state.attempts_total, delay_s)
            await asyncio.sleep(delay_s)

    async def _decision(self, error: Exception) -> Transient | DeadNow | None:
        """What the error means; None: it had to wait (for a dependency, for a connection), no attempt counted."""
        if isinstance(error, TxPoolFullError):
            return None
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
        self, bound: BoundCommand, item: LaneItem, number: int, finish: Finish | None, row_id: int, made: object | None
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
            outcome = await guarded(self._mediator.carry_out(bound.command, context, made), bound.command.deadline_s)
        await tx.seal()
        if isinstance(outcome, Raised):
            await tx.close(outcome.error)
            raise HandlerRaised(outcome.error)
        outgoing = tuple(publication.outgoing)
        if tx.opened is None:
            return Ended(outgoing, skipped=isinstance(outcome.value, NothingToDo))
        if tx.ended_by_handler:
            await tx.opened.rollback()
            await tx.close()
            return Ended(dead=ENDED_ITSELF)
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
        conn, tables, key = tx.opened, self._store.tables, (bound.handler_id, COMMAND_VERSION)
        assert conn is not None, "the handler opened it"
        generations = await claim.lock_generations(conn, tables, [bound.handler_id])
        known = await claim.probe(conn, tables, [key], [event.event_id], generations, newest=False)
        failing = [row for rows in known.failures.values() for row in rows if row.failure_id != row_id]
        mine = [(event.event_id, event.payload_hash)]
        claimed = await claim.claim(conn, tables, *key, mine, optimistic=False)
        if failing or (claimed.new is not None and event.event_id not in claimed.new):
            await conn.rollback()
            if failing:
                return Ended(dead=standing(event.payload_hash, failing))
            if claimed.taken.get(event.event_id, event.payload_hash) != event.payload_hash:
                return Ended(dead=CONFLICT)
            return Ended(claimed=True, repeat=True)
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
