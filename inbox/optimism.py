"""Rows that are about to be written are taken to be new, as nearly all are, until one of them is known.

A row that may be there already costs PostgreSQL more (`ON CONFLICT`): it looks first, marks the row while it enters the
index, and writes a second record to the log that takes the mark away. That is a fifth of what a claim takes and a
twelfth of an intent. A plain INSERT that meets a known row fails as a whole, and nothing of it is there.

What if that happens? Then the same is written again, carefully, and so is whatever comes within `CAREFUL_S`: where
repeats come in numbers (a producer that retries, a handler's second attempts) nothing is tried in vain. The server's
log shows one error line for each time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, final

import asyncpg

T = TypeVar("T")

CAREFUL_S: Final = 30.0
"""Two lines a minute in the server's log, and two groups written twice, are what the worst stream of repeats costs."""


@final
class Optimism:
    """Of one kind of statement. Owned by its writer."""

    __slots__ = ("_again_s", "_monotonic_s")

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._again_s = float("-inf")

    async def write(self, write: Callable[[bool], Awaitable[T]]) -> T:
        """What `write(True)` gives, which takes all for new, or `write(False)`, which does not."""
        if self._monotonic_s() >= self._again_s:
            try:
                return await write(True)
            except asyncpg.UniqueViolationError:
                self._again_s = self._monotonic_s() + CAREFUL_S
        return await write(False)
