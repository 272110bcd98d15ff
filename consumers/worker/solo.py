"""Makes room for one thing: reading stops, what is in memory comes to its end, the slow way stands still.

Nobody waits here without a bound. Who cannot be alone in time is told so (`NotAlone`); who is alone for too long goes
on in company, once it is written down that it is not alone any more (`Room.leave`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, final

from ...inbox.clock import Clock
from ...inbox.errors import OwnershipLost
from ...inbox.event import Partition
from ..client.ports import KafkaPort
from ..engine.engine import Engine
from ..engine.signals import GoOn, PauseCause, Reached, StandBack
from .receiving import Receiver
from .slow_way import SlowWay
from .worker import Worker

_NOWHERE: Final = Reached(Partition("", 0), 0, 0)
"""Goes through the receiver's queue and changes nothing: what was before it is through."""


@final
class NotAlone(Exception):
    """There was no time left, or what else is in flight did not come to its end in it."""


@final
class Bound:
    """How much may be looked at alone, and how long, by all that use it at once: `with bound`.

    The time begins when the first of them asks for it, and is whole again once nobody uses it.
    """

    def __init__(self, clock: Clock, whole_s: float, records_max: int) -> None:
        self.whole_s = whole_s
        self.records_max = records_max
        self._clock = clock
        self._users = 0
        self._by_s: float | None = None

    def __enter__(self) -> Bound:
        self._users += 1
        return self

    def __exit__(self, *raised: object) -> None:
        self._users -= 1
        if not self._users:
            self._by_s = None

    def left_s(self) -> float:
        """Seconds; 0 or less once it is over."""
        now_s = self._clock.monotonic_s()
        if self._by_s is None:
            self._by_s = now_s + self.whole_s
        return self._by_s - now_s


@final
class Room:
    """Nothing else is in flight in this process until `leave`. Owned by the event loop."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self.left = False

    def leave(self) -> None:
        """Everything else goes on; once."""
        if not self.left:
            self.left = True
            self._leave()


@final
class Solo:
    """Owned by the event loop. One room at a time; raises OwnershipLost where the worker stops meanwhile."""

    def __init__(self, worker: Worker, kafka: KafkaPort, receiver: Receiver, slow_way: SlowWay) -> None:
        self._worker = worker
        self._kafka = kafka
        self._receiver = receiver
        self._slow_way = slow_way
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def alone(self, left_s: Callable[[], float]) -> AsyncGenerator[Room]:
        """Nothing else is in flight in this process while the block runs, or until it leaves the room.

        `left_s` is asked once it is our turn: how long everything else may take to its end. Raises NotAlone where it
        takes longer, or nothing is left.
        """
        await self._turn.acquire()
        room = Room(self._go_on)
        try:
            limit_s = left_s()
            if limit_s <= 0:
                raise NotAlone
            self._worker.signal(StandBack())
            self._slow_way.hold()
            try:
                async with asyncio.timeout(limit_s):
                    await self._come_to_rest()
            except TimeoutError:
                raise NotAlone from None
            yield room
        finally:
            room.leave()

    def _go_on(self) -> None:
        self._slow_way.go_on()
        self._worker.signal(GoOn())
        self._turn.release()

    async def _come_to_rest(self) -> None:
        """What the client has read before it heard of the pause is on its way: behind its answer and the receiver's
        queue the engine has it all.
        """
        await self._kafka.committed([])
        through = asyncio.Event()
        self._receiver.put(_NOWHERE, through.set)
        await through.wait()
        await self._slow_way.stands_still()
        engine = self._worker.engine
        await self._worker.until(lambda: engine.is_at_rest() or is_quiet(engine))
        if not engine.is_at_rest():
            raise OwnershipLost("the worker is asked to stop")


def is_quiet(engine: Engine) -> bool:
    """The worker is asked to stop."""
    return PauseCause.QUIET in engine.causes()
