"""Who failed waits a moment for others that failed, and holds up nobody who did not."""

from __future__ import annotations

import asyncio

from tidegate.consumers.engine.signals import LaneItem
from tidegate.consumers.worker.completion import Completion, Fate
from tidegate.consumers.worker.troubled import TOGETHER_MAX, Troubled
from tidegate.dlq.policy import FailurePolicy
from tidegate.inbox.event import Event, Partition
from tidegate.inbox.outcome import Dead, Reason

DEAD = Dead(Reason.REJECTED, "no")


def ended(offset: int, fate: Fate | None = DEAD) -> Completion:
    item = LaneItem(Partition("orders", 0), 1, offset, Event(None))
    return Completion("charge", 1, item, FailurePolicy(), fate=fate)


def nobody() -> None:
    raise AssertionError("it is too early")


async def test_the_first_to_fail_is_written_at_once() -> None:
    troubled, first = Troubled(), ended(0)
    assert not troubled.may_wait([first])
    assert troubled.and_these([first]) == [first]


async def test_those_that_follow_wait_for_each_other_and_are_told_when() -> None:
    troubled, woken, more = Troubled(), asyncio.Event(), [ended(offset) for offset in range(1, 4)]
    troubled.and_these([ended(0)])
    for member in more:
        assert troubled.may_wait([member])
        troubled.gather([member], woken.set)
    async with asyncio.timeout(5):
        await woken.wait()
    assert not troubled.may_wait([])
    assert troubled.and_these([]) == more


async def test_who_sends_something_waits_for_nobody_and_takes_them_along() -> None:
    """What is written by the same transaction anyway spares them theirs."""
    troubled, waiting, well = Troubled(), ended(1), ended(2, None)
    troubled.and_these([ended(0)])
    troubled.gather([waiting], nobody)
    assert not troubled.may_wait([well])
    assert troubled.and_these([well]) == [waiting, well]


async def test_so_many_do_not_wait() -> None:
    """More at once would look like one trouble to a breaker, if those behind them in their lanes fail too."""
    troubled = Troubled()
    troubled.and_these([ended(0)])
    troubled.gather([ended(offset) for offset in range(1, TOGETHER_MAX)], nobody)
    assert not troubled.may_wait([ended(TOGETHER_MAX)])
    troubled.and_these([])


async def test_those_that_went_well_make_nobody_wait_behind_them() -> None:
    """They were written, but no failed one was: the next to fail is a first one."""
    troubled = Troubled()
    troubled.and_these([ended(0, None)])
    assert not troubled.may_wait([ended(1)])
