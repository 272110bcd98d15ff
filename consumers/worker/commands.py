"""Runs command handlers: attempts, bounded retries, and what their end means. Order is the engine's, durability the
completer's.

Two ways, one meaning. `take_off` starts a first attempt in a task of the handler's own; where it comes back with plain
success it goes straight to the completer. Everything else (an error, a transaction, an outcome that is no success, a
deadline, an id that was seen before) is `run`'s, which takes a first attempt over where there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, final

from ...dlq.breakers import DeadBreakers
from ...dlq.fates import BEHIND, Later
from ...dlq.guard import (
    Raised,
    Returned,
    contained_call,
    guarded,
    past_deadline,
    result_of,
)
from ...dlq.reporting import COMMAND
from ...dlq.retry import RetryState
from ...dlq.rules import DATABASE
from ...inbox import claim
from ...inbox.clock import Clock
from ...inbox.errors import FatalError, OwnershipLost
from ...inbox.event import Event
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holding, Holdings
from ...inbox.meter import Meter
from ...inbox.outcome import Dead, Reason
from ...inbox.points import Point, reach
from ...inbox.store import STORE_ERRORS, Store
from ..app import Command
from ..engine.signals import LaneItem
from .attempt import Attempt, BoundCommand, Tools
from .attempts import Attempts, Subject
from .completing import Completer
from .completion import COMMAND_VERSION, Completion, Fate, conflict_fate
from .concluding import NOTHING, SUCCESS, Conclusion, Ended, Finish
from .dependencies import Dependencies
from .doubts import Doubts
from .effects import Effects
from .failed_attempts import FailedAttempts, Rested
from .first_attempts import FirstAttempt, FirstAttempts, Spawn
from .handling import HandlerContext, Mediator, NothingToDo
from .parked_keys import Lane, ParkedKeys
from .places import Places, Seat
from .publishing import Encoder
from .repeats import CONFLICT, REPEAT, Flight, InFlight, standing
from .unwritten import Unwritten
from .watching import Running

GONE: Final = Dead(Reason.TOMBSTONE, "a tombstone says that its key is gone: there is nothing to do")


class _Begun(NamedTuple):
    """An attempt that has come back already."""

    attempt: Attempt
    outcome: Returned[object] | Raised
    seated: bool = True
    """It has its place."""


def nobody_waits() -> None:
    """For an event that nothing waits for."""


def nobody_counts(_: int) -> None:
    """For a row of the slow way, of which the engine knows nothing."""


@final
class CommandRunner:
    """Runs the commands of one consumer. Owned by the event loop.

    `returned(track, n)` frees so many places in the engine, -1 takes one again; `lost(item)` says that the fence did
    not come back; `failed(error)` ends the worker.
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
        returned: Callable[[str, int], None],
        lost: Callable[[LaneItem], None],
        failed: Callable[[BaseException], None],
        running: Running,
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._mediator = mediator
        self._conclusion = Conclusion(store)
        self._doubts = Doubts(store, dependencies)
        self._tools = Tools(store, consumer, encoder, effects)
        self._completer = completer
        self._dependencies = dependencies
        self._meter = meter
        self._clock = clock
        self._attempts = attempts
        self.breakers = breakers
        self._parked = parked
        self._places: dict[str, Places] = {}
        self._first: dict[str, FirstAttempts] = {}
        self._returned = returned
        self._lost = lost
        self._failed = failed
        self._running = running
        self._unwritten = Unwritten(completer.add, failed)
        self._failures = FailedAttempts(self, attempts, dependencies, breakers, returned, failed)
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
            self._completer.add(self._completion(bound, item, Ended(skipped=NOTHING), landed=leave))
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
        landed: Callable[[], None] = nobody_waits,
    ) -> Completion:  # fmt: skip
        outgoing, fate, claimed, repeat, skipped = ended
        return Completion(
            bound.command.name, bound.handler_id, item, bound.command.policy, outgoing, fate, attempts, claimed, repeat,
            skipped, seconds, landed,
        )  # fmt: skip

    # ---------------------------------------------------------------------------------------------- the common way

    def take_off(self, bound: BoundCommand, item: LaneItem, made: object | None, spawn: Spawn) -> bool:
        """Start the first attempt at `made`, what the trigger made of the event. False: `run` it instead."""
        command, holding = bound.command, self._holdings.current(item.partition, item.epoch)
        key = (bound.handler_id, item.event.event_id)
        if made is None or holding is None or not self.in_flight.is_free(key) or not self._place(command).take():
            return False
        self._begin(Attempt(self._tools, bound, item, holding, 1), self.in_flight.enter_free(key), made, spawn)
        return True

    def _begin(
        self, attempt: Attempt, flight: Flight, made: object, spawn: Spawn,
        started_s: float | None = None, state: RetryState | None = None,
    ) -> None:  # fmt: skip
        """Run the handler in a task. It has its place."""
        bound, event = attempt.bound, attempt.item.event
        reach(Point.BEFORE_HANDLER, attempt.handler)
        running = self._running.begin(attempt.handler, event)
        handling = self._mediator.first_attempt(bound.command, HandlerContext(event, attempt.number, attempt), made)
        task = asyncio.get_running_loop().create_task(handling)
        first = FirstAttempt(attempt, flight, task, time.perf_counter(), running, started_s, state)
        self._under_way(bound, spawn).add(first)
        task.add_done_callback(partial(self._came_back, first, spawn))

    def _under_way(self, bound: BoundCommand, spawn: Spawn) -> FirstAttempts:
        name, deadline_s = bound.command.name, bound.command.deadline_s
        under_way = self._first.get(name)
        if under_way is None:
            under_way = self._first[name] = FirstAttempts(deadline_s, lambda first: spawn(self._past_deadline(first)))
        return under_way

    def _came_back(self, first: FirstAttempt, spawn: Spawn, task: asyncio.Task[Any]) -> None:
        """A handler came back."""
        if self._first[first.attempt.handler].remove(first):
            self._running.end(first.running)
            reach(Point.AFTER_HANDLER, first.attempt.handler)
            try:
                self._look_at(first, spawn)
            except BaseException as error:  # in a function that the loop calls it would be logged, and all would wait
                self._failed(error)
                raise

    def _look_at(self, first: FirstAttempt, spawn: Spawn) -> None:
        """Nearly always it is success and nothing else, and ends here."""
        attempt, outcome = first.attempt, first.attempt.leave(result_of(first.task))
        if isinstance(outcome, Raised):
            self._failures.add(first, outcome.error, spawn)
            return
        if outcome.value is not None or attempt.opened is not None:
            spawn(self.go_on(first, outcome))
            return
        name = attempt.handler
        self._failures.fine(name)
        self._places[name].give_back()
        self._returned(name, 1)
        completion = self._over(first, Ended(attempt.outgoing) if attempt.outgoing else SUCCESS)
        if endings := attempt.on_their_way:
            self._unwritten.add(endings, completion)
        else:
            self._completer.add(completion)

    def _over(self, first: FirstAttempt, ended: Ended) -> Completion:
        """It was the last attempt, and its place is free."""
        attempt = first.attempt
        seconds = time.perf_counter() - first.started_s
        return self._completion(
            attempt.bound, attempt.item, ended, attempts=attempt.number, seconds=seconds, landed=first.flight
        )

    # ----------------------------------------------------------------------------------------- what failed attempts ask

    def places(self, handler: str) -> Places:
        """Those of a handler that runs."""
        return self._places[handler]

    def over(self, first: FirstAttempt, ended: Ended) -> None:
        """It was the last attempt. It has no place."""
        self._completer.add(self._over(first, ended))

    def begin_again(self, rested: Rested) -> bool:
        """Begin its next attempt, at what the trigger makes anew. It has its place. False: `go_on_later`, without."""
        first, state = rested.first, rested.state
        bound, item = first.attempt.bound, first.attempt.item
        holding = self._holdings.current(item.partition, item.epoch)
        if holding is None:
            return False
        attempt = Attempt(self._tools, bound, item, holding, state.attempts_total + 1)
        made = contained_call(bound.command.trigger, item.event)
        if isinstance(made, Raised) or made.value is None:
            outcome: Returned[object] | Raised = made if isinstance(made, Raised) else Returned[object](NothingToDo())
            begun = _Begun(attempt, attempt.leave(outcome))
            rested.spawn(self._carry_through(bound, item, first.flight, first.started_s, begun=begun, state=state))
        else:
            self._begin(attempt, first.flight, made.value, rested.spawn, first.started_s, state)
        return True

    async def go_on_later(self, rested: Rested) -> None:
        """Its next attempt does not begin as it should."""
        first = rested.first
        bound, item = first.attempt.bound, first.attempt.item
        await self._carry_through(bound, item, first.flight, first.started_s, state=rested.state)

    async def _past_deadline(self, first: FirstAttempt) -> None:
        """A handler did not come back in time."""
        attempt = first.attempt
        try:
            outcome = await past_deadline(first.task, attempt.bound.command.deadline_s, attempt)
        finally:
            self._running.end(first.running)
        await self.go_on(first, attempt.leave(outcome))

    async def go_on(self, first: FirstAttempt, outcome: Returned[object] | Raised, *, seated: bool = True) -> None:
        """What the attempt came to is more than plain success. `seated`: it has its place."""
        bound, item = first.attempt.bound, first.attempt.item
        begun = _Begun(first.attempt, outcome, seated)
        await self._carry_through(bound, item, first.flight, first.started_s, begun=begun, state=first.state)

    async def call_off(self) -> None:
        """The worker stops: first attempts that are under way are cut off, once their calls are over."""
        self._failures.drop()
        await asyncio.gather(*(under_way.call_off() for under_way in self._first.values()))

    # --------------------------------------------------------------------------------------------- every other way

    async def run(self, bound: BoundCommand, item: LaneItem, made: object | None = None) -> None:
        """Handle one event to its end, then hand it to the completer. Losing the partition is no failure.

        `made` is what the trigger made of it already.
        """
        leave, ask = await self.in_flight.enter((bound.handler_id, item.event.event_id))
        await self._carry_through(bound, item, leave, time.perf_counter(), ask=ask, made=made)

    async def _carry_through(
        self, bound: BoundCommand, item: LaneItem, leave: Flight, started: float, *,
        ask: bool = False, made: object | None = None, begun: _Begun | None = None, state: RetryState | None = None,
    ) -> None:  # fmt: skip
        name = bound.command.name
        try:
            ended, attempts = await self._until_admitted(bound, item, ask=ask, made=made, begun=begun, state=state)
        except OwnershipLost:
            leave()
            self._meter.lost(1)
            self._lost(item)
            return
        finally:
            self._returned(name, 1)
        if ended.fate is not None and ended.fate is not REPEAT and bound.command.policy.on_failure == "stop":
            raise stopped(bound.command.name, item, ended.fate)
        seconds = time.perf_counter() - started
        self._completer.add(self._completion(bound, item, ended, attempts=attempts, seconds=seconds, landed=leave))

    async def _until_admitted(
        self, bound: BoundCommand, item: LaneItem, *,
        ask: bool, made: object | None, begun: _Begun | None, state: RetryState | None,
    ) -> tuple[Ended, int]:  # fmt: skip
        """Its end, once the breaker on dead letters lets it be one: held back, it begins anew."""
        while True:
            known = await self._known(bound, item.event) if ask else None
            if known is not None:
                ended, attempts = known, 1
            else:
                left = partial(self._returned, bound.command.name)
                ended, attempts = await self._until_ended(bound, item, made=made, state=state, begun=begun, left=left)
            if not isinstance(ended.fate, Dead) or ended.fate is REPEAT:
                if ended.fate is None:  # told at once: behind a hundred in one group, their order would be lost
                    self.breakers.fine(bound.command.name)
                return ended, attempts
            if await self.breakers.admits(bound.command.name):
                return ended, attempts
            begun = state = None

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
        self, bound: BoundCommand, holding: Holding, event: Event[Any], finish: Finish, state: RetryState
    ) -> tuple[Ended, int]:
        """The same for a row of the slow way: `finish` runs in the handler's own transaction, where it has one."""
        item = LaneItem(holding.partition, holding.epoch, event.offset, event)
        return await self._until_ended(bound, item, finish, state=state)

    async def _until_ended(
        self,
        bound: BoundCommand,
        item: LaneItem,
        finish: Finish | None = None,
        made: object | None = None,
        state: RetryState | None = None,
        begun: _Begun | None = None,
        left: Callable[[int], None] = nobody_counts,
    ) -> tuple[Ended, int]:
        """`begun`: an attempt that has come back. `left`: who else counts places."""
        command, number = bound.command, state.attempts_total if state is not None else 0
        calls_in_doubt = set[int]()

        async def attempt() -> Ended:
            nonlocal number, begun
            number += 1
            if item.event.is_tombstone:
                return Ended(fate=GONE)
            (attempt, outcome, _), begun = begun or await self._attempt(bound, item, number, made), None
            calls_in_doubt.update(attempt.in_doubt)
            return await self._conclusion.conclude(attempt, outcome, finish)

        seat = Seat(self._place(command), left, taken=begun is not None and begun.seated)
        await seat.take()
        try:
            subject = Subject(command.name, COMMAND, item.event, command.policy, seat.rest)
            settled = await self._attempts.until_settled(subject, attempt, state)
        finally:
            seat.leave()
        ended = settled.value or Ended(fate=settled.fate, skipped=settled.skipped)
        if calls_in_doubt and ended.fate is not None and ended.fate is not REPEAT:
            ended = ended._replace(fate=await self._doubts.weigh(ended.fate, calls_in_doubt, settled.attempts))
        return ended, settled.attempts

    def _place(self, command: Command) -> Places:
        """The fast way and the slow one share the places of a handler: together they run no more than it declares."""
        place = self._places.get(command.name)
        if place is None:
            place = self._places[command.name] = Places(command.concurrency)
        return place

    async def _attempt(self, bound: BoundCommand, item: LaneItem, number: int, made: object | None) -> _Begun:
        """One attempt, to where the user's function has come back."""
        event, name = item.event, bound.command.name
        attempt = Attempt(self._tools, bound, item, self._holding(item), number)
        reach(Point.BEFORE_HANDLER, name)
        with self._running.handling(name, event):
            handling = self._mediator.carry_out(bound.command, HandlerContext(event, number, attempt), made)
            outcome = attempt.leave(await guarded(handling, bound.command.deadline_s, attempt))
        reach(Point.AFTER_HANDLER, name)
        return _Begun(attempt, outcome)

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
