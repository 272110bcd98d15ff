"""Events that are over but for the endings of their calls, which are on their way to the database.

Endings go in groups, in their order, so one look frees all that a group held: who waits for each of them alone would
cost more than the group. Owned by the event loop. What if an ending is cut off on its way? The process ends; its event
is not over, and is read again. What if it fails? The ledger retries for as long as that helps, so it is a defect, and
ends the worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from .completion import Completion

Endings: TypeAlias = "Sequence[asyncio.Future[None]]"


@final
class Unwritten:
    """`over` gets each completion once its calls' endings are durable, `failed` what one of them failed with."""

    __slots__ = ("_failed", "_over", "_waiting")

    def __init__(self, over: Callable[[Completion], None], failed: Callable[[BaseException], None]) -> None:
        self._over = over
        self._failed = failed
        self._waiting: deque[tuple[Endings, Completion]] = deque()

    def add(self, endings: Endings, completion: Completion) -> None:
        """Behind these endings, and behind whoever waits already."""
        self._waiting.append((endings, completion))
        if len(self._waiting) == 1:
            self._look()

    def _look(self, _: object = None) -> None:
        waiting = self._waiting
        while waiting:
            endings, completion = waiting[0]
            for ending in endings:
                if not ending.done():
                    ending.add_done_callback(self._look)
                    return
            waiting.popleft()
            for ending in endings:
                if ending.cancelled():
                    break
                if (error := ending.exception()) is not None:
                    self._failed(error)
                    break
            else:
                self._over(completion)
