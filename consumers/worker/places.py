"""The places of a handler: how many may run at once, on the fast way and on the slow one together. No IO."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import final


@final
class Places:
    """A counting semaphore that can be asked without waiting. Owned by the event loop; first come, first served."""

    __slots__ = ("_free", "_resting", "_waiting", "count")

    def __init__(self, count: int) -> None:
        self.count = self._free = count
        self._resting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    def turn(self) -> asyncio.Future[None]:
        """Done once a place is taken for who asked, whose turn it is then."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return turn

    async def wait(self) -> None:
        """Take a place, as soon as it is one's turn."""
        if self.take():
            return
        turn = self.turn()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                if turn.exception() is None:
                    self.give_back()  # it was handed over just now
            else:
                with suppress(ValueError):  # passed over already
                    self._waiting.remove(turn)
            raise

    def may_rest(self) -> bool:
        """Be one of those that rest beside their places, if there are not too many."""
        if self._resting >= self.count:
            return False
        self._resting += 1
        return True

    def rested(self) -> None:
        """One of them wants a place again, or none any more."""
        self._resting -= 1

    def give_back(self) -> None:
        """Leave a place: to whoever waits longest, else free."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def refuse(self, error: Exception) -> None:
        """No place comes free: whoever waits is told so."""
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_exception(error)


@final
class Seat:
    """The place of one event, which it leaves to others while it waits for its next attempt. Owned by its task.

    Where everything fails, whoever waits would be replaced by the next that fails, as fast as they come: so no more may
    rest beside their places than there are places, and the others keep theirs.
    """

    __slots__ = ("_left", "_places", "_taken")

    def __init__(self, places: Places, left: Callable[[int], None], *, taken: bool) -> None:
        """`left(1)` is called when the place was left for a while, `left(-1)` when it was taken again."""
        self._places = places
        self._left = left
        self._taken = taken

    async def take(self) -> None:
        """Have a place."""
        if not self._taken:
            await self._places.wait()
            self._taken = True

    async def rest(self, seconds: float) -> None:
        """Wait, and have a place again."""
        if not self._places.may_rest():
            await asyncio.sleep(seconds)
            return
        self.leave()
        self._left(1)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._places.rested()
            self._left(-1)
        await self.take()

    def leave(self) -> None:
        """Give the place back, where there is one."""
        if self._taken:
            self._taken = False
            self._places.give_back()
