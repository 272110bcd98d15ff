"""What is rare and costs much goes together: one behind the other it costs half.

Where one event in a hundred fails, the code that looks at it, and all that it reads, has left the processor's caches by
the time that the next one fails: alone it takes three times as long as behind another one. So what failed waits for the
next a moment, and waits for another attempt end at moments that many share. Owned by the event loop. What if the
process stops meanwhile? Nothing of these events is written: they are read again, as ever.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar, final

T = TypeVar("T")

APART_S: Final = 0.1
"""Between two looks; the first after a while is at once. Of 800 failures a second 80 wait for each other, and nobody
else is held up by that but later events of their keys."""

MOMENTS_S: Final[tuple[tuple[float, float], ...]] = ((0.1, 0.1), (0.02, 0.05))
"""Waits of so many seconds and more end at multiples of so many. A shorter one is somebody's wish to be quick."""


@final
class Together(Generic[T]):
    """`look` gets what was added since the last look."""

    def __init__(self, look: Callable[[Sequence[T]], None]) -> None:
        self._look = look
        self._waiting: list[T] = []
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: T) -> None:
        """Have it looked at, soon."""
        self._waiting.append(one)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._next_s:
                self._ring()
            else:
                self._timer = loop.call_at(self._next_s, self._ring)

    def now(self) -> None:
        """Have a look: nothing more comes before."""
        if self._timer is not None:
            self._timer.cancel()
        self._ring()

    def drop(self) -> None:
        """Nobody looks any more."""
        self._waiting = []
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        waiting, self._waiting, self._timer = self._waiting, [], None
        self._next_s = asyncio.get_running_loop().time() + APART_S
        if waiting:
            self._look(waiting)


@final
class Rests(Generic[T]):
    """`wake` gets all whose time is over: who waits for the same moment waits for one timer."""

    def __init__(self, wake: Callable[[Sequence[T]], None]) -> None:
        self._wake = wake
        self._waiting: dict[float, tuple[asyncio.TimerHandle, list[T]]] = {}

    def add(self, one: T, delay_s: float) -> None:
        """Have it woken after `delay_s`, or a little later (`until_moment_s`)."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        at_s = math.ceil(round((now_s + until_moment_s(delay_s, now_s)) * 1_000, 3)) / 1_000
        found = self._waiting.get(at_s)
        if found is None:
            found = self._waiting[at_s] = (loop.call_at(at_s, self._ring, at_s), [])
        found[1].append(one)

    def drop(self) -> None:
        """Nobody is woken any more."""
        for timer, _ in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _ring(self, at_s: float) -> None:
        _, those = self._waiting.pop(at_s)
        self._wake(those)


def until_moment_s(delay_s: float, now_s: float) -> float:
    """How long to wait from `now_s` on, at least `delay_s`, so that many waits end at once.

    >>> until_moment_s(0.25, 10.0), until_moment_s(0.26, 10.0), until_moment_s(0.03, 10.0), until_moment_s(0.01, 10.0)
    (0.3, 0.3, 0.05, 0.01)
    """
    for long_s, moments_s in MOMENTS_S:
        if delay_s >= long_s:
            return round(math.ceil(round((now_s + delay_s) / moments_s, 6)) * moments_s - now_s, 6)
    return delay_s
