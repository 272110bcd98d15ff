"""The fence: who may write for a partition, by an epoch that the database hands out.

A writer holds its rows `FOR KEY SHARE` until its transaction ends. A takeover first sets `wanted`, which stands in no
unique key and so waits for nobody; from then on no new writer gets in. Then it raises `epoch`, which stands in one and
so waits for the writers that are already open. In one step it would starve: key-share lockers pass the waiter.

A takeover also counts unclean ends: the former owner did not release, and the lowest attached checkpoint stands where
it stood at the unclean end before. Who may have died, and who has not:

* kill -9, out of memory, a segmentation fault: nothing is released, it counts. So does a machine that is gone.
* SIGTERM, a revocation, an error that the process leaves with: released on the way out, does not count.
* A lost partition, a frozen process (SIGSTOP, a paused machine): counts when its successor takes over, for nobody can
  tell it from a dead one. Once it learns of its loss it releases all the same, and `release` takes the count back.
* A database that restarts, a connection that is lost: the owner stays the owner, nobody takes over.
* A takeover that Kafka did not confirm (`give_back`), or that is tried again: neither adds to the count nor ends it.

A count that is too high costs time and nothing else: records are looked at one by one, and none of them is given up
unless two processes die with it as the only one in their hands.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection

from .database import APPLICATION_NAME, Database
from .errors import OwnershipLost, TransientError
from .event import Partition
from .finishing import looked_at, to_the_end
from .points import Writes, between
from .tables import Tables

_BLOCKERS_EVERY_S: Final = 0.1
"""How often a blocked takeover looks for whom it waits, once its patience is over."""


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence row as it was read. `kafka_offset` is the last one that was about to be committed to Kafka.

    `crashes` counts the unclean ends in a row at which the lowest attached checkpoint stood at `crash_point`. `in_hand`
    are the failure rows that an owner after an unclean end was working on.
    """

    epoch: int
    wanted: str | None
    kafka_offset: int | None
    released_at: datetime.datetime | None
    crashes: int
    crash_point: int | None = None
    in_hand: Sequence[int] = ()


async def read(
    conn: AsyncConnection, t: Tables, consumer: str, partitions: Collection[Partition]
) -> dict[Partition, Fence]:
    """The rows of those partitions that ever had an owner; no lock."""
    rows = await conn.execute(
        t.sql("""
            SELECT f.topic, f.partition, f.epoch, f.wanted, f.kafka_offset, f.released_at, f.crashes, f.crash_point,
                   f.in_hand
              FROM {fence} f JOIN unnest(CAST(:topics AS text[]), CAST(:partitions AS int[])) u (topic, partition)
                ON f.consumer = :consumer AND f.topic = u.topic AND f.partition = u.partition
        """),
        {"consumer": consumer, **_places(sorted(partitions))},
    )
    return {Partition(row[0], row[1]): Fence(*row[2:]) for row in rows}


async def want(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, token: str) -> None:
    """Step 1 of a takeover, a transaction of its own that touches nothing else: no new writer from its commit on.

    A `wanted` of somebody else is replaced: Kafka, who was asked before, has the last word on who the owner is.

    The row is made by a statement of its own, which names no key: the table has two unique ones, and of two
    first-comers that each name one, either may wait for the other at the other key.
    """
    place = {"consumer": consumer, "topic": partition.topic, "partition": partition.number}
    await conn.execute(
        t.sql("""
            INSERT INTO {fence} (consumer, topic, partition) VALUES (:consumer, :topic, :partition)
            ON CONFLICT DO NOTHING
        """),
        place,
    )
    await conn.execute(
        t.sql("""
            UPDATE {fence} SET wanted = :token
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition
        """),
        {**place, "token": token},
    )


async def take(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, token: str) -> int | None:
    """Step 2, a transaction of its own that touches nothing else: waits for the open writers, then raises the epoch.

    None: somebody else wanted the partition meanwhile.
    """
    place = {"consumer": consumer, "topic": partition.topic, "partition": partition.number}
    epoch: int | None = await conn.scalar(
        t.sql("""
            UPDATE {fence} SET epoch = epoch + 1, wanted = NULL
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition AND wanted = :token
            RETURNING epoch
        """),
        {**place, "token": token},
    )
    if epoch is not None:
        await _count_unclean_end(conn, t, place)
    return epoch


async def _count_unclean_end(conn: AsyncConnection, t: Tables, place: Mapping[str, Any]) -> None:
    """In a statement of its own: the one before did not see what the writers that it waited for have committed."""
    await conn.execute(
        t.sql("""
            WITH lowest AS (
              SELECT min(c.next_offset) AS point FROM {checkpoint} c JOIN {handler} h ON h.id = c.handler
               WHERE h.consumer = :consumer AND c.topic = :topic AND c.partition = :partition AND NOT c.detached)
            UPDATE {fence} f SET released_at = NULL,
                   crashes = CASE WHEN f.released_at IS NOT NULL OR f.epoch = 1 THEN f.crashes
                                  WHEN f.crash_point = lowest.point THEN f.crashes + 1 ELSE 1 END,
                   crash_point = CASE WHEN f.released_at IS NOT NULL OR f.epoch = 1 THEN f.crash_point
                                      ELSE lowest.point END
              FROM lowest WHERE f.consumer = :consumer AND f.topic = :topic AND f.partition = :partition
        """),
        place,
    )


async def take_over(
    db: Database, t: Tables, consumer: str, partition: Partition, token: str, statement_timeout_s: float
) -> int:
    """Both steps, each in a transaction of its own; returns the new epoch.

    `token` is new for each call. After `statement_timeout_s` the backends that block it and carry our application name
    are terminated; after twice that it gives up.

    Raises:
        OwnershipLost: somebody else wanted the partition later: ask Kafka again.
        TransientError: it is blocked by a backend that is not ours.
    """
    async with between(Writes.WANT, db.transaction()) as conn:
        await want(conn, t, consumer, partition, token)
    epoch = await _take_with_force(db, t, consumer, partition, token, statement_timeout_s)
    if epoch is None:
        raise OwnershipLost(f"{partition} of {consumer} was taken over by somebody else meanwhile")
    return epoch


async def _take_with_force(
    db: Database, t: Tables, consumer: str, partition: Partition, token: str, patience_s: float
) -> int | None:
    async with between(Writes.TAKE, db.transaction()) as conn:
        pid: int = await conn.scalar(_BOUND, {"timeout": f"{max(1, round(2000 * patience_s))}"})
        taking = asyncio.ensure_future(take(conn, t, consumer, partition, token))
        try:
            await asyncio.wait((taking,), timeout=patience_s)
            while not taking.done():
                await _terminate_blockers(db, pid)
                await asyncio.wait((taking,), timeout=_BLOCKERS_EVERY_S)
        finally:
            if not taking.done():  # the server bounds it: nothing is cancelled inside a database call
                await to_the_end(asyncio.wait((taking,)))
                looked_at(taking)
        return await _answer(taking, partition)


async def _answer(taking: asyncio.Future[int | None], partition: Partition) -> int | None:
    try:
        return await taking
    except exc.DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) not in _TIMED_OUT:
            raise
        raise TransientError(f"the fence of {partition} is held by a database session that is not tidegate's") from None


_TIMED_OUT: Final = ("57014", "55P03")

_BOUND: Final = sa.text("""
    SELECT pg_backend_pid() FROM (SELECT set_config('statement_timeout', :timeout, true),
                                         set_config('lock_timeout', '0', true)) s
""")


async def _terminate_blockers(db: Database, pid: int) -> None:
    async with db.transaction() as conn:
        await conn.execute(
            sa.text("""
                SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
                 WHERE a.pid = ANY (pg_blocking_pids(:pid)) AND a.datname = current_database()
                   AND split_part(a.application_name, ' ', 1) = :application
            """),
            {"pid": pid, "application": APPLICATION_NAME},
        )


async def hold(
    conn: AsyncConnection, t: Tables, consumer: str, epochs: Mapping[Partition, int]
) -> frozenset[Partition]:
    """Lock order 1, the first statement of every writing transaction: the partitions that may write in it.

    Until the transaction ends no takeover of these completes. The others' records must leave the transaction.
    """
    partitions = sorted(epochs)
    rows = await conn.execute(
        t.sql("""
            SELECT f.topic, f.partition
              FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:epochs AS bigint[]))
                   u (topic, partition, epoch)
              JOIN {fence} f ON f.consumer = :consumer AND f.topic = u.topic AND f.partition = u.partition
                              AND f.epoch = u.epoch
             WHERE f.wanted IS NULL ORDER BY f.topic, f.partition FOR KEY SHARE OF f
        """),
        {"consumer": consumer, "epochs": [epochs[p] for p in partitions], **_places(partitions)},
    )
    return frozenset(Partition(topic, number) for topic, number in rows)


async def note_offsets(
    conn: AsyncConnection,
    t: Tables,
    consumer: str,
    offsets: Mapping[Partition, tuple[int, int]],
    *,
    forced: bool = False,
) -> frozenset[Partition]:
    """A short transaction of its own before each commit to Kafka: partition -> (epoch, next offset).

    Only what comes back may be committed: the epoch is ours, nobody wants the partition, and the offset does not go
    back (`forced` where an operator decided that it does).
    """
    partitions = sorted(offsets)
    rows = await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT f.topic, f.partition, u.next_offset
                FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:epochs AS bigint[]),
                            CAST(:offsets AS bigint[])) u (topic, partition, epoch, next_offset)
                JOIN {fence} f ON f.consumer = :consumer AND f.topic = u.topic AND f.partition = u.partition
                                AND f.epoch = u.epoch
               WHERE f.wanted IS NULL AND (:forced OR f.kafka_offset IS NULL OR f.kafka_offset <= u.next_offset)
               ORDER BY f.topic, f.partition FOR NO KEY UPDATE OF f)
            UPDATE {fence} f SET kafka_offset = mine.next_offset FROM mine
             WHERE f.consumer = :consumer AND f.topic = mine.topic AND f.partition = mine.partition
            RETURNING f.topic, f.partition
        """),
        {
            "consumer": consumer,
            "epochs": [offsets[p][0] for p in partitions],
            "offsets": [offsets[p][1] for p in partitions],
            "forced": forced,
            **_places(partitions),
        },
    )
    return frozenset(Partition(topic, number) for topic, number in rows)


async def give_back(
    conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, token: str, epoch: int | None = None
) -> None:
    """After a takeover that Kafka did not confirm: take our `wanted` away and, if `epoch` was taken, mark it released.

    The epoch stays raised (none is ever used twice); the true owner's writes miss its row, it asks Kafka and takes over
    again.
    """
    await conn.execute(
        t.sql("""
            UPDATE {fence}
               SET wanted = nullif(wanted, :token),
                   released_at = CASE WHEN epoch = :epoch THEN clock_timestamp() ELSE released_at END
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition
               AND (wanted = :token OR epoch = :epoch)
        """).bindparams(sa.bindparam("epoch", type_=sa.BigInteger()), sa.bindparam("token", type_=sa.Text())),
        {
            "consumer": consumer,
            "topic": partition.topic,
            "partition": partition.number,
            "token": token,
            "epoch": epoch,
        },
    )


async def remove(conn: AsyncConnection, t: Tables, consumer: str) -> None:
    """Lock order 1: the consumer was for one purpose, and is over. Whoever holds an epoch of it writes nothing."""
    await conn.execute(
        t.sql("""
            DELETE FROM {fence} f USING (SELECT topic, partition FROM {fence} WHERE consumer = :consumer
                                          ORDER BY topic, partition FOR UPDATE) mine
             WHERE f.consumer = :consumer AND f.topic = mine.topic AND f.partition = mine.partition
        """),
        {"consumer": consumer},
    )


async def release(conn: AsyncConnection, t: Tables, consumer: str, epochs: Mapping[Partition, int]) -> None:
    """No unclean end: the count of those starts anew, and the next owner knows that nothing was in flight.

    Said also by an owner that was replaced already: its successor took it for dead, and it was not. Of the ends that
    were counted, only those of later epochs stay.
    """
    partitions = sorted(epochs)
    await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT f.topic, f.partition, u.epoch
                FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:epochs AS bigint[]))
                     u (topic, partition, epoch)
                JOIN {fence} f ON f.consumer = :consumer AND f.topic = u.topic AND f.partition = u.partition
                                AND f.epoch >= u.epoch
               ORDER BY f.topic, f.partition FOR NO KEY UPDATE OF f)
            UPDATE {fence} f
               SET released_at = CASE WHEN f.epoch = mine.epoch THEN clock_timestamp() ELSE f.released_at END,
                   crashes = least(f.crashes, greatest(f.epoch - mine.epoch - 1, 0))
              FROM mine
             WHERE f.consumer = :consumer AND f.topic = mine.topic AND f.partition = mine.partition
        """),
        {"consumer": consumer, "epochs": [epochs[p] for p in partitions], **_places(partitions)},
    )


async def take_in_hand(
    conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, epoch: int, failure_ids: Collection[int]
) -> None:
    """A short transaction of its own: the rows that the owner of this epoch is about to work on, and works on."""
    await conn.execute(
        t.sql("""
            UPDATE {fence} SET in_hand = CAST(:ids AS bigint[])
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition AND epoch = :epoch
        """),
        {
            "consumer": consumer,
            "topic": partition.topic,
            "partition": partition.number,
            "epoch": epoch,
            "ids": sorted(failure_ids),
        },
    )


async def absolve(conn: AsyncConnection, t: Tables, consumer: str, partition: Partition, epoch: int) -> bool:
    """Lock order 1, instead of `hold`: what killed the owners is known, the count starts anew. False: not ours.

    No `hold` before it: whoever has the weaker lock and asks for this one deadlocks with a takeover in between.
    """
    absolved = await conn.scalar(
        t.sql("""
            UPDATE {fence} SET crashes = 0, crash_point = NULL
             WHERE consumer = :consumer AND topic = :topic AND partition = :partition AND epoch = :epoch
               AND wanted IS NULL
            RETURNING 1
        """),
        {"consumer": consumer, "topic": partition.topic, "partition": partition.number, "epoch": epoch},
    )
    return absolved is not None


def _places(partitions: Collection[Partition]) -> dict[str, Any]:
    return {"topics": [p.topic for p in partitions], "partitions": [p.number for p in partitions]}
