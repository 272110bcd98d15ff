"""Checkpoints: how far each version of a handler is in each partition, moved by compare-and-set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .tables import Tables


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The next offset to handle, in the incarnation of the topic that it was written for.

    A detached one does not count for the start; one that a backfill has `held`, by its number, nobody moves.
    """

    next_offset: int
    incarnation: int = 0
    detached: bool = False
    held: int | None = None


class Move(NamedTuple):
    """Move a checkpoint from `old`, the last value whose commit was confirmed, to `new`."""

    handler_id: int
    version: int
    topic: str
    partition: int
    old: int
    new: int


class Mismatch(NamedTuple):
    """A checkpoint that was not at `old`, or is held: `found` is where it is, None where there is no row.

    A lower one than this worker wrote means that the database went back in time.
    """

    move: Move
    found: int | None


async def read(
    conn: AsyncConnection, t: Tables, consumer: str, partition: Partition
) -> dict[tuple[int, int], Checkpoint]:
    """The checkpoints of all the consumer's handlers (also of those that the app has no more): (id, version) -> it."""
    rows = await conn.execute(
        t.sql("""
            SELECT c.handler, c.version, c.next_offset, c.incarnation, c.detached, c.held
              FROM {checkpoint} c JOIN {handler} h ON h.id = c.handler
             WHERE h.consumer = :consumer AND c.topic = :topic AND c.partition = :partition
        """),
        {"consumer": consumer, "topic": partition.topic, "partition": partition.number},
    )
    return {(row[0], row[1]): Checkpoint(*row[2:]) for row in rows}


async def create(
    conn: AsyncConnection,
    t: Tables,
    handlers: Sequence[tuple[int, int]],
    partition: Partition,
    incarnation: int,
    next_offset: int,
) -> None:
    """Lock order 8: a first checkpoint for each of `handlers` (id, version) that has none."""
    await conn.execute(
        t.sql("""
            INSERT INTO {checkpoint} (handler, version, topic, partition, incarnation, next_offset)
            SELECT handler, version, :topic, :partition, :incarnation, :next_offset
              FROM unnest(CAST(:handlers AS bigint[]), CAST(:versions AS int[])) u (handler, version)
            ON CONFLICT DO NOTHING
        """),
        {**_handlers(handlers), **_place(partition), "incarnation": incarnation, "next_offset": next_offset},
    )


async def reset(
    conn: AsyncConnection,
    t: Tables,
    handlers: Sequence[tuple[int, int]],
    partition: Partition,
    incarnation: int,
    next_offset: int,
) -> None:
    """Lock order 8: set checkpoints whatever they were, but those that are held.

    Only by declared policy: the topic was made anew, or an operator moves them.
    """
    await conn.execute(
        t.sql("""
            INSERT INTO {checkpoint} AS c (handler, version, topic, partition, incarnation, next_offset)
            SELECT handler, version, :topic, :partition, :incarnation, :next_offset
              FROM unnest(CAST(:handlers AS bigint[]), CAST(:versions AS int[])) u (handler, version)
            ON CONFLICT (handler, version, topic, partition)
            DO UPDATE SET incarnation = excluded.incarnation, next_offset = excluded.next_offset
             WHERE c.held IS NULL
        """),
        {**_handlers(handlers), **_place(partition), "incarnation": incarnation, "next_offset": next_offset},
    )


async def move(conn: AsyncConnection, t: Tables, moves: Sequence[Move]) -> list[Mismatch]:
    """Lock order 8, the last statement of a transaction: move all, or tell which were not where they were expected.

    A mismatch says that something else wrote: roll back.
    """
    if not moves:
        return []
    rows = await conn.execute(
        t.sql("""
            WITH moves AS (
              SELECT * FROM unnest(CAST(:movers AS bigint[]), CAST(:versions AS int[]), CAST(:topics AS text[]),
                                   CAST(:partitions AS int[]), CAST(:olds AS bigint[]), CAST(:news AS bigint[]))
                            u (handler, version, topic, partition, old, new)),
            mine AS (
              SELECT c.handler, c.version, c.topic, c.partition, m.new FROM moves m
                JOIN {checkpoint} c USING (handler, version, topic, partition)
               WHERE c.next_offset = m.old AND c.held IS NULL
               ORDER BY handler, version, topic, partition FOR NO KEY UPDATE OF c)
            UPDATE {checkpoint} c SET next_offset = m.new FROM mine m
             WHERE c.handler = m.handler AND c.version = m.version AND c.topic = m.topic AND c.partition = m.partition
            RETURNING c.handler, c.version, c.topic, c.partition
        """),
        moved_by(sorted(moves)),
    )
    moved = {tuple(row) for row in rows}
    missed = [m for m in moves if m[:4] not in moved]
    return await _mismatches(conn, t, missed) if missed else []


async def _mismatches(conn: AsyncConnection, t: Tables, missed: Sequence[Move]) -> list[Mismatch]:
    """In a statement of its own: what the update saw was not yet what somebody else has committed since."""
    parameters = moved_by(missed)
    rows = await conn.execute(
        t.sql("""
            SELECT c.handler, c.version, c.topic, c.partition, c.next_offset FROM {checkpoint} c
              JOIN unnest(CAST(:movers AS bigint[]), CAST(:versions AS int[]), CAST(:topics AS text[]),
                          CAST(:partitions AS int[])) u (handler, version, topic, partition)
             USING (handler, version, topic, partition)
        """),
        {name: parameters[name] for name in ("movers", "versions", "topics", "partitions")},
    )
    found: dict[tuple[Any, ...], int] = {tuple(row[:4]): row[4] for row in rows}
    return [Mismatch(m, found.get(m[:4])) for m in missed]


async def detach(
    conn: AsyncConnection, t: Tables, handlers: Sequence[tuple[int, int]], partition: Partition | None = None
) -> int:
    """Lock order 8: these handlers' checkpoints (all partitions, or one) no longer count for the start; how many."""
    rows = await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT c.handler, c.version, c.topic, c.partition
                FROM unnest(CAST(:handlers AS bigint[]), CAST(:versions AS int[])) u (handler, version)
                JOIN {checkpoint} c USING (handler, version)
               WHERE NOT c.detached
                 AND (CAST(:topic AS text) IS NULL OR (c.topic = :topic AND c.partition = :partition))
               ORDER BY handler, version, topic, partition FOR NO KEY UPDATE OF c)
            UPDATE {checkpoint} c SET detached = true FROM mine m
             WHERE c.handler = m.handler AND c.version = m.version AND c.topic = m.topic AND c.partition = m.partition
            RETURNING 1
        """).bindparams(sa.bindparam("topic", type_=sa.Text()), sa.bindparam("partition", type_=sa.Integer())),
        {
            **_handlers(handlers),
            "topic": None if partition is None else partition.topic,
            "partition": None if partition is None else partition.number,
        },
    )
    return len(rows.all())


async def attach_only(conn: AsyncConnection, t: Tables, consumer: str, handler_ids: Sequence[int]) -> None:
    """Lock order 8: the consumer's checkpoints count for the start if their handler is one of `handler_ids`.

    The others are those that the app no longer has: their checkpoints stay where they are, and count again once the
    handler is back (a rollback), which then goes on where it stopped. What a backfill holds counts when it lets it go.
    """
    await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT c.handler, c.version, c.topic, c.partition, NOT h.id = ANY (CAST(:present AS bigint[])) AS gone
                FROM {checkpoint} c JOIN {handler} h ON h.id = c.handler
               WHERE h.consumer = :consumer AND c.detached = (h.id = ANY (CAST(:present AS bigint[])))
                 AND c.held IS NULL
               ORDER BY c.handler, c.version, c.topic, c.partition FOR NO KEY UPDATE OF c)
            UPDATE {checkpoint} c SET detached = mine.gone FROM mine
             WHERE c.handler = mine.handler AND c.version = mine.version
               AND c.topic = mine.topic AND c.partition = mine.partition
        """),
        {"consumer": consumer, "present": sorted(handler_ids)},
    )


def _place(partition: Partition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.number}


def _handlers(handlers: Sequence[tuple[int, int]]) -> dict[str, Any]:
    ordered = sorted(handlers)
    return {"handlers": [h for h, _ in ordered], "versions": [v for _, v in ordered]}


def moved_by(moves: Sequence[Move]) -> dict[str, Any]:
    """The parameters of a statement that moves checkpoints, its own or one that does more (`completions.MOVED`)."""
    return {
        "movers": [m.handler_id for m in moves],
        "versions": [m.version for m in moves],
        "topics": [m.topic for m in moves],
        "partitions": [m.partition for m in moves],
        "olds": [m.old for m in moves],
        "news": [m.new for m in moves],
    }
