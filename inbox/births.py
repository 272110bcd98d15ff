"""Births: where each handler stood when a generation of claims began; what lies below has no claims that are kept.

A missing claim proves that an event was not handled only at or above the birth in the oldest generation that is kept.
Below it nobody can tell: the claim went with an older generation, or the handler began there, and whoever handled the
events before it (another program, another handler, this one in another database) is not known here. So the window is
told by offsets, never by clocks. It is asked by what reads old records: a backfill, letters that come back.

A handler's birth is written where its first checkpoint is, in the same transaction, for every generation that there is
(none of them has claims of it from before); a generation that is made later gets the checkpoints of its moment. What if
one is made at the same time? The generation lock, which the caller holds, keeps the two apart. What if the topic is
made anew? Its offsets mean other records: the first checkpoint of the new incarnation replaces the birth, and one of
another incarnation is never read.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .tables import Tables


async def note(
    conn: AsyncConnection,
    t: Tables,
    handlers: Sequence[tuple[int, int]],
    partition: Partition,
    incarnation: int,
    next_offset: int,
) -> None:
    """Lock order 8, behind the generation lock: `handlers` (id, version) have their first checkpoint here."""
    await conn.execute(
        t.sql("""
            INSERT INTO {generation_birth} AS b (n, handler, version, topic, partition, incarnation, next_offset)
            SELECT g.n, u.handler, u.version, :topic, :partition, :incarnation, :next_offset
              FROM {generation} g
             CROSS JOIN unnest(CAST(:handlers AS bigint[]), CAST(:versions AS int[])) u (handler, version)
             ORDER BY 1, 2, 3
            ON CONFLICT (n, handler, version, topic, partition)
            DO UPDATE SET incarnation = excluded.incarnation, next_offset = excluded.next_offset
             WHERE b.incarnation <> excluded.incarnation
        """),
        {
            "topic": partition.topic,
            "partition": partition.number,
            "incarnation": incarnation,
            "next_offset": next_offset,
            "handlers": [handler for handler, _ in handlers],
            "versions": [version for _, version in handlers],
        },
    )


async def read(conn: AsyncConnection, t: Tables, handler_id: int, version: int) -> dict[Partition, int]:
    """Where the handler's claims begin, in the topics as they are now. No lock.

    A partition without such a place has lost no claims.
    """
    rows = await conn.execute(
        t.sql("""
            SELECT b.topic, b.partition, b.next_offset FROM {generation_birth} b
              LEFT JOIN {topic} t ON t.name = b.topic
             WHERE b.n = (SELECT min(n) FROM {generation}) AND b.handler = :handler AND b.version = :version
               AND b.incarnation = COALESCE(t.incarnation, 0)
        """),
        {"handler": handler_id, "version": version},
    )
    return {Partition(topic, number): next_offset for topic, number, next_offset in rows}
