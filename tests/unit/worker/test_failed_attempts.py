"""What failed leaves its place; a retry whose time is over waits for one, and does not begin behind a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

from tidegate.consumers.worker.attempts import Attempts
from tidegate.consumers.worker.concluding import Ended
from tidegate.consumers.worker.dependencies import Dependencies
from tidegate.consumers.worker.failed_attempts import FailedAttempts, Rested
from tidegate.consumers.worker.first_attempts import FirstAttempt
from tidegate.consumers.worker.places import Places
from tidegate.dlq.breakers import DeadBreakers
from tidegate.dlq.guard import Raised
from tidegate.dlq.retry import RetryState
from tidegate.dlq.rules import DeadNow, Decision, SkipNow, Transient
from tidegate.inbox.clock import SystemClock
from tidegate.inbox.event import Event, Record
from tidegate.inbox.outcome import Reason

AGAIN = object.__new__(Transient)
DEAD = DeadNow(Reason.REJECTED, "the handler's own error")
SKIP = SkipNow("nobody asked for it")


class Rules:
    """Whatever fails leads to the next of these, and the last of them to itself."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        self._decisions = [*decisions]
        self.asked = 0
        self.behind: str | None = None
        self.rest_s = 0.001

    def at_first_sight(self, subject: object, error: Exception) -> tuple[Decision, str | None]:
        self.asked += 1
        return (self._decisions.pop(0) if len(self._decisions) > 1 else self._decisions[0]), self.behind

    def again(self, subject: object, decision: object, error: object, state: object) -> tuple[RetryState, float]:
        return RetryState(), self.rest_s


class Dependency:
    """Answers once it is let."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    async def answers(self, name: str) -> bool:
        await self.answer.wait()
        return True


class Desk:
    """As many places; with one of them somebody else has taken it by the time that a retry is due."""

    def __init__(self, *decisions: Decision, seats: int = 1, ours: bool = True, on_failure: str = "block") -> None:
        self.seats = Places(seats)
        self.begun: list[Rested] = []
        self.went_on: list[Rested] = []
        self.carried_on: list[bool] = []
        self.ended: list[Ended] = []
        self.counted: list[int] = []
        self._ours = ours
        policy = SimpleNamespace(on_failure=on_failure)
        command = SimpleNamespace(name="charge", policy=policy)
        bound = SimpleNamespace(command=command)
        event = Event(None, Record("orders", 0, 1, b"k", b"v"))
        attempt = SimpleNamespace(handler="charge", opened=None, on_their_way=[], in_doubt=(), bound=bound, event=event)
        self.first = cast(FirstAttempt, SimpleNamespace(attempt=attempt, state=None))
        self.rules = Rules(decisions or (AGAIN,))
        breakers = DeadBreakers({}, SystemClock(), lambda handler, phase, why: None)
        self.dependency = Dependency()
        rules, dependencies = cast(Attempts, self.rules), cast(Dependencies, self.dependency)
        self.failures = FailedAttempts(self, rules, dependencies, breakers, self._returned, self._failed)

    def _returned(self, handler: str, n: int) -> None:
        self.counted.append(n)

    def _failed(self, error: BaseException) -> None:
        raise error

    def places(self, handler: str) -> Places:
        return self.seats

    def over(self, first: FirstAttempt, ended: Ended) -> None:
        self.ended.append(ended)

    def begin_again(self, rested: Rested) -> bool:
        self.begun.append(rested)
        return self._ours

    async def go_on(self, first: FirstAttempt, outcome: Raised, *, seated: bool) -> None:
        self.carried_on.append(seated)

    async def go_on_later(self, rested: Rested) -> None:
        self.went_on.append(rested)

    def fails(self) -> None:
        """It took a place, and failed."""
        assert self.seats.take()
        self.failures.add(self.first, ConnectionResetError(), self._spawn)

    async def waits_its_turn(self) -> None:
        """It failed, left its place to another one, and its time is over."""
        self.fails()
        assert self.seats.take(), "it has left its place"
        while self.counted != [1, -1]:
            await asyncio.sleep(0)
        assert self.begun == []

    def _spawn(self, work: Coroutine[Any, Any, None]) -> object:
        return asyncio.ensure_future(work)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_begins_once_a_place_is_given_back_and_has_it() -> None:
    desk = Desk()
    await desk.waits_its_turn()
    desk.seats.give_back()
    await turns()
    assert len(desk.begun) == 1
    assert not desk.seats.take(), "the place is its own"


async def test_a_place_is_no_use_to_one_whose_partition_is_lost() -> None:
    """It finds that out in a task, and somebody else has the place."""
    desk = Desk(ours=False)
    await desk.waits_its_turn()
    desk.seats.give_back()
    await turns()
    assert desk.went_on == desk.begun
    assert desk.seats.take()


async def test_behind_a_stop_nobody_begins_it() -> None:
    desk = Desk()
    await desk.waits_its_turn()
    desk.failures.drop()
    desk.seats.give_back()
    await turns()
    assert desk.begun == []


async def test_it_leaves_its_place_before_anybody_looks_at_it() -> None:
    """The second one waits for a look, and its place is free."""
    desk = Desk(DEAD, seats=2)
    desk.fails()
    assert (desk.rules.asked, len(desk.ended)) == (1, 1), "the first one after a while is looked at at once"
    desk.fails()
    assert desk.rules.asked == 1
    assert desk.seats.take()
    assert desk.seats.take()
    assert desk.counted == [1, 1]


async def test_as_many_as_there_are_places_wait_for_a_look_and_the_next_one_has_all_looked_at() -> None:
    """Where everything fails nothing else would come, and each would wait for nothing."""
    desk = Desk(DEAD, seats=2)
    for _ in range(1 + 2):
        desk.fails()
    assert (desk.rules.asked, len(desk.ended)) == (1, 1)
    desk.fails()
    assert (desk.rules.asked, len(desk.ended)) == (4, 4)
    assert desk.counted == [1, 1, 1, 1], "each was counted as come back, once"
    assert desk.seats.take()
    assert desk.seats.take()
    assert not desk.seats.take(), "none of the places was given back twice"
    desk.seats.give_back()
    desk.fails()
    desk.seats.give_back()
    desk.fails()
    assert desk.rules.asked == 4, "nobody rests any more, so there is room for these"


async def test_no_more_rest_than_there_are_places_and_the_next_one_is_carried_on() -> None:
    """Each leaves its place until it is looked at; then the third has to hold one, or everything might wait."""
    desk = Desk(AGAIN, seats=2)
    desk.failures.drop()  # nobody looks by himself
    desk.rules.rest_s = 1_000.0
    for _ in range(1 + 2 + 1):
        desk.fails()
    await turns()
    assert desk.carried_on == [False, True], "of the four, two rest; one of the others has its place still"
    assert not desk.seats.may_rest()


async def test_while_a_dependency_is_asked_no_more_leave_their_places_than_there_are() -> None:
    """An outage fails every attempt, and its answer may take seconds: nothing piles up in memory meanwhile."""
    desk = Desk(DEAD, seats=2)
    desk.rules.behind = "postgresql"
    for _ in range(2 + 2):
        desk.fails()
        await turns()
    assert desk.counted == [1, 1], "two have left their places"
    assert not desk.seats.take(), "and two more hold them"
    desk.dependency.answer.set()
    await turns()
    assert len(desk.ended) == 4
    assert desk.seats.take()
    assert desk.counted == [1, 1, 1, 1]


async def test_what_takes_a_task_asks_for_a_place_again() -> None:
    desk = Desk(SKIP)
    desk.fails()
    await turns()
    assert desk.carried_on == [False]
    assert desk.counted == [1, -1]
    assert desk.seats.take(), "it waits for it in its task"


async def test_one_that_may_not_leave_its_place_is_carried_on_at_once_and_has_it() -> None:
    """Behind it nobody goes on: it stops the worker."""
    desk = Desk(DEAD, on_failure="stop")
    desk.fails()
    await turns()
    assert (desk.carried_on, desk.counted) == ([True], [])
    assert not desk.seats.take()
