"""What waits on its way to the engine belongs to the life of its partition that it came under."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from tidegate.consumers.client.ports import Chunk, Part, Taken
from tidegate.consumers.engine.signals import Delivered, Reached
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.parked_keys import ParkedKeys
from tidegate.consumers.worker.receiving import Receiver
from tidegate.dlq.burial import Burial
from tidegate.inbox.clock import SystemClock
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.holding import Holding, Holdings
from tidegate.inbox.scope import Scope
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

HERE, THERE = Partition("t", 0), Partition("t", 1)
EPOCH = 1


def chunk(*partitions: Partition) -> Chunk:
    """A record at offset 100 of each."""
    events = {p: Event[Any](b"", Record(p.topic, p.number, 100, None, b"")) for p in partitions}
    return Chunk(tuple(Part(p, EPOCH, Taken(events=(event,)), 101) for p, event in events.items()))


class Desk:
    """A receiver, and what it handed on. Nothing here asks the database."""

    def __init__(self) -> None:
        self.holdings = Holdings()
        self.handed_on: list[Delivered | Reached] = []
        store = Store(Database("postgresql://nobody@127.0.0.1:1/nothing"), tables("tidegate"))
        self.receiver = Receiver(
            store, "c", Scope(), {}, self.holdings, Burial("c", SystemClock()), Metrics("c"), self._wait,
            self.handed_on.append,
            lambda _partition, _epoch: None, lambda: None, lambda _suspect: None,
            ParkedKeys(lambda _handler, _partition: None),
        )  # fmt: skip

    def take(self, *partitions: Partition, fence_epoch: int) -> None:
        for partition in partitions:
            self.holdings.put(Holding(partition, EPOCH, fence_epoch, 0))

    async def run(self) -> None:
        """Until nothing waits."""
        running = asyncio.ensure_future(self.receiver.run())
        await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def _wait(self, _dependency: str) -> None:
        raise AssertionError("nothing is away")


async def test_what_waited_while_its_partition_was_taken_anew_is_not_handed_on() -> None:
    """1. A chunk waits. 2. The fence is lost and taken again under the same assignment, reading begins at 50. 3. The
    chunk, handed on now, would stand for the records from 50 to 100.
    """
    desk = Desk()
    desk.take(HERE, THERE, fence_epoch=1)
    desk.receiver.put(chunk(HERE, THERE))
    desk.receiver.put(Reached(HERE, EPOCH, 120))
    desk.holdings.drop(HERE)
    desk.take(HERE, fence_epoch=3)
    await desk.run()
    (delivered,) = desk.handed_on
    assert isinstance(delivered, Delivered)
    assert [part.partition for part in delivered.slices] == [THERE]


async def test_what_came_before_the_fence_was_ours_is_not_handed_on() -> None:
    desk = Desk()
    desk.receiver.put(chunk(HERE))
    desk.take(HERE, fence_epoch=1)
    await desk.run()
    assert not desk.handed_on


async def test_what_waited_under_one_life_is_handed_on_in_order() -> None:
    desk = Desk()
    desk.take(HERE, fence_epoch=1)
    desk.receiver.put(chunk(HERE))
    desk.receiver.put(Reached(HERE, EPOCH, 120))
    await desk.run()
    assert [type(signal) for signal in desk.handed_on] == [Delivered, Reached]
