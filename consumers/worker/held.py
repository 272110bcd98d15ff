"""Notices that a backfill has let go what it held: the partition is asked for again, and its checkpoints read anew.

Nothing is asked while nothing is held. What if it is noticed late, or never? The version writes nothing until then, and
its next takeover goes on where the backfill left off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import structlog

from ...inbox import holds
from ...inbox.event import Partition
from ...inbox.holding import Holdings
from ...inbox.store import Store

log = structlog.get_logger(__name__)

HELD_S: Final = 1.0
"""A backfill that took minutes is followed by a second in which its projection stands still."""


@final
class HeldVersions:
    """Owned by the event loop."""

    def __init__(self, store: Store, holdings: Holdings, again: Callable[[Partition, int], None]) -> None:
        """`again` asks for a partition (with its epoch) anew."""
        self._store = store
        self._holdings = holdings
        self._again = again

    async def look(self) -> None:
        """Ask for the partitions in which something is free again."""
        left_out = [
            (key, holding.partition)
            for holding in self._holdings
            for key, offset in holding.checkpoints.items()
            if offset == holds.HELD
        ]
        if not left_out:
            return
        async with self._store.look() as conn:
            free = await holds.free(conn, self._store.tables, left_out)
        for partition in sorted(free):
            holding = self._holdings.current(partition)
            if holding is not None and holds.HELD in holding.checkpoints.values():
                log.info("handler_let_go", partition=str(partition))
                self._again(partition, holding.epoch)
