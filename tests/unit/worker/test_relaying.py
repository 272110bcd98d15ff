"""When the relay looks: at once for what somebody published, and a while later for letters alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tidegate.consumers.worker import relaying
from tidegate.consumers.worker.relaying import Relay
from tidegate.inbox.clock import SystemClock
from tidegate.inbox.event import Partition
from tidegate.inbox.homes import Homes, Places
from tidegate.inbox.outbox import NewOutgoing

LETTER = NewOutgoing(
    id=b"1", kind="letter", topic="orders.billing.dlq", key=b"k", payload=b"v", headers=(), correlation_id="c",
    consumer="billing", home=Partition("orders", 0),
)  # fmt: skip


class NoHomes:
    """Nothing is held, so that a look ends there; but it is seen."""

    def __init__(self) -> None:
        self.looks: list[float] = []
        self._looked = asyncio.Event()

    def places(self) -> Places:
        self.looks.append(asyncio.get_running_loop().time())
        self._looked.set()
        return Places((), {})

    async def until(self, looks: int) -> None:
        while len(self.looks) < looks:
            self._looked.clear()
            await self._looked.wait()


@asynccontextmanager
async def running(homes: NoHomes, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Relay]:
    """A relay that looks when it is woken, and has looked once."""
    monkeypatch.setattr(relaying, "LOOK_S", 1_000.0)
    monkeypatch.setattr(relaying, "LOOK_MIN_S", 0.001)
    nothing = cast(Any, None)
    relay = Relay(nothing, "billing", cast(Homes, homes), nothing, SystemClock(), nothing, nothing, nothing)
    task = asyncio.ensure_future(relay.run())
    try:
        await homes.until(1)
        yield relay
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_letters_wait_for_each_other_and_what_is_published_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    homes = NoHomes()
    monkeypatch.setattr(relaying, "LETTERS_APART_S", 1_000.0)
    async with running(homes, monkeypatch) as relay:
        relay.wake([LETTER])
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(homes.looks) == 1, "nothing but a letter: it waits for more"
        relay.wake()
        await homes.until(2)


async def test_a_letter_that_nothing_came_before_goes_at_once_and_the_next_one_a_while_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    homes = NoHomes()
    monkeypatch.setattr(relaying, "LETTERS_APART_S", 0.0)
    async with running(homes, monkeypatch) as relay:
        relay.wake([LETTER])
        await homes.until(2)
        monkeypatch.setattr(relaying, "LETTERS_APART_S", 0.1)
        relay.wake([LETTER])
        relay.wake([LETTER])
        await homes.until(3)
        assert homes.looks[2] - homes.looks[1] >= 0.1 - 0.002, "as exact as the loop's clock"
