"""Runs command handlers: attempts, bounded retries, and what their end means. Order is the engine's, durability the
completer's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.breakers import DeadBreakers
from ...dlq.fates import BEHIND, REVIEW, ForReview, Later
from ...dlq.guard import HandlerRaised, Raised, contained_call, guarded
from ...dlq.outcomes import outcome_of
from ...dlq.reporting import COMMAND, report_skipped
from ...dlq.retry import RetryState
from ...dlq.rules import DATABASE
from ...inbox import claim, outbox
from ...inbox.clock import Clock
from ...inbox.errors import FatalError, OwnershipLost, RetryLater
from ...inbox.event import Event
from ...inbox.failure_rows import Verdict
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holding, Holdings
from ...inbox.meter import Meter
from ...inbox.outcome import Dead, Reason, Retry, Skipped, Unknown
from ...inbox.points import Point, reach
from ...inbox.store import STORE_ERRORS, Store
from ..app import Command
from ..engine.signals import LaneItem
from .attempts import Attempts, Subject
from .completing import Completer
from .completion import COMMAND_VERSION, Completion, Fate, conflict_fate
from .dependencies import Dependencies
from .effects import Effects
from .handling import HandlerContext, Mediator, NothingToDo
from .parked_keys import Lane, ParkedKeys
from .publishing import Encoder, Publication
from .repeats import CONFLICT, REPEAT, InFlight, standing
from .transaction import LazyTx
from .watching import Running


@dataclass(frozen=True, slots=True)
class BoundCommand:
    """A command with its handler id in the database."""

    command: Command
    handler_id: int


ENDED_ITSELF: Final = Dead(
    Reason.REJECTED, "the handler ended the transaction of ctx.tx itself: leave commit and rollback to the framework"
)

Finish = Callable[[AsyncConnection], Awaitable[None]]
"""Ends a row of the slow way in the transaction that claims its event."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the attempts ended. `claimed`: the claim is durable; as a `repeat` it is another transaction's."""

    outgoing: tuple[outbox.NewOutgoing, ...] = ()
    fate: Fate | None = None
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
        attempts: Attempts,
        effects: Effects,
        breakers: DeadBreakers,
        parked: ParkedKeys,
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
        self._attempts = attempts
        self._effects = effects
        self.breakers = breakers
        self._parked = parked
        self._places: dict[str, asyncio.Semaphore] = {}
        self._returned = returned
        self._lost = lost
        self._running = running
        self.in_flight = InFlight()

    def make(self, bound: BoundCommand, item: LaneItem) -> object | NothingToDo | None:
        """Ask the trigger at once, so that an event with nothing to do costs no task: it goes to its claim directly.
        So does one whose key is parked, to its place in the queue.

        None where that has to wait (an id that is in flight or was seen before) or goes wrong (the attempt will tell).
        """
        if self._parked and self._queues_up(bound, item):
            return NothingToDo()
        key = (bound.handler_id, item.event.event_id)
        if item.event.is_tombstone or not self.in_flight.is_free(key):
            return None
        outcome = contained_call(bound.command.trigger, item.event)
        if isinstance(outcome, Raised):
            return None
        if outcome.value is None:
            leave = self.in_flight.enter_free(key)
            self.breakers.fine(bound.command.name)
            self._completer.add(self._completion(bound, item, Ended(skipped=True), landed=leave))
            return NothingToDo()
        return outcome.value

    def _queues_up(self, bound: BoundCommand, item: LaneItem) -> bool:
        """An earlier event of its key waits: so does this one, behind it."""
        key = item.event.record.key
        if key is None or bound.command.policy.on_failure != "block":
            return False
        if not self._parked.holds(Lane(bound.handler_id, item.partition.topic, key), item.partition, item.offset):
            return False
        wait = Later(BEHIND, self._clock.now())
        self._completer.add(self._completion(bound, item, Ended(fate=wait), attempts=0))
        return True

    @staticmethod
    def _completion(
        bound: BoundCommand, item: LaneItem, ended: Ended, *, attempts: int = 1, seconds: float = 0.0,
        landed: Callable[[], None] | None = None,
    ) -> Completion:  # fmt: skip
        completion = Completion(
            bound.command.name, bound.handler_id, item, bound.command.policy, ended.outgoing, ended.fate, attempts,
            ended.claimed, ended.repeat, ended.skipped, seconds,
        )  # fmt: skip
        return completion if landed is None else replace(completion, landed=landed)

    async def run(self, bound: BoundCommand, item: LaneItem, made: object | None = None) -> None:
        """Handle one event to its end, then hand it to the completer. Losing the partition is no failure.

        `made` is what the trigger made of it already.
        """
        name = bound.command.name
        leave, ask = await self.in_flight.enter((bound.handler_id, item.event.event_id))
        started = time.perf_counter()
        try:
            ended, attempts = await self._until_admitted(bound, item, ask=ask, made=made)
        except OwnershipLost:
            leave()
            self._meter.lost(1)
            self._lost(item)
            return
        finally:
            self._returned(name)
        if ended.fate is not None and ended.fate is not REPEAT and bound.command.policy.on_failure == "stop":
            raise stopped(bound.command.name, item, ended.fate)
        seconds = time.perf_counter() - started
        self._completer.add(self._completion(bound, item, ended, attempts=attempts, seconds=seconds, landed=leave))

    async def _until_admitted(
        self, bound: BoundCommand, item: LaneItem, *, ask: bool, made: object | None
    ) -> tuple[Ended, int]:
        """Its end, once the breaker on dead letters lets it be one: held back, it begins anew."""
        while True:
            ended = await self._known(bound, item.event) if ask else None
            ended, attempts = (ended, 1) if ended is not None else await self._until_ended(bound, item, made=made)
            if not isinstance(ended.fate, Dead) or ended.fate is REPEAT:
                if ended.fate is None:  # told at once: behind a hundred in one group, their order would be lost
                    self.breakers.fine(bound.command.name)
                return ended, attempts
            if await self.breakers.admits(bound.command.name):
                return ended, attempts

    async def _known(self, bound: BoundCommand, event: Event[Any]) -> Ended | None:
        """What the inbox says of an id that was seen before; None where it is still to be handled."""
        key = claim.ClaimKey(bound.handler_id, COMMAND_VERSION, event.event_id)
        while True:
            try:
                async with self._store.look() as conn:
                    found = await claim.probe(conn, self._store.tables, [key[:2]], [event.event_id])
                break
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                await self._dependencies.wait(DATABASE)
        if key in found.failures:
            return Ended(fate=standing(event.payload_hash, found.failures[key]))
        if key not in found.claims:
            return None
        if found.claims[key] != event.payload_hash:
            return Ended(fate=conflict_fate(CONFLICT, bound.command.policy, 0))
        return Ended(claimed=True, repeat=True)

    async def settle(
        self, bound: BoundCommand, holding: Holding, event: Event[Any], finish: Finish, row_id: int, state: RetryState
    ) -> tuple[Ended, int]:
        """The same for a row of the slow way: `finish` runs in the handler's own transaction, where it has one."""
        item = LaneItem(holding.partition, holding.epoch, event.offset, event)
        return await self._until_ended(bound, item, finish, row_id, state=state)

    async def _until_ended(
        self,
        bound: BoundCommand,
        item: LaneItem,
        finish: Finish | None = None,
        row_id: int = 0,
        made: object | None = None,
        state: RetryState | None = None,
    ) -> tuple[Ended, int]:
        command, number = bound.command, state.attempts_total if state is not None else 0

        async def attempt() -> Ended:
            nonlocal number
            number += 1
            return await self._attempt(bound, item, number, finish, row_id, made)

        async with self._place(command):
            settled = await self._attempts.until_settled(
                Subject(command.name, COMMAND, item.event, command.policy), attempt, state
            )
        if settled.value is not None:
            return settled.value, settled.attempts
        if settled.skipped is not None:
            report_skipped(item.event, command.name, COMMAND, settled.skipped, settled.attempts)
            return Ended(skipped=True), settled.attempts
        return Ended(fate=settled.fate), settled.attempts

    def _place(self, command: Command) -> asyncio.Semaphore:
        """The fast way and the slow one share the places of a handler: together they run no more than it declares."""
        place = self._places.get(command.name)
        if place is None:
            place = self._places[command.name] = asyncio.Semaphore(command.concurrency)
        return place

    async def _attempt(
        self, bound: BoundCommand, item: LaneItem, number: int, finish: Finish | None, row_id: int, made: object | None
    ) -> Ended:
        """One attempt. Raises HandlerRaised with what the user's function raised, or what the database did."""
        event = item.event
        if event.is_tombstone:
            return Ended(fate=Dead(Reason.TOMBSTONE, "a tombstone says that its key is gone: there is nothing to do"))
        holding = self._holding(item)
        desk = self._effects.desk(bound.command.name, bound.handler_id, event, holding)
        tx = LazyTx(self._store, self._consumer, item.partition, holding.fence_epoch, desk.before_tx)
        desk.watch(tx)
        publication = Publication(self._encoder, bound.command.name, event)
        context = HandlerContext(event, number, tx, publication, desk)
        reach(Point.BEFORE_HANDLER, bound.command.name)
        with self._running.handling(bound.command.name, event):
            handling = self._mediator.carry_out(bound.command, context, made)
            outcome = desk.leave(await guarded(handling, bound.command.deadline_s, desk))
        reach(Point.AFTER_HANDLER, bound.command.name)
        await tx.seal()
        if isinstance(outcome, Raised):
            await tx.close(outcome.error)
            raise HandlerRaised(outcome.error)
        returned = outcome_of(None if isinstance(outcome.value, NothingToDo) else outcome.value, event.record)
        if isinstance(returned, Retry):
            error = RetryLater(returned.why, after_s=returned.after_s)
            await tx.close(error)
            raise HandlerRaised(error)
        if isinstance(returned, Dead | Unknown):
            if tx.opened is not None:
                await tx.opened.rollback()
            await tx.close()
            return Ended(
                fate=returned if isinstance(returned, Dead) else ForReview(Verdict(REVIEW, returned.why), number)
            )
        outgoing = tuple(publication.outgoing)
        skipped = isinstance(outcome.value, NothingToDo) or isinstance(returned, Skipped)
        if tx.opened is None:
            return Ended(outgoing, skipped=skipped)
        if tx.ended_by_handler:
            await tx.opened.rollback()
            await tx.close()
            return Ended(fate=ENDED_ITSELF)
        try:
            ended = await self._complete_in(tx, bound, event, Ended(outgoing, skipped=skipped), finish, row_id)
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
        ended: Ended,
        finish: Finish | None,
        row_id: int,
    ) -> Ended:
        """Claim and outbox rows in the handler's transaction (steps 3, 4, 6, 7); a repeat undoes what it wrote."""
        conn, tables, key = tx.opened, self._store.tables, (bound.handler_id, COMMAND_VERSION)
        assert conn is not None, "the handler opened it"
        generations = await claim.lock_generations(conn, tables, [bound.handler_id], self._store.failing)
        known = await claim.probe(conn, tables, [key], [event.event_id], generations, newest=False)
        failing = [row for rows in known.failures.values() for row in rows if row.failure_id != row_id]
        mine = [(event.event_id, event.payload_hash)]
        claimed = await claim.claim(conn, tables, *key, mine, optimistic=False)
        if failing or (claimed.new is not None and event.event_id not in claimed.new):
            await conn.rollback()
            if failing:
                return Ended(fate=standing(event.payload_hash, failing))
            if claimed.taken.get(event.event_id, event.payload_hash) != event.payload_hash:
                return Ended(fate=conflict_fate(CONFLICT, bound.command.policy, 1))
            return Ended(claimed=True, repeat=True)
        reach(Point.CLAIMED, bound.command.name)
        if finish is not None:
            await finish(conn)
        await outbox.put(conn, tables, list(ended.outgoing))
        await tx.commit()
        return replace(ended, claimed=True)

    def _holding(self, item: LaneItem) -> Holding:
        holding = self._holdings.current(item.partition, item.epoch)
        if holding is None:
            raise OwnershipLost(f"{item.partition} is not ours any more")
        return holding


def stopped(name: str, item: LaneItem, fate: Fate) -> FatalError:
    """Under `on_failure="stop"` nothing is passed: the process leaves, and the event is read again."""
    what = fate.why if isinstance(fate, Dead) else fate.verdict.message
    return FatalError(
        f"{name!r} failed at {item.partition}@{item.offset} ({what}), and declares on_failure='stop'",
        fix="repair the cause and start again: the event was not passed",
    )
