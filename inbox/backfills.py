"""The journal of backfills: where each one stands, and what became of what it read, which adds up at every commit.

A chunk of records is opened before it is handled and closed behind it, each in a transaction of its own under the
fences of the run. What if the process stops between the two? Whoever goes on finds the chunk open, with the offsets
that the inbox knew before it was opened: what else of it is claimed by then was done by this run, and is counted so.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .handlers import Kind
from .tables import Tables


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A partition's share of the window. From `next_offset` to `chunk_end` is in hand; `known` was known before.

    `live_offset` is where the live version stood when it was held; None where it is not.
    """

    partition: Partition
    incarnation: int
    start_offset: int
    next_offset: int
    end_offset: int
    chunk_end: int | None = None
    known: Sequence[int] = ()
    live_offset: int | None = None

    @property
    def is_again(self) -> bool:
        """What comes next was applied by the live version, which is held."""
        return self.live_offset is not None and self.next_offset < self.live_offset

    @property
    def leg_end(self) -> int:
        """To here everything is of one kind: applied before, or not."""
        return self.live_offset if self.live_offset is not None and self.is_again else self.end_offset

    def behind(self, next_offset: int) -> Part:
        """The part once everything below is done."""
        return replace(self, next_offset=next_offset, chunk_end=None, known=())


@final
@dataclass(frozen=True, slots=True)
class Counts:
    """What became of some records: `read` is the sum of the others; `causes` names what was not handled."""

    handled: int = 0
    skipped: int = 0
    refused: int = 0
    failed: int = 0
    causes: Mapping[str, int] | None = None

    @property
    def read(self) -> int:
        """All of them."""
        return self.handled + self.skipped + self.refused + self.failed


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A backfill as the journal has it."""

    id: int
    consumer: str
    handler: str
    kind: Kind
    actor: str
    why: str
    wanted: Mapping[str, Any]
    cluster_id: str
    counts: Counts
    started_at: datetime.datetime
    touched_at: datetime.datetime
    ended_at: datetime.datetime | None
    abandoned_at: datetime.datetime | None
    parts: Sequence[Part] = ()

    @property
    def holds(self) -> bool:
        """The live version writes nothing until this is over."""
        return bool(self.wanted.get("hold"))

    @property
    def is_over(self) -> bool:
        """Nobody goes on with it."""
        return self.ended_at is not None or self.abandoned_at is not None

    @property
    def group(self) -> str:
        """The name that it reads under, and holds its fences by: nobody else's."""
        return group_of(self.consumer, self.id)


def group_of(consumer: str, number: int) -> str:
    """The group name of a backfill, which no worker ever has.

    >>> group_of("orders", 7)
    'orders.backfill.7'
    """
    return f"{consumer}.backfill.{number}"


RUNS_SHOWN: Final = 1_000
"""In one listing: nobody reads further back than that."""


async def begin(
    conn: AsyncConnection,
    t: Tables,
    *,
    consumer: str,
    handler: str,
    kind: Kind,
    actor: str,
    why: str,
    wanted: Mapping[str, Any],
    cluster_id: str,
) -> int:
    """Write down a new backfill; its number."""
    made = sa.insert(t.backfill).values(
        consumer=consumer, handler=handler, kind=kind, actor=actor, why=why, wanted=dict(wanted), cluster_id=cluster_id
    )
    return (await conn.execute(made.returning(t.backfill.c.id))).scalar_one()


async def add_parts(conn: AsyncConnection, t: Tables, number: int, parts: Collection[Part]) -> None:
    """Its parts, of which none is begun."""
    if parts:
        await conn.execute(
            sa.insert(t.backfill_part),
            [
                {
                    "backfill": number,
                    "topic": part.partition.topic,
                    "partition": part.partition.number,
                    "incarnation": part.incarnation,
                    "start_offset": part.start_offset,
                    "next_offset": part.next_offset,
                    "end_offset": part.end_offset,
                    "live_offset": part.live_offset,
                }
                for part in parts
            ],
        )


async def read(conn: AsyncConnection, t: Tables, number: int) -> Run | None:
    """One backfill with its parts, in their order; None where there is none of this number."""
    row = (await conn.execute(sa.select(t.backfill).where(t.backfill.c.id == number))).mappings().one_or_none()
    if row is None:
        return None
    c = t.backfill_part.c
    parts = await conn.execute(sa.select(t.backfill_part).where(c.backfill == number).order_by(c.topic, c.partition))
    return _run(row, [_part(part) for part in parts])


async def latest(conn: AsyncConnection, t: Tables) -> list[Run]:
    """The latest backfills, newest first, without their parts."""
    rows = await conn.execute(sa.select(t.backfill).order_by(t.backfill.c.id.desc()).limit(RUNS_SHOWN))
    return [_run(row, ()) for row in rows.mappings()]


async def open_chunk(
    conn: AsyncConnection,
    t: Tables,
    number: int,
    partition: Partition,
    offset: int,
    chunk_end: int,
    known: Collection[int],
) -> None:
    """Before a chunk is handled: how far it goes, and which of its offsets the inbox knows already."""
    await _change(conn, t, number, partition, offset, {"chunk_end": chunk_end, "known": sorted(known)})


async def close_chunk(
    conn: AsyncConnection, t: Tables, number: int, partition: Partition, offset: int, next_offset: int, counts: Counts
) -> None:
    """Behind it: everything from `offset` to below `next_offset` has come to its end, and that is what became of it.

    Changes nothing where that stands there already: the answer to the commit was lost, and it is said again.
    """
    values: dict[str, Any] = {"next_offset": next_offset, "chunk_end": None, "known": []}
    if not await _change(conn, t, number, partition, offset, values):
        return
    await conn.execute(
        t.sql("""
            UPDATE {backfill} b
               SET read = read + :read, handled = handled + :handled, skipped = skipped + :skipped,
                   refused = refused + :refused, failed = failed + :failed, touched_at = clock_timestamp(),
                   causes = causes || (SELECT COALESCE(jsonb_object_agg(cause, n + COALESCE(
                                              CAST(b.causes ->> cause AS bigint), 0)), '{{}}')
                                         FROM unnest(CAST(:names AS text[]), CAST(:numbers AS bigint[])) u (cause, n))
             WHERE id = :id
        """),
        {
            "id": number,
            "read": counts.read,
            "handled": counts.handled,
            "skipped": counts.skipped,
            "refused": counts.refused,
            "failed": counts.failed,
            "names": list(counts.causes or ()),
            "numbers": list((counts.causes or {}).values()),
        },
    )


async def end(conn: AsyncConnection, t: Tables, number: int) -> bool:
    """All of it has come to its end. False: it was over already."""
    return await _over(conn, t, number, {"ended_at": sa.func.clock_timestamp()})


async def abandon(conn: AsyncConnection, t: Tables, number: int) -> bool:
    """Nobody goes on with it. False: it was over already."""
    return await _over(conn, t, number, {"abandoned_at": sa.func.clock_timestamp()})


async def _over(conn: AsyncConnection, t: Tables, number: int, how: Mapping[str, Any]) -> bool:
    c = t.backfill.c
    ending = sa.update(t.backfill).where(c.id == number, c.ended_at.is_(None), c.abandoned_at.is_(None))
    changed = await conn.execute(ending.values({**how, "touched_at": sa.func.clock_timestamp()}).returning(c.id))
    return changed.one_or_none() is not None


async def _change(
    conn: AsyncConnection, t: Tables, number: int, partition: Partition, offset: int, values: Mapping[str, Any]
) -> bool:
    c = t.backfill_part.c
    place = (c.backfill == number, c.topic == partition.topic, c.partition == partition.number)
    changing = sa.update(t.backfill_part).where(*place, c.next_offset == offset).values(values)
    return (await conn.execute(changing.returning(c.partition))).one_or_none() is not None


def _run(row: sa.RowMapping, parts: Sequence[Part]) -> Run:
    fields: dict[str, Any] = {str(name): value for name, value in row.items()}
    names = ("handled", "skipped", "refused", "failed", "causes")
    counts = Counts(**{name: fields.pop(name) for name in names})
    assert counts.read == fields.pop("read"), "the database refuses counts that do not add up"
    return Run(**fields, counts=counts, parts=parts)


def _part(row: sa.Row[Any]) -> Part:
    return Part(
        Partition(row.topic, row.partition),
        row.incarnation,
        row.start_offset,
        row.next_offset,
        row.end_offset,
        row.chunk_end,
        row.known,
        row.live_offset,
    )
