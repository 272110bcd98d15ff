"""What stands in the failure table is read before the first records are looked at, and again once a filter is worn.

While a filter is behind, each id is looked up, and no group of commands goes the short way: that costs more than to
wait until it has caught up. What if the database is away, or there is more than can be read in that time? Then work
begins all the same, and is right, only slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, final

import structlog

from ...inbox.store import STORE_ERRORS, Store

FIRST_MAX_S: Final = 0.8
"""A million ids take a quarter of a second, half a second where others use the machine too; most of it goes by while
the worker is put together and the group is joined."""

AGAIN_S: Final = 5.0
"""A filter is worn after ten thousand new rows at least: seconds of nothing but failures."""

log = structlog.get_logger(__name__)


@final
class Learning:
    """Begins at once, beside what else there is to do before the start."""

    def __init__(self, store: Store, handler_ids: Collection[int]) -> None:
        self._failing = store.failing
        self._learned = asyncio.Event()
        self._task = asyncio.create_task(self._learn(store, handler_ids))

    async def run(self) -> None:
        """Until cancelled. Raises what it meets that is no outage."""
        await self._task

    async def before(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run what looks records up, once everything was read, or that has taken too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_MAX_S):
                await self._learned.wait()
        self._failing.nothing_came_yet()
        await run()

    async def close(self) -> None:
        """End it, also where nobody came to run it."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _learn(self, store: Store, handler_ids: Collection[int]) -> None:
        while True:
            try:
                await store.failing.catch_up(store.look, store.tables, handler_ids)
            except STORE_ERRORS as error:
                log.debug("look_left_out", error=type(error).__name__)
            self._learned.set()
            await asyncio.sleep(AGAIN_S)
