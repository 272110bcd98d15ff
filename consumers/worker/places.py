"""The places of a handler: how many may run at once, on the fast way and on the slow one together. No IO."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import final


@final
class Places:
    """A counting semaphore that can be asked without waiting. Owned by the event loop; first come, first served."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Take a place, as soon as it is one's turn."""
        if self.take():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was handed over just now
            else:
                with suppress(ValueError):  # passed over already
                    self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        """Leave a place: to whoever waits longest, else free."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
