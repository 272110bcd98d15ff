"""`tidegate lag`: how far each handler is behind, from checkpoints and brokers. No worker need be alive for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox.event import Partition
from ...inbox.migrate import check_schema
from ...inbox.store import Store
from ...inbox.tables import Tables
from ..settings import Settings
from .cluster import Cluster
from .options import OUT
from .preparing import open_store


@dataclass(frozen=True, slots=True)
class Position:
    """One handler's checkpoint in one partition, as the database holds it."""

    consumer: str
    handler: str
    version: int
    topic: str
    partition: int
    next_offset: int
    detached: bool
    kafka_offset: int | None


@dataclass(frozen=True, slots=True)
class Behind:
    """A line of the table: `end` None where the partition is gone, `next_offset` None where nobody began it."""

    consumer: str
    handler: str
    version: int
    topic: str
    partition: int
    next_offset: int | None
    end: int | None
    lag: int | None
    kafka_offset: int | None
    detached: bool = False


async def lag(settings: Settings, consumer: str | None, as_json: bool) -> None:
    """Print the lag of every handler of every consumer, or of one."""
    store = open_store(settings, "lag")
    try:
        found = await _positions(store, consumer)
    finally:
        await store.database.close()
    ends = Cluster(settings).ends(sorted({position.topic for position in found}))
    lines = behind(found, ends)
    if as_json:
        OUT.print_json(json.dumps([asdict(line) for line in lines]))
    else:
        _show(lines)


def behind(found: Sequence[Position], ends: Mapping[Partition, tuple[int, int]]) -> list[Behind]:
    """Put checkpoints and ends together; a partition that no checkpoint knows lags by all that it holds.

    A checkpoint below the low watermark lags from there: what retention removed cannot be read any more.
    """
    lines = [_behind(position, ends.get(Partition(position.topic, position.partition))) for position in found]
    handlers = {(p.consumer, p.handler, p.version, p.topic) for p in found if not p.detached}
    known = {(p.consumer, p.handler, p.version, p.topic, p.partition) for p in found}
    lines += [
        Behind(*handler, partition.number, None, end, end - low, None)
        for handler in handlers
        for partition, (low, end) in ends.items()
        if partition.topic == handler[3] and (*handler, partition.number) not in known
    ]
    return sorted(lines, key=lambda line: (line.consumer, line.handler, line.version, line.topic, line.partition))


def _behind(p: Position, ends: tuple[int, int] | None) -> Behind:
    end = None if ends is None else ends[1]
    lag_records = None if ends is None else max(0, ends[1] - max(ends[0], p.next_offset))
    place = (p.consumer, p.handler, p.version, p.topic, p.partition)
    return Behind(*place, p.next_offset, end, lag_records, p.kafka_offset, p.detached)


async def _positions(store: Store, consumer: str | None) -> list[Position]:
    async with store.transaction() as conn:
        await check_schema(conn, store.tables)
        return await read_positions(conn, store.tables, consumer)


async def read_positions(conn: AsyncConnection, t: Tables, consumer: str | None) -> list[Position]:
    """Every checkpoint, of one consumer or of all."""
    rows = await conn.execute(
        t.sql("""
            SELECT h.consumer, h.name, c.version, c.topic, c.partition, c.next_offset, c.detached, f.kafka_offset
              FROM {checkpoint} c JOIN {handler} h ON h.id = c.handler
              LEFT JOIN {fence} f ON f.consumer = h.consumer AND f.topic = c.topic AND f.partition = c.partition
             WHERE CAST(:consumer AS text) IS NULL OR h.consumer = :consumer
             ORDER BY h.consumer, h.name, c.version, c.topic, c.partition
        """).bindparams(sa.bindparam("consumer", type_=sa.Text())),
        {"consumer": consumer},
    )
    return [Position(*row) for row in rows]


def _show(lines: Sequence[Behind]) -> None:
    if not lines:
        OUT.print("no consumer has started yet")
        return
    table = Table("consumer", "handler", "partition", "checkpoint", "end", "lag", box=None, pad_edge=False)
    for name in ("checkpoint", "end", "lag"):
        next(column for column in table.columns if column.header == name).justify = "right"
    for line in lines:
        handler = f"{line.handler or '(records without a handler)'} v{line.version}"
        table.add_row(
            line.consumer,
            handler + (" (detached)" if line.detached else ""),
            f"{line.topic}/{line.partition}",
            "not begun" if line.next_offset is None else str(line.next_offset),
            "gone" if line.end is None else str(line.end),
            "-" if line.lag is None else str(line.lag),
        )
    OUT.print(table)
    total = sum(line.lag or 0 for line in lines if not line.detached)
    OUT.print(f"{total} events behind, over all handlers")
