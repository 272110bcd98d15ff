"""What attempts raised, and what becomes of it without a task: dead at once, tried again soon, put into the queue.

Nearly all that fail end so, and a task that waits for each would cost more than the attempt. Whatever needs more than
a look (a rule that skips, a person, a call of which nobody knows, a breaker that holds back, a dependency that does not
answer) goes on as a task, with what was raised in hand, and decides anew: nothing was counted or said of it here.

Owned by the event loop. An event that waits, to be looked at or for its next attempt, holds its lane, and its id is in
flight; it has left its place. What if the process stops meanwhile? Nothing of it is written, and it is read again. What
if its partition is lost? Whoever takes it up again notices that, as anybody does who begins an attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, final

from ...dlq.breakers import DeadBreakers
from ...dlq.guard import Raised
from ...dlq.outcomes import dead_by
from ...dlq.reporting import COMMAND
from ...dlq.retry import RetryState
from ...dlq.rules import DeadNow, Decision, Transient
from ...inbox.outcome import Dead
from .attempt import Attempt
from .attempts import Attempts, Subject
from .completion import Fate
from .concluding import Ended
from .dependencies import Dependencies
from .first_attempts import FirstAttempt, Spawn
from .places import Places
from .together import Rests, Together

NEW: Final = RetryState()
"""Of an event that has not failed before."""


@dataclass(slots=True, eq=False)
class FailedAttempt:
    """One that has not been looked at yet; how many others came to a good end behind it.

    It has `left` its place to somebody else, unless too many have or it may have to be carried on.
    """

    first: FirstAttempt
    error: Exception
    spawn: Spawn
    left: bool = False
    fine_behind: int = 0


@dataclass(slots=True, eq=False)
class Rested:
    """An event whose next attempt is due. `first` is the attempt that failed."""

    first: FirstAttempt
    state: RetryState
    spawn: Spawn


class Runner(Protocol):
    """Who runs attempts."""

    def places(self, handler: str) -> Places:
        """The places of a handler that runs."""
        ...

    def over(self, first: FirstAttempt, ended: Ended) -> None:
        """That attempt was the last one. It has no place."""
        ...

    def begin_again(self, rested: Rested) -> bool:
        """Begin the next attempt, for which a place is taken. False: its partition is not ours any more."""
        ...

    def go_on(self, first: FirstAttempt, outcome: Raised, *, seated: bool) -> Coroutine[Any, Any, None]:
        """Decide about the attempt, with time to wait. `seated`: it has its place."""
        ...

    def go_on_later(self, rested: Rested) -> Coroutine[Any, Any, None]:
        """Make the next attempt, or find out that it is not ours to make. It has no place."""
        ...


@final
class FailedAttempts:
    """`returned(handler, n)` frees n places in the engine, -1 takes one again; `failed(error)` ends the worker."""

    def __init__(
        self,
        runner: Runner,
        attempts: Attempts,
        dependencies: Dependencies,
        breakers: DeadBreakers,
        returned: Callable[[str, int], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._runner = runner
        self._attempts = attempts
        self._dependencies = dependencies
        self._breakers = breakers
        self._returned = returned
        self._failed = failed
        self._together = Together(self._look)
        self._rests: Rests[Rested] = Rests(self._wake)
        self._last: dict[str, FailedAttempt] = {}
        self._unseen: Counter[str] = Counter()
        """How many of each handler have left their places, and nothing is decided about them yet."""
        self._dropped = False

    def add(self, first: FirstAttempt, error: Exception, spawn: Spawn) -> None:
        """This attempt came back with an error, and has its place. It leaves that at once, if it can do without."""
        handler = first.attempt.handler
        failed = self._last[handler] = FailedAttempt(first, error, spawn)
        if not _takes_a_task(first.attempt) and self._unseen[handler] < self._runner.places(handler).count:
            self._unseen[handler] += 1
            self._leave(failed)
        self._together.add(failed)
        if not failed.left:  # it holds others up
            self._together.now()

    def fine(self, handler: str) -> None:
        """An attempt came to a good end: the breaker is told in the order of what happened."""
        if (failed := self._last.get(handler)) is not None:
            failed.fine_behind += 1
        else:
            self._breakers.fine(handler)

    def drop(self) -> None:
        """The worker stops: whoever waits is read again."""
        self._dropped = True
        self._together.drop()
        self._rests.drop()

    def _look(self, those: Sequence[FailedAttempt]) -> None:
        """One behind the other."""
        self._last.clear()
        asking: defaultdict[str, list[tuple[FailedAttempt, Decision]]] = defaultdict(list)
        try:
            for failed in those:
                self._look_at(failed, asking)
                if failed.fine_behind:
                    self._breakers.fine(failed.first.attempt.handler, failed.fine_behind)
            for dependency, waiting in asking.items():
                waiting[0][0].spawn(self._ask(dependency, waiting))
        except BaseException as error:  # in a function that the loop calls it would be logged, and all would wait
            self._failed(error)
            raise

    def _look_at(self, failed: FailedAttempt, asking: defaultdict[str, list[tuple[FailedAttempt, Decision]]]) -> None:
        if _takes_a_task(failed.first.attempt):
            self._go_on(failed)
            return
        decision, asks = self._attempts.at_first_sight(_subject(failed.first), failed.error)
        if asks is not None and isinstance(decision, DeadNow | Transient):
            asking[asks].append((failed, decision))
        else:
            self._carry_out(failed, decision if asks is None else None)

    async def _ask(self, dependency: str, those: Sequence[tuple[FailedAttempt, Decision]]) -> None:
        """One question for all whose errors an outage raises too."""
        answers = await self._dependencies.answers(dependency)
        for failed, decision in those:
            self._carry_out(failed, decision if answers else None)

    def _carry_out(self, failed: FailedAttempt, decision: Decision | None) -> None:
        """What is decided; None: it is not yet."""
        if failed.left:
            self._unseen[failed.first.attempt.handler] -= 1
        if decision is None or not self._settle(failed, decision):
            self._go_on(failed)

    def _go_on(self, failed: FailedAttempt) -> None:
        if failed.left:
            self._returned(failed.first.attempt.handler, -1)
        failed.spawn(self._runner.go_on(failed.first, Raised(failed.error), seated=not failed.left))

    def _settle(self, failed: FailedAttempt, decision: Decision) -> bool:
        """Do what the decision says. False: that takes a task."""
        if isinstance(decision, DeadNow):
            return self._end(failed, dead_by(decision, failed.error, failed.first.attempt.event.record))
        return isinstance(decision, Transient) and self._again(failed, decision)

    def _end(self, failed: FailedAttempt, fate: Fate) -> bool:
        handler = failed.first.attempt.handler
        if isinstance(fate, Dead) and not self._breakers.admits_now(handler):
            return False  # held back, it waits as all others do
        self._leave(failed)
        self._runner.over(failed.first, Ended(fate=fate))
        return True

    def _again(self, failed: FailedAttempt, decision: Transient) -> bool:
        first = failed.first
        places = self._runner.places(first.attempt.handler)
        if not places.may_rest():
            return False
        self._leave(failed)
        state, then = self._attempts.again(_subject(first), decision, failed.error, first.state or NEW)
        if not isinstance(then, int | float):
            places.rested()
            return self._end(failed, then)
        self._rests.add(Rested(first, state, failed.spawn), then)
        return True

    def _leave(self, failed: FailedAttempt) -> None:
        """Its place is somebody else's, if it was not before."""
        if not failed.left:
            failed.left, handler = True, failed.first.attempt.handler
            self._runner.places(handler).give_back()
            self._returned(handler, 1)

    def _wake(self, those: Sequence[Rested]) -> None:
        """Each has a place again as soon as one is free: whoever waits for one is nobody's task."""
        try:
            for rested in those:
                handler = rested.first.attempt.handler
                places = self._runner.places(handler)
                places.rested()
                self._returned(handler, -1)
                if places.take():
                    self._begin_again(rested, places)
                else:
                    places.turn().add_done_callback(partial(self._in_turn, rested, places))
        except BaseException as error:  # as in `_look`
            self._failed(error)
            raise

    def _in_turn(self, rested: Rested, places: Places, _: asyncio.Future[None]) -> None:
        if self._dropped:
            return
        try:
            self._begin_again(rested, places)
        except BaseException as error:  # as in `_look`
            self._failed(error)
            raise

    def _begin_again(self, rested: Rested, places: Places) -> None:
        if not self._runner.begin_again(rested):
            places.give_back()
            rested.spawn(self._runner.go_on_later(rested))


def _takes_a_task(attempt: Attempt) -> bool:
    """What is open has to be closed, what became of a call in doubt has to be asked for, and where a failure stops the
    worker nobody goes on beside it.
    """
    if attempt.opened is not None or attempt.on_their_way or attempt.in_doubt:
        return True
    return attempt.bound.command.policy.on_failure == "stop"


def _subject(first: FirstAttempt) -> Subject:
    command = first.attempt.bound.command
    return Subject(command.name, COMMAND, first.attempt.event, command.policy)
