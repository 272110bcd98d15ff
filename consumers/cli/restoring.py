"""`tidegate restored`: the operator's word that the database was put back to an earlier copy, and may go on from there.

1. The bound of each partition is its end at this moment: below it a missing row proves nothing (`inbox.restored`).
2. What Kafka has as committed is taken over into the fence rows, which are behind it: that was the alarm. Checkpoints
   stay where the copy has them, so the records behind them are read again; claims that the copy has hold them back.
3. Both, and the audit line, in one transaction.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox import audit
from ...inbox.audit import AuditLine
from ...inbox.errors import ConfigurationError
from ...inbox.event import Partition
from ...inbox.migrate import check_schema
from ...inbox.restored import declare_restored
from ...inbox.store import Store
from ...inbox.tables import Tables
from ..settings import Settings
from .cluster import Cluster
from .options import OUT
from .preparing import open_store


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is said of one partition: Kafka's offset (None without one), the fence's, and the end as the bound."""

    partition: Partition
    kafka_offset: int | None
    fence_offset: int | None
    until_offset: int


async def look(settings: Settings, consumer: str) -> list[Declaration]:
    """What would be declared now. Raises ConfigurationError for a consumer that neither the database nor Kafka knows.

    One that only Kafka knows is a group that another program used, or one that is younger than the copy.
    """
    cluster = Cluster(settings)
    committed = cluster.committed(consumer)
    store = open_store(settings, "restored")
    try:
        fences = await _fences(store, consumer, anyway=bool(committed))
    finally:
        await store.database.close()
    topics = sorted({partition.topic for partition in (*fences, *committed)})
    return [
        Declaration(partition, committed.get(partition), fences.get(partition), end)
        for partition, (_, end) in sorted(cluster.ends(topics).items())
    ]


async def declare(settings: Settings, consumer: str, declarations: list[Declaration]) -> None:
    """Write it down."""
    store = open_store(settings, "restored")
    actor = getpass.getuser()
    try:
        async with store.transaction() as conn:
            await _accept(conn, store.tables, consumer, declarations)
            until = {d.partition: d.until_offset for d in declarations}
            await declare_restored(conn, store.tables, consumer, until, actor)
            bounds = {f"until {d.partition}": d.until_offset for d in declarations}
            line = AuditLine(act="restored", actor=actor, consumer=consumer, details=bounds)
            await audit.write(conn, store.tables, line)
    finally:
        await store.database.close()


def show(consumer: str, declarations: list[Declaration]) -> None:
    """The table that the operator says yes to."""
    table = Table(
        "partition", "committed to Kafka", "as the database has it", "end (the bound)", box=None, pad_edge=False
    )
    for d in declarations:
        table.add_row(str(d.partition), _number(d.kafka_offset), _number(d.fence_offset), str(d.until_offset))
    OUT.print(
        f"consumer {consumer}: up to these ends a missing row will prove nothing, and what the copy does not know"
    )
    OUT.print("is read again (what it has claimed stays claimed):")
    OUT.print(table)


def _number(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


async def _fences(store: Store, consumer: str, *, anyway: bool) -> Mapping[Partition, int | None]:
    async with store.transaction() as conn:
        await check_schema(conn, store.tables)
        f = store.tables.fence.c
        rows = await conn.execute(sa.select(f.topic, f.partition, f.kafka_offset).where(f.consumer == consumer))
        found = {Partition(row.topic, row.partition): row.kafka_offset for row in rows}
        if found or anyway:
            return found
        names = (await conn.scalars(sa.select(f.consumer).distinct().order_by(f.consumer))).all()
    fix = f"name one of: {', '.join(names)}" if names else "nothing is known yet, so nothing can be missing: start it"
    raise ConfigurationError.of("--consumer", f"the database knows no consumer {consumer!r}", fix)


async def _accept(conn: AsyncConnection, t: Tables, consumer: str, declarations: list[Declaration]) -> None:
    """A fence row that is behind Kafka is no alarm any more. It only ever goes forward; `epoch` and `wanted` stay."""
    ahead = [(d.partition, d.kafka_offset) for d in declarations if d.kafka_offset is not None]
    await conn.execute(
        t.sql("""
            INSERT INTO {fence} AS f (consumer, topic, partition, kafka_offset)
            SELECT :consumer, topic, partition, kafka_offset
              FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:offsets AS bigint[]))
                   u (topic, partition, kafka_offset) ORDER BY topic, partition
            ON CONFLICT (consumer, topic, partition) DO UPDATE
               SET kafka_offset = greatest(f.kafka_offset, excluded.kafka_offset)
        """),
        {
            "consumer": consumer,
            "topics": [partition.topic for partition, _ in ahead],
            "partitions": [partition.number for partition, _ in ahead],
            "offsets": [offset for _, offset in ahead],
        },
    )
