"""What stands in the failure table is read before the first records are looked at, and again once a filter is worn.

While a filter is behind, each id is looked up, and no group of commands goes the short way: that costs more than to
wait until it has caught up. What if the database is away, or there is more than can be read in that time? Then work
begins all the same, and is right, only slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

import structlog

from ...inbox.store import STORE_ERRORS, Store

FIRST_MAX_S: Final = 0.8
"""A million ids take 0.3 s, half a second where others use the machine too; half of it goes by while the group is
joined."""

AGAIN_S: Final = 5.0
"""A filter is worn after ten thousand new rows at least: seconds of nothing but failures."""

log = structlog.get_logger(__name__)


async def learn_failing(store: Store, handler_ids: Collection[int], learned: asyncio.Event) -> None:
    """Catch up now, and look now and then whether there is something to catch up with. Until cancelled."""
    while True:
        try:
            await store.failing.catch_up(store.look, store.tables, handler_ids)
        except STORE_ERRORS as error:
            log.debug("look_left_out", error=type(error).__name__)
        learned.set()
        await asyncio.sleep(AGAIN_S)


async def once_learned(learned: asyncio.Event, run: Callable[[], Awaitable[None]]) -> None:
    """Run once that is done, or has taken too long."""
    with suppress(TimeoutError):
        await asyncio.wait_for(learned.wait(), FIRST_MAX_S)
    await run()
