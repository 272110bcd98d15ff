"""Holds: a backfill keeps a projection's live version from writing, durably, and lets it go on where its own end is.

A held checkpoint is one that only the backfill's number in `held` may let go: `checkpoint.move` leaves it alone, so a
batch of the live version that would move it is undone, whoever wrote it. It is a durable mark, then a wait for open
holders, as everywhere: `take` waits for the row locks of batches that have moved it already, and whatever they wrote
lies below the offset that comes back.

1. A batch of the live version has written the user's tables, and is about to move its checkpoint. 2. `take` commits.
3. The batch finds the checkpoint held, and is undone with all that it wrote: its worker asks for the partition again,
reads the checkpoints, and leaves the held version out from then on. Were 2 and 3 the other way round, `take` would have
waited for the batch's commit, and seen its checkpoint.

What if nobody lets it go? It stays held over every restart, shown by `tidegate lag` and `tidegate backfill list`, until
its backfill has ended or is abandoned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .tables import Tables

HELD: Final = 1 << 62
"""A checkpoint of a held version in memory: behind every record, so that its worker neither gives it one nor moves it.
Kafka counts to 2^63."""


async def take(
    conn: AsyncConnection, t: Tables, handler: tuple[int, int], number: int, starts: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, int]:
    """Lock order 8: hold this version of a handler for a backfill; where it stands in each partition from now on.

    `starts` are (incarnation, offset) for partitions where it never was. Those that do not come back are held by
    another, or their checkpoint is one of another incarnation.
    """
    partitions = sorted(starts)
    places = {
        "handler": handler[0],
        "version": handler[1],
        "number": number,
        "incarnations": [starts[p][0] for p in partitions],
        "offsets": [starts[p][1] for p in partitions],
        **_places(partitions),
    }
    await conn.execute(
        t.sql("""
            INSERT INTO {checkpoint} (handler, version, topic, partition, incarnation, next_offset)
            SELECT :handler, :version, topic, partition, incarnation, next_offset
              FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:incarnations AS bigint[]),
                          CAST(:offsets AS bigint[])) u (topic, partition, incarnation, next_offset)
             ORDER BY topic, partition
            ON CONFLICT DO NOTHING
        """),
        places,
    )
    rows = await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT c.topic, c.partition
                FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:incarnations AS bigint[]),
                            CAST(:offsets AS bigint[])) u (topic, partition, incarnation, next_offset)
                JOIN {checkpoint} c USING (topic, partition, incarnation)
               WHERE c.handler = :handler AND c.version = :version AND c.held IS NULL
               ORDER BY c.topic, c.partition FOR NO KEY UPDATE OF c)
            UPDATE {checkpoint} c SET held = :number, detached = true FROM mine m
             WHERE c.handler = :handler AND c.version = :version AND c.topic = m.topic AND c.partition = m.partition
            RETURNING c.topic, c.partition, c.next_offset
        """),
        places,
    )
    return {Partition(topic, number_): next_offset for topic, number_, next_offset in rows}


async def let_go(conn: AsyncConnection, t: Tables, number: int, offsets: Mapping[Partition, int]) -> int:
    """Lock order 8: what the backfill holds goes on at these offsets, or where it stands if that is higher; how many.

    It counts for the start again: its workers begin at the lowest.
    """
    partitions = sorted(offsets)
    rows = await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT c.handler, c.version, c.topic, c.partition, greatest(c.next_offset, u.next_offset) AS next_offset
                FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:offsets AS bigint[]))
                     u (topic, partition, next_offset)
                JOIN {checkpoint} c USING (topic, partition)
               WHERE c.held = :number
               ORDER BY c.handler, c.version, c.topic, c.partition FOR NO KEY UPDATE OF c)
            UPDATE {checkpoint} c SET held = NULL, detached = false, next_offset = m.next_offset FROM mine m
             WHERE c.handler = m.handler AND c.version = m.version AND c.topic = m.topic AND c.partition = m.partition
            RETURNING 1
        """),
        {"number": number, "offsets": [offsets[p] for p in partitions], **_places(partitions)},
    )
    return len(rows.all())


async def standing(
    conn: AsyncConnection, t: Tables, handler: tuple[int, int]
) -> dict[Partition, tuple[int, int, int | None]]:
    """Incarnation, next offset, and which backfill holds it, for each partition that the version ever had. No lock."""
    c = t.checkpoint.c
    rows = await conn.execute(t.checkpoint.select().where(c.handler == handler[0], c.version == handler[1]))
    return {Partition(row.topic, row.partition): (row.incarnation, row.next_offset, row.held) for row in rows}


async def free(
    conn: AsyncConnection, t: Tables, left_out: Collection[tuple[tuple[int, int], Partition]]
) -> set[Partition]:
    """Partitions in which one of these versions, that a worker leaves out, is held no more. No lock."""
    asked = sorted(left_out)
    rows = await conn.execute(
        t.sql("""
            SELECT DISTINCT c.topic, c.partition FROM {checkpoint} c
              JOIN unnest(CAST(:handlers AS bigint[]), CAST(:versions AS int[]), CAST(:topics AS text[]),
                          CAST(:partitions AS int[])) u (handler, version, topic, partition)
             USING (handler, version, topic, partition)
             WHERE c.held IS NULL
        """),
        {
            "handlers": [key[0] for key, _ in asked],
            "versions": [key[1] for key, _ in asked],
            **_places([partition for _, partition in asked]),
        },
    )
    return {Partition(topic, number) for topic, number in rows}


def _places(partitions: Sequence[Partition]) -> dict[str, list[object]]:
    return {"topics": [p.topic for p in partitions], "partitions": [p.number for p in partitions]}
