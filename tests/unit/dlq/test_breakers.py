"""Where events wait that a breaker holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidegate.dlq.breakers import DeadBreakers, WatchedMeter
from tidegate.dlq.policy import BreakerPolicy
from tidegate.inbox.breaker_phase import Phase
from tidegate.inbox.clock import ManualClock, SystemClock
from tidegate.inbox.errors import OwnershipLost
from tidegate.inbox.meter import NoMeter

AT_ONCE = BreakerPolicy(row_max=1, retry_after_s=0.05)
LATE = BreakerPolicy(row_max=1, retry_after_s=3_600.0)


def breakers(policy: BreakerPolicy | None, told: list[tuple[str, Phase]] | None = None) -> DeadBreakers:
    noted = told if told is not None else []
    return DeadBreakers(
        {"bill": policy, "other": LATE}, SystemClock(), lambda name, phase, _: noted.append((name, phase))
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def test_a_handler_without_a_breaker_is_never_held_back() -> None:
    held = breakers(None)
    for _ in range(10):
        assert await held.admits("bill")
        assert await held.admits("nobody knows it")


async def test_whoever_is_held_back_is_tried_and_its_good_end_lets_the_others_go() -> None:
    told: list[tuple[str, Phase]] = []
    held = breakers(AT_ONCE, told)
    assert await held.admits("bill")
    waiting = [asyncio.create_task(held.admits("bill")) for _ in range(3)]
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [False]
    assert len(rest) == 2, "one is tried"
    held.fine("bill")
    assert await asyncio.gather(*rest) == [False, False]
    assert told == [("bill", Phase.OPEN), ("bill", Phase.HALF_OPEN), ("bill", Phase.CLOSED)]


async def test_a_try_that_fails_waits_again() -> None:
    told: list[tuple[str, Phase]] = []
    held = breakers(AT_ONCE, told)
    assert await held.admits("bill")
    assert not await held.admits("bill")
    assert not await held.admits("bill")
    assert [phase for _, phase in told] == [Phase.OPEN, Phase.HALF_OPEN, Phase.OPEN, Phase.HALF_OPEN]


async def test_one_handlers_breaker_holds_no_other_back() -> None:
    held = breakers(LATE)
    assert await held.admits("bill")
    waiting = asyncio.create_task(held.admits("bill"))
    await until(lambda: held.phases()["bill"][0] is Phase.OPEN)
    assert await held.admits("other")
    assert not waiting.done()
    held.close("bill")
    assert not await waiting


async def test_a_stop_lets_everybody_leave_undone() -> None:
    held = breakers(LATE)
    assert await held.admits("bill")
    waiting = [asyncio.create_task(held.admits("bill")) for _ in range(3)]
    await until(lambda: held.phases()["bill"][0] is Phase.OPEN)
    held.quiet()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [OwnershipLost] * 3
    with pytest.raises(OwnershipLost):
        await held.admits("bill")


async def test_what_the_meter_counts_as_a_good_end_is_one_for_the_breaker() -> None:
    held = DeadBreakers({"bill": BreakerPolicy(row_max=2)}, ManualClock(), lambda name, phase, why: None)
    meter = WatchedMeter(NoMeter(), held)
    for count in (lambda: meter.handled("bill", 1, 0.1), lambda: meter.skipped("bill", 1)):
        for _ in range(2):
            assert await held.admits("bill")
        count()
    meter.dead("bill", "rejected", 1)
    assert held.phases()["bill"] == (Phase.CLOSED, "")


def test_what_stands_in_the_queue_is_tried_one_at_a_time_and_nobody_waits() -> None:
    clock = ManualClock()
    held = DeadBreakers({"bill": LATE}, clock, lambda name, phase, why: None)
    assert held.admits_now("bill")
    assert not held.admits_now("bill")
    assert held.is_open("bill")
    assert not held.take_try("bill"), "it opened just now"
    clock.advance(LATE.retry_after_s)
    assert held.is_due("bill")
    assert held.take_try("bill")
    assert not held.is_due("bill")
    assert not held.take_try("bill")
    held.fine("bill")
    assert not held.is_open("bill")
    assert not held.is_open("unknown")


def test_once_one_may_be_tried_whatever_ends_well_closes_it() -> None:
    """Whoever it held back may be gone: then nobody asks to be tried."""
    clock, told = ManualClock(), list[Phase]()
    held = DeadBreakers({"bill": LATE}, clock, lambda name, phase, why: told.append(phase))
    assert held.admits_now("bill")
    assert not held.admits_now("bill")
    clock.advance(LATE.retry_after_s - 1)
    held.fine("bill", 100)
    assert held.is_open("bill"), "what ran already says nothing"
    clock.advance(1)
    held.fine("bill", 0)
    assert held.is_open("bill"), "nothing went well"
    held.fine("bill")
    assert told == [Phase.OPEN, Phase.CLOSED]


def test_what_no_try_can_help_counts_while_it_is_closed_and_leaves_it_alone_then() -> None:
    clock = ManualClock()
    held = DeadBreakers({"bill": LATE}, clock, lambda name, phase, why: None)
    assert held.admits_if_closed("bill")
    assert not held.admits_if_closed("bill", (False, True, True))
    clock.advance(LATE.retry_after_s)
    assert not held.admits_if_closed("bill")
    assert held.take_try("bill")
    assert not held.admits_if_closed("bill")
    held.fine("bill")
    assert held.phases()["bill"] == (Phase.CLOSED, ""), "the try was left alone"
    assert held.admits_if_closed("unknown")
