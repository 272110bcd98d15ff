"""A retry whose time is over, and whose place is taken: it waits its turn, and nobody begins it behind a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from tidegate.consumers.worker.attempts import Attempts
from tidegate.consumers.worker.concluding import Ended
from tidegate.consumers.worker.failed_attempts import FailedAttempts, Rested
from tidegate.consumers.worker.first_attempts import FirstAttempt
from tidegate.consumers.worker.places import Places
from tidegate.dlq.guard import Raised
from tidegate.dlq.retry import RetryState
from tidegate.dlq.rules import Transient
from tidegate.inbox.event import Event

AGAIN = object.__new__(Transient)


class Rules:
    """Whatever fails is tried again at once."""

    def at_first_sight(self, subject: object, error: Exception) -> tuple[Transient, None]:
        return AGAIN, None

    def again(self, subject: object, decision: object, error: object, state: object) -> tuple[RetryState, float]:
        return RetryState(), 0.001


class Desk:
    """One place, which somebody else has taken by the time that a retry is due."""

    def __init__(self, *, ours: bool = True) -> None:
        self.seats = Places(1)
        self.begun: list[Rested] = []
        self.went_on: list[Rested] = []
        self.counted: list[int] = []
        self._ours = ours
        policy = SimpleNamespace(on_failure="block")
        command = SimpleNamespace(name="charge", policy=policy)
        bound = SimpleNamespace(command=command)
        attempt = SimpleNamespace(handler="charge", opened=None, on_their_way=[], bound=bound, event=Event(None))
        self.first = cast(FirstAttempt, SimpleNamespace(attempt=attempt, state=None))
        rules, nothing = cast(Attempts, Rules()), cast(Any, None)
        self.failures = FailedAttempts(self, rules, nothing, nothing, self._returned, self._failed)

    def _returned(self, handler: str, n: int) -> None:
        self.counted.append(n)

    def _failed(self, error: BaseException) -> None:
        raise error

    def places(self, handler: str) -> Places:
        return self.seats

    def over(self, first: FirstAttempt, ended: Ended) -> None:
        raise NotImplementedError

    def begin_again(self, rested: Rested) -> bool:
        self.begun.append(rested)
        return self._ours

    async def go_on(self, first: FirstAttempt, outcome: Raised) -> None:
        raise NotImplementedError

    async def go_on_later(self, rested: Rested) -> None:
        self.went_on.append(rested)

    async def waits_its_turn(self) -> None:
        """It failed, left its place to another one, and its time is over."""
        assert self.seats.take()
        self.failures.add(self.first, ConnectionResetError(), self._spawn)
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
