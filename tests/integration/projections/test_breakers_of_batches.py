"""Whoever looks at how many die is asked before a batch's letters are written."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.support.batches import BatchDesk, Trouble, batch, of
from tidegate.dlq.breaker import Phase
from tidegate.dlq.breakers import DeadBreakers
from tidegate.dlq.policy import BreakerPolicy, FailurePolicy
from tidegate.dlq.retry import RetryPolicy
from tidegate.inbox.errors import OwnershipLost

CONTINUE = FailurePolicy("continue", RetryPolicy(base_s=0.001))


@dataclass
class Watch:
    """Breakers that give the answers that they are told to."""

    answers: list[bool]
    asked: list[tuple[bool, ...]] = field(default_factory=list[tuple[bool, ...]])
    good: int = 0

    async def admits(self, handler: str, outcomes: tuple[bool, ...] | None = None) -> bool:
        self.asked.append(outcomes or ())
        return self.answers.pop(0)

    def admits_if_closed(self, handler: str, outcomes: tuple[bool, ...] | None = None) -> bool:
        self.asked.append(outcomes or ())
        return self.answers.pop(0)

    def fine(self, handler: str, events: int = 1) -> None:
        self.good += events


async def test_it_hears_of_every_event_of_a_batch_in_its_order(desk: BatchDesk) -> None:
    watch = Watch([True])
    applier = desk.applier(await desk.declare("revenue", CONTINUE, Trouble()), breakers=watch)
    await applier.apply(batch(of(0), of(1)))
    assert watch.good == 2
    await applier.apply(batch(of(2), of(3, permanent=True), of(4, permanent=True), of(5)))
    assert watch.asked == [(False, True, True, False)]
    assert watch.good == 2
    await applier.apply(batch(of(6), of(7, transient=1)))
    assert (len(watch.asked), watch.good) == (1, 4)


async def test_held_back_nothing_is_written_and_the_batch_begins_again(desk: BatchDesk) -> None:
    """What made it fail may be over by then."""
    trouble = Trouble()
    events = [of(0), of(1, permanent=True), of(2)]

    class Repairing(Watch):
        async def admits(self, handler: str, outcomes: tuple[bool, ...] | None = None) -> bool:
            assert await desk.applied() == []
            assert await desk.failures() == {}
            events[1].value["permanent"] = False
            return await super().admits(handler, outcomes)

    watch = Repairing([False])
    await desk.applier(await desk.declare("revenue", CONTINUE, trouble), breakers=watch).apply(batch(*events))
    assert await desk.applied() == ["e0", "e1", "e2"]
    assert await desk.failures() == {}
    assert watch.good == 3


async def test_an_open_breaker_keeps_the_batch_undone_until_the_process_stops(desk: BatchDesk) -> None:
    opened = asyncio.Event()
    policies = {"revenue": BreakerPolicy(row_max=2)}

    def told(handler: str, phase: Phase, why: str) -> None:
        opened.set()

    breakers = DeadBreakers(policies, desk.clock, told)
    applier = desk.applier(await desk.declare("revenue", CONTINUE, Trouble()), breakers=breakers)
    events = [of(n, f"k{n}", permanent=True) for n in range(4)]
    applying = asyncio.create_task(applier.apply(batch(*events)))
    async with asyncio.timeout(20):
        await opened.wait()
    assert await desk.failures() == {}
    breakers.quiet()
    with pytest.raises(OwnershipLost):
        await applying
    assert await desk.checkpoints() == {0: 0, 1: 0}
