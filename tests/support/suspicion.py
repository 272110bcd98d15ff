"""When a process may be killed again without its death looking like a record's doing."""

from __future__ import annotations

from typing import Final

from tests.support.crash_world import World

STANDING: Final = """
    SELECT f.partition, min(c.next_offset) AS point FROM tidegate.fence f JOIN tidegate.checkpoint c USING (partition)
     WHERE f.crashes > 0 GROUP BY f.partition, f.crash_point HAVING min(c.next_offset) = f.crash_point
"""
"""Partitions whose owner has died, and where nobody has got any further since."""


async def until_nothing_is_suspected(world: World) -> None:
    """Return once whoever took over a dead member's partitions has got further than that one in each of them.

    Members that die faster than they can do anything look like members that die of a record, and their partitions are
    read one by one; a death then is one too many.
    """

    async def holds() -> bool:
        rows = await world.db.fetch(STANDING)
        behind = [row for row in rows if row["point"] < world.ends.get(row["partition"], 0)]
        return not behind and not await world.db.fetchval("SELECT count(*) FROM tidegate.suspect WHERE in_hand")

    await world.until(holds, "anybody to get further than the dead")
