"""The first is looked at when it comes, those that follow soon together, and nothing once it is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumers.worker import together
from tidegate.consumers.worker.together import MOMENTS_S, Rests, Together, until_moment_s


class Looks:
    """What was looked at, in whose company."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.more = asyncio.Event()
        self.together = Together[str](self._look)

    def _look(self, those: Sequence[str]) -> None:
        self.seen.append([*those])
        self.more.set()

    async def until(self, count: int) -> None:
        while len(self.seen) < count:
            self.more.clear()
            await self.more.wait()


async def test_the_first_after_a_while_waits_for_nobody_and_those_behind_it_for_each_other() -> None:
    looks = Looks()
    for one in ("a", "b", "c"):
        looks.together.add(one)
    assert looks.seen == [["a"]]
    await looks.until(2)
    assert looks.seen == [["a"], ["b", "c"]]


async def test_what_is_dropped_is_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, rung = Looks(), asyncio.Event()
    looks.together.add("a")
    looks.together.add("b")
    looks.together.drop()
    asyncio.get_running_loop().call_later(2 * together.APART_S, rung.set)
    await rung.wait()
    assert looks.seen == [["a"]]


async def test_who_waits_for_one_moment_is_woken_together_in_order_and_never_early() -> None:
    loop = asyncio.get_running_loop()
    woken: list[tuple[float, list[str]]] = []
    all_there = asyncio.Event()

    def wake(those: Sequence[str]) -> None:
        woken.append((loop.time(), [*those]))
        if sum(len(names) for _, names in woken) == 4:
            all_there.set()

    rests = Rests(wake)
    began_s = loop.time()
    rests.add("a", 0.11)
    rests.add("soon", 0.01)
    rests.add("b", 0.11)
    rests.add("at once", 0.0)
    await all_there.wait()
    assert [names for _, names in woken] == [["at once"], ["soon"], ["a", "b"]]
    for (at_s, _), delay_s in zip(woken, (0.0, 0.01, 0.11), strict=True):
        assert at_s - began_s >= delay_s - 0.001, "as exact as the loop's clock"


async def test_nobody_is_woken_who_was_dropped() -> None:
    woken: list[str] = []
    rests, passed = Rests[str](woken.extend), asyncio.Event()
    rests.add("a", 0.01)
    rests.add("b", 0.02)
    rests.drop()
    asyncio.get_running_loop().call_later(0.05, passed.set)
    await passed.wait()
    assert woken == []


@given(delay_s=st.floats(0, 30), now_s=st.floats(0, 1e7))
def test_a_wait_is_never_shorter_and_hardly_longer_and_long_ones_end_at_common_moments(
    delay_s: float, now_s: float
) -> None:
    wait_s = until_moment_s(delay_s, now_s)
    moments_s = next((moments_s for long_s, moments_s in MOMENTS_S if delay_s >= long_s), 0.0)
    assert delay_s - 1e-5 <= wait_s <= delay_s + moments_s + 1e-5
    if moments_s:
        moments = (now_s + wait_s) / moments_s
        assert abs(moments - round(moments)) < 1e-3
