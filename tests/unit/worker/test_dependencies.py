"""What is away is asked until it answers; what cannot be asked is waited for, longer each time."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.consumers.worker import dependencies
from tidegate.consumers.worker.dependencies import Dependencies


class Told:
    """What was said of outages, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def away(self, name: str) -> None:
        self.said.append(f"{name} away")

    def back(self, name: str) -> None:
        self.said.append(f"{name} back")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "FIRST_WAIT_S", 0.001)


async def test_an_outage_is_told_once_however_many_wait() -> None:
    told, answers = Told(), iter([False, False, True])

    async def check() -> bool:
        return next(answers)

    waiting = Dependencies({"postgresql": check}, told.away, told.back)
    await asyncio.gather(waiting.wait("postgresql"), waiting.wait("postgresql"), waiting.wait("postgresql"))
    assert told.said == ["postgresql away", "postgresql back"]


async def test_a_check_that_hangs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "CHECK_MAX_S", 0.01)

    async def check() -> bool:
        await asyncio.Event().wait()
        return True

    told = Told()
    assert not await Dependencies({"postgresql": check}, told.away, told.back).answers("postgresql")


async def test_what_cannot_be_asked_is_believed_to_be_away_and_tried_again() -> None:
    told = Told()
    waiting = Dependencies({}, told.away, told.back)
    assert not await waiting.answers("provider")
    await waiting.wait("provider")
    assert told.said == ["provider away", "provider back"]


async def test_each_further_wait_is_twice_as_long_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(dependencies, "FIRST_WAIT_S", 0.2)
    monkeypatch.setattr(dependencies.asyncio, "sleep", sleep)
    waiting = Dependencies({}, Told().away, Told().back)
    for _ in range(7):
        await waiting.wait("provider")
    assert slept == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
