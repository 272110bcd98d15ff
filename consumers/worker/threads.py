"""The threads of `def` functions: who waits for one, and which are kept by functions that were given up.

A function in a thread cannot be ended. Past its deadline its event goes on without it, but its thread is not free
before it comes back. What a function waits for a thread is no time of its own: its deadline begins with the thread.

Owned by the event loop. What if every thread is kept? Nothing that is `def` runs any more, and nobody can tell a slow
function from one that hangs. After `ALL_KEPT_MAX_S` whoever waits for a thread is told with a FatalError, and the
process leaves: a new one has all its threads, and what waited was not begun and is read again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar, final

import structlog

from ...dlq.guard import not_counted
from ...inbox.errors import FatalError
from .places import Places

log = structlog.get_logger(__name__)

T = TypeVar("T")

ALL_KEPT_MAX_S: Final = 60.0
"""That every thread is kept may pass: a slow provider, and deadlines shorter than its answers. It is waited for as long
as an HTTP client, a driver or a system call may take that has any bound at all."""


@final
class Threads:
    """So many, made as they are needed."""

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, "tidegate-handler")
        self._places = Places(count)
        self._kept: dict[Future[Any], str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: FatalError | None = None

    async def run(self, name: str, call: Callable[[], T]) -> T:
        """What `call` gives, or raises, in a thread. `name` is told of it if it keeps the thread.

        Raises FatalError where no thread will come free.
        """
        if not self._places.take():
            if self._stuck is not None:
                raise self._stuck
            with not_counted():
                await self._places.wait()
        work: Future[T] | None = None
        try:
            work = self._executor.submit(call)
            return await asyncio.wrap_future(work)
        finally:
            if work is None or work.done():
                self._places.give_back()
            else:
                self._keep(name, work)

    def close(self) -> None:
        """No more are begun; what runs is left to itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._timer is not None:
            self._timer.cancel()

    def _keep(self, name: str, work: Future[Any]) -> None:
        """It was given up and goes on."""
        loop = asyncio.get_running_loop()
        self._kept[work] = name
        log.warning("thread_kept", function=name, kept=len(self._kept), threads=self._places.count)
        if len(self._kept) == self._places.count:
            self._timer = loop.call_later(ALL_KEPT_MAX_S, self._give_up)

        def back(done: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._came_back, done)

        work.add_done_callback(back)

    def _came_back(self, work: Future[Any]) -> None:
        name = self._kept.pop(work)
        log.info("thread_free_again", function=name, kept=len(self._kept), threads=self._places.count)
        self._stuck = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._places.give_back()

    def _give_up(self) -> None:
        self._timer = None
        by = ", ".join(f"{name} ({n})" for name, n in sorted(Counter(self._kept.values()).items()))
        self._stuck = FatalError(
            f"every thread for `def` functions is kept by one that does not end: {by}",
            fix="bound whatever they wait for, or raise worker.handler_threads_max if they are only slow",
        )
        self._places.refuse(self._stuck)
