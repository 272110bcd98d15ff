"""Chunks on their way to the engine are in no window yet: the client's thread counts them, and pauses by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from tidegate.consumers.client.ports import Chunk, Part, Taken
from tidegate.consumers.engine.engine import Engine
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.worker import CHUNKS_WAITING_MAX, Parts, Worker
from tidegate.inbox import finishing
from tidegate.inbox.clock import SystemClock
from tidegate.inbox.event import Partition
from tidegate.inbox.holding import Holdings

HERE = Partition("t", 0)
CHUNK = Chunk((Part(HERE, 1, Taken(), 101),))


class Desk:
    """A worker whose client notes what it is told, and whose receiver keeps what it gets."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.waiting: list[Callable[[], None]] = []
        self.before_pause: Callable[[], None] = lambda: None
        self.worker = Worker(Engine((), EnginePolicy()), Holdings(), SystemClock(), HealthBoard(), Metrics("c"))
        parts = SimpleNamespace(kafka=self, receiver=self, ownership=self)
        self.worker.assemble(cast("Parts", parts))
        self.worker.assigned({HERE: 1})

    def pause(self, _partitions: frozenset[Partition]) -> None:
        self.before_pause()
        self.told.append("pause")

    def resume(self, _partitions: frozenset[Partition]) -> None:
        self.told.append("resume")

    def put_through(self, _chunk: Chunk, through: Callable[[], None]) -> None:
        self.waiting.append(through)

    async def take(self, partition: Partition, epoch: int) -> None:
        """The takeover never ends."""
        await asyncio.Event().wait()

    async def deliver(self, chunks: int) -> None:
        await asyncio.to_thread(lambda: [self.worker.delivered(CHUNK) for _ in range(chunks)])
        await asyncio.sleep(0)

    def let_through(self, chunks: int) -> None:
        for _ in range(chunks):
            self.waiting.pop(0)()


async def test_what_waits_for_the_inbox_holds_the_client_back() -> None:
    desk = Desk()
    await desk.deliver(CHUNKS_WAITING_MAX - 1)
    assert desk.told == []
    await desk.deliver(1)
    assert desk.told == ["pause"]
    desk.let_through(CHUNKS_WAITING_MAX - 2)
    assert desk.told == ["pause"]
    desk.let_through(1)
    assert desk.told == ["pause", "resume"]
    await desk.worker.cancel_all()


async def test_a_task_that_loses_its_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a library may, whose `asyncio.wait_for` ends in the turn of the cancellation."""
    monkeypatch.setattr(finishing, "CANCEL_AGAIN_S", 0.01)
    desk, lost = Desk(), asyncio.Event()

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost.set()
        await asyncio.Event().wait()

    task = desk.worker.spawn(goes_on())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await desk.worker.cancel_all()
    assert (lost.is_set(), task.cancelled()) == (True, True)


async def test_a_pause_is_ended_though_all_came_through_before_it() -> None:
    """1. The client's thread finds too many. 2. The loop gets them through. 3. The pause, and nothing more is read."""
    desk = Desk()
    await desk.deliver(CHUNKS_WAITING_MAX - 1)
    desk.before_pause = lambda: desk.let_through(CHUNKS_WAITING_MAX - 1)
    await desk.deliver(1)
    assert desk.told == ["pause", "resume"]
    await desk.worker.cancel_all()
