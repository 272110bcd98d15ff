"""Marks of what is handled alone, written before it is touched: whoever finds one knows what the dead owner held.

Only the holder of the partition's fence writes and reads them; a transaction that does, takes its fence row first and
touches the mark last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .tables import Tables


@final
@dataclass(frozen=True, slots=True)
class Suspect:
    """A record, or where `failure_id` is given the failure row of one, that was being handled alone."""

    record_offset: int
    failure_id: int | None
    deaths: int
    """How often a takeover found it at an unclean end before."""
    in_hand: bool
    """The last owner had it in its hands; else that one came to its end before it touched it."""


async def mark(
    conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, record_offset: int, failure_id: int | None
) -> None:
    """This one is about to be handled alone. Takes the place of the partition's former mark."""
    await conn.execute(
        t.sql("""
            INSERT INTO {suspect} AS s (consumer, topic, partition, record_offset, failure_id)
            VALUES (:consumer, :topic, :partition, :record_offset, CAST(:failure_id AS bigint))
            ON CONFLICT (consumer, topic, partition) DO UPDATE
               SET record_offset = excluded.record_offset, failure_id = excluded.failure_id, since = excluded.since,
                   in_hand = true,
                   deaths = CASE WHEN (s.record_offset, s.failure_id) IS NOT DISTINCT FROM
                                      (excluded.record_offset, excluded.failure_id) THEN s.deaths ELSE 0 END
        """),
        {**_place(consumer, partition), "record_offset": record_offset, "failure_id": failure_id},
    )


async def found(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition) -> Suspect | None:
    """The partition's mark, if one stands."""
    rows = await conn.execute(
        t.sql("""
            SELECT s.record_offset, s.failure_id, s.deaths, s.in_hand
              FROM {suspect} s
             WHERE s.consumer = :consumer AND s.topic = :topic AND s.partition = :partition
        """),
        _place(consumer, partition),
    )
    row = rows.one_or_none()
    if row is None:
        return None
    return Suspect(row.record_offset, row.failure_id, row.deaths, row.in_hand)


async def count(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition) -> None:
    """It stood at an unclean end. Until it is marked again nobody has it in his hands."""
    await conn.execute(
        t.sql("""
            UPDATE {suspect} SET deaths = deaths + 1, in_hand = false
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition
        """),
        _place(consumer, partition),
    )


async def let_go(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition) -> None:
    """It is not alone any more: who dies now has not died of it, as far as anybody can know. Deaths stay counted."""
    await conn.execute(
        t.sql("""
            WITH counted AS (
              UPDATE {suspect} SET in_hand = false
               WHERE consumer = :consumer AND topic = :topic AND partition = :partition AND deaths > 0)
            DELETE FROM {suspect}
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition AND deaths = 0
        """),
        _place(consumer, partition),
    )


async def unmark(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition) -> None:
    """It was handled to its end, or nobody died of it."""
    await conn.execute(
        t.sql("DELETE FROM {suspect} WHERE consumer = :consumer AND topic = :topic AND partition = :partition"),
        _place(consumer, partition),
    )


async def acquit(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, epoch: int) -> bool:
    """Lock order 1, instead of `hold`: what a dead owner had alone in its hands was handled unharmed. False: not ours.

    So that owner's death was somebody else's doing, and others' may be.
    """
    acquitted = await conn.scalar(
        t.sql("""
            UPDATE {fence} SET innocent_at = clock_timestamp()
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition AND epoch = :epoch
               AND wanted IS NULL
            RETURNING 1
        """),
        {"consumer": consumer, "topic": partition.topic, "partition": partition.number, "epoch": epoch},
    )
    return acquitted is not None


async def was_chance(conn: AsyncConnection, t: Tables, consumer: str, within_s: float) -> bool:
    """Whether any partition's owner died lately of nothing that it had in its hands. A plain read."""
    found: bool = await conn.scalar(
        t.sql("""
            SELECT EXISTS (SELECT 1 FROM {fence} f WHERE f.consumer = :consumer
                              AND f.innocent_at > clock_timestamp() - make_interval(secs => :within_s))
        """),
        {"consumer": consumer, "within_s": within_s},
    )
    return found


async def carry(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, epoch: int) -> bool:
    """Lock order 1, instead of `hold`: the search for what killed the owners has come this far. False: not ours.

    Whoever dies before anything behind it is done has died at the same place once more.
    """
    carried = await conn.scalar(
        t.sql("""
            UPDATE {fence} f
               SET crash_point = (SELECT min(c.next_offset) FROM {checkpoint} c JOIN {handler} h ON h.id = c.handler
                                   WHERE h.consumer = :consumer AND c.topic = :topic AND c.partition = :partition
                                     AND NOT c.detached)
             WHERE f.consumer = :consumer AND f.topic = :topic AND f.partition = :partition AND f.epoch = :epoch
               AND f.wanted IS NULL
            RETURNING 1
        """),
        {"consumer": consumer, "topic": partition.topic, "partition": partition.number, "epoch": epoch},
    )
    return carried is not None


def _place(consumer: str, partition: Partition) -> dict[str, object]:
    return {"consumer": consumer, "topic": partition.topic, "partition": partition.number}
