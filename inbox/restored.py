"""What an operator declared about a database that was put back to an earlier copy.

Below `until_offset` the database may have forgotten what it knew: a missing claim or intent proves nothing there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .tables import Tables


async def declare_restored(
    conn: AsyncConnection, t: Tables, consumer: str, until: Mapping[Partition, int], declared_by: str
) -> None:
    """Everything below these offsets (the partitions' ends at this moment) is after a restore.

    A bound is only ever raised.
    """
    partitions = sorted(until)
    await conn.execute(
        t.sql("""
            INSERT INTO {restored} AS r (consumer, topic, partition, until_offset, declared_by)
            SELECT :consumer, topic, partition, until_offset, :declared_by
              FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:offsets AS bigint[]))
                   u (topic, partition, until_offset)
            ON CONFLICT (consumer, topic, partition) DO UPDATE
               SET until_offset = greatest(r.until_offset, excluded.until_offset),
                   declared_at = clock_timestamp(), declared_by = excluded.declared_by
        """),
        {
            "consumer": consumer,
            "declared_by": declared_by,
            "topics": [p.topic for p in partitions],
            "partitions": [p.number for p in partitions],
            "offsets": [until[p] for p in partitions],
        },
    )


async def read(
    conn: AsyncConnection, t: Tables, consumer: str, partitions: Collection[Partition]
) -> dict[Partition, int]:
    """The declared bounds, of those partitions that have one."""
    c = t.restored.c
    rows = await conn.execute(
        sa.select(c.topic, c.partition, c.until_offset).where(
            c.consumer == consumer, sa.tuple_(c.topic, c.partition).in_([tuple(p) for p in sorted(partitions)])
        )
    )
    return {Partition(row.topic, row.partition): row.until_offset for row in rows}
