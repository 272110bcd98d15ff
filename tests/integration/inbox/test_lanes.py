"""A key is parked while rows hold its lane, and free with the last; of each lane the first is worked."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import itertools
import random
from collections.abc import Collection
from typing import final

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.locks import until_blocked
from tidegate.inbox import claim, failure, finding, lanes
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failure_rows import Failure, NewFailure, Place, Verdict, dead, dead_record, queued, unknown
from tidegate.inbox.identity import digest16, key_hash16
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.states import Act
from tidegate.inbox.tables import Tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(hours=1)
H = 7
PLACE = Place(H, 0, 0)
WHY = Verdict("rejected", "no")
DEAD = Dead(Reason.REJECTED, "no")


def event(offset: int, key: bytes | None = b"k", partition: int = 0) -> Event[str]:
    record = Record("orders", partition, offset, key, b"value")
    return Event("v", record, event_id=digest16(b"t", b"%d" % offset), id_text=str(offset))


def due(offset: int, key: bytes | None = b"k", *, partition: int = 0, alone: bool = False) -> NewFailure:
    return queued(PLACE, event(offset, key, partition), WHY, due=NOW, attempts=1, now=NOW, alone=alone)


def lane(key: bytes = b"k", handler: int = H) -> lanes.LaneKey:
    return (handler, "orders", key_hash16(key))


async def put(db: Database, t: Tables, *rows: NewFailure) -> list[int]:
    async with db.transaction() as conn:
        return [put.id for put in await failure.put(conn, t, rows)]


async def parked(db: Database, t: Tables, *keys: lanes.LaneKey) -> frozenset[lanes.LaneKey]:
    async with db.transaction() as conn:
        return await lanes.parked(conn, t, keys or [lane()])


async def pick(db: Database, t: Tables, *partitions: int, busy: Collection[int] = ()) -> list[int]:
    async with db.transaction() as conn:
        homes = [Partition("orders", n) for n in partitions or range(8)]
        return [row.record_offset for row in await failure.pick(conn, t, [H], homes, {}, NOW, 10, busy)]


async def complete(db: Database, t: Tables, failure_id: int, row_version: int = 1) -> None:
    async with db.transaction() as conn:
        assert await failure.complete(conn, t, [(failure_id, row_version)]) == {failure_id}


# ----------------------------------------------------------------------------------------------- parked and released


async def test_a_key_is_parked_until_its_last_row_is_done_and_places_go_on(db: Database, t: Tables) -> None:
    assert await parked(db, t) == frozenset()
    first, second = await put(db, t, due(1), due(2))
    await complete(db, t, first)
    assert await parked(db, t) == {lane()}
    assert await pick(db, t) == [2]
    await complete(db, t, second)
    assert await parked(db, t) == frozenset()
    await put(db, t, due(3))
    assert await pick(db, t) == [3], "adding to a released key is a queue of one"
    async with db.transaction() as conn:
        assert await conn.scalar(sa.select(t.failure.c.seq)) == 3


async def test_only_what_waits_holds_a_lane(db: Database, t: Tables) -> None:
    rows = [dead(PLACE, event(1), DEAD, attempts=1, now=NOW), due(2, None), due(3, alone=True)]
    rows += [dead_record(PLACE, event(4).record, DEAD, now=NOW)]
    await put(db, t, *rows)
    assert await parked(db, t) == frozenset()
    assert sorted(await pick(db, t)) == [2, 3]
    await put(db, t, unknown(PLACE, event(5), WHY, attempts=1, now=NOW, effect_id=9))
    assert await parked(db, t) == {lane()}
    async with db.transaction() as conn:
        assert await lanes.waiting(conn, t, [H, H + 1]) == {H: 3}


async def test_behind_a_dead_row_that_holds_nothing_is_taken_up_until_a_person_decides(db: Database, t: Tables) -> None:
    first, second = await put(db, t, due(1), due(2))
    async with db.transaction() as conn:
        assert await failure.bury(conn, t, (first, 1), WHY, attempts=3, now=NOW, holds=True)
    assert (await parked(db, t), await pick(db, t)) == ({lane()}, [])
    async with db.transaction() as conn:
        assert await failure.requeue(conn, t, [(first, 2)], NOW) == {first}
    assert await pick(db, t) == [1]
    async with db.transaction() as conn:
        assert await failure.bury(conn, t, (first, 3), WHY, attempts=3, now=NOW, holds=True)
        assert await failure.discard(conn, t, [(first, 4)]) == {first}
    assert await pick(db, t) == [2]
    async with db.transaction() as conn:
        assert await failure.bury(conn, t, (second, 1), WHY, attempts=3, now=NOW)
    assert await parked(db, t) == frozenset(), "a dead row that does not hold releases its key"


async def test_a_row_whose_outcome_is_unknown_keeps_its_lane_waiting(db: Database, t: Tables) -> None:
    first, _ = await put(db, t, due(1), due(2))
    async with db.transaction() as conn:
        assert await failure.review(conn, t, (first, 1), WHY, attempts=1, now=NOW, effect_id=5)
    assert (await parked(db, t), await pick(db, t)) == ({lane()}, [])
    async with db.transaction() as conn:
        assert await failure.requeue(conn, t, [(first, 2)], NOW, Act.RESOLVE) == {first}
    assert await pick(db, t) == [1]


async def test_a_row_that_is_put_off_holds_up_those_behind_it(db: Database, t: Tables) -> None:
    first, _ = await put(db, t, due(1), due(2))
    async with db.transaction() as conn:
        assert await failure.postpone(
            conn, t, (first, 1), WHY,
            due=LATER, attempts=3, now=NOW, class_attempts=2, retrying_since=NOW, effect_id=4,
        )  # fmt: skip
        row = await finding.get(conn, t, first)
    assert row is not None
    assert (row.due, row.attempts, row.class_attempts, row.retrying_since, row.effect_id) == (LATER, 3, 2, NOW, 4)
    assert await pick(db, t) == []


async def test_a_replayed_row_goes_before_those_that_waited_but_never_beside_the_one_in_work(
    db: Database, t: Tables
) -> None:
    early, late = await put(db, t, dead(PLACE, event(1), DEAD, attempts=1, now=NOW), due(2))
    assert await pick(db, t) == [2]
    async with db.transaction() as conn:
        await failure.requeue(conn, t, [(early, 1)], NOW)
    assert await pick(db, t, busy=[late]) == [], "one at a time"
    assert await pick(db, t) == [1]


async def test_after_partitions_were_added_the_first_rows_home_works_the_lane(db: Database, t: Tables) -> None:
    """New records of a parked key arrive elsewhere, and queue up behind its rows.

    Case: B37
    Parts: real (PostgreSQL)
    Red when: inbox/lanes.py `keep` takes the last of a lane for its head (`ORDER BY seq DESC`)
    """
    first, _, _ = await put(db, t, due(1, partition=1), due(2, partition=5), due(3, partition=1))
    assert (await pick(db, t, 5), await pick(db, t, 1)) == ([], [1])
    await complete(db, t, first)
    assert (await pick(db, t, 1), await pick(db, t, 5)) == ([], [2])


@pytest.mark.parametrize("n", [0, 1, lanes.TOLD_MAX, lanes.TOLD_MAX + 1])
async def test_what_is_parked_is_told_however_many_keys_are(db: Database, t: Tables, n: int) -> None:
    await put(db, t, due(10**6, b"other handler"))
    many = H + 1
    async with db.transaction() as conn:
        await conn.execute(sa.text(FILL), {"handler": many, "rows": n, "lanes": n or 1, "now": NOW})
        told = await lanes.tell(conn, t, [H, many])
    few: lanes.Told = {H: {"orders": frozenset([lane(b"other handler")[2]])}}
    mine = frozenset((many, "orders", hashlib.md5(b"k%d" % i).digest()) for i in range(n))
    if n == 0:
        assert told == few, "who has none is left out"
    else:
        assert told == {**few, many: {"orders": {key_hash for _, _, key_hash in mine}} if n <= lanes.TOLD_MAX else None}
    free = [lane(b"free", many), lane(b"other handler", many), *[(many, "Returns", key[2]) for key in mine]]
    assert await parked(db, t, *mine, *free, lane(b"other handler"), lane()) == {*mine, lane(b"other handler")}
    assert await parked(db, t, *free) == frozenset()


async def test_keys_of_several_topics_are_told_apart(db: Database, t: Tables) -> None:
    returned = Record("returns", 0, 1, b"k", b"value")
    await put(db, t, due(1, b"j"), due(2), due(3))
    await put(db, t, queued(PLACE, Event("v", returned, event_id=digest16(b"r")), WHY, due=NOW, attempts=1, now=NOW))
    async with db.transaction() as conn:
        assert await lanes.tell(conn, t, [H]) == {
            H: {"orders": {key_hash16(b"j"), key_hash16(b"k")}, "returns": {key_hash16(b"k")}}
        }
        assert await lanes.tell(conn, t, []) == {}
        assert await lanes.parked(conn, t, []) == frozenset()


async def test_how_many_wait_is_exact_once_places_are_drawn(db: Database, t: Tables) -> None:
    await put(db, t, due(1), due(2))
    async with db.transaction() as conn:
        places = await failure.draw_places(conn, t, [due(3), due(4)])
        assert places == {lane(): 3}
        assert await lanes.waiting_in(conn, t, [lane(), lane(b"free")]) == {lane(): 2}
        await failure.put(conn, t, [due(3), due(4)], places)
        assert await lanes.waiting_in(conn, t, [lane()]) == {lane(): 4}


async def test_what_is_put_and_what_ends_lock_their_lanes_together(db: Database, t: Tables) -> None:
    """A record of handler 9 is handed out to handler 7: both lanes in one statement, in one order."""
    (old,) = await put(db, t, queued(Place(9, 0, 0), event(1), WHY, due=NOW, attempts=1, now=NOW))
    async with db.transaction() as conn:
        places = await failure.draw_places(conn, t, [due(1)], seen=[(old, 1)])
        assert places == {lane(): 1, lane(handler=9): 2}
        await failure.put(conn, t, [due(1)], places)
        assert await failure.complete(conn, t, [(old, 1)], places) == {old}
    assert await parked(db, t, lane(), lane(handler=9)) == {lane()}
    with pytest.raises(AssertionError, match="lane is not locked"):
        async with db.transaction() as conn:
            await failure.discard(conn, t, [(old + 1, 1)], locked=[lane(handler=9)])


# ------------------------------------------------------------------------------------------------------- two at once


async def test_what_is_parked_while_the_last_row_completes_is_not_left_behind(db: Database, t: Tables) -> None:
    """A release and one more row of the key.

    1. The completion holds the lane, its row is gone, the count says: nobody waits. 2. A newcomer is to be parked, for
    its look-up saw the key parked, and waits for the lane. 3. The completion commits: the key is free. 4. The newcomer
    is a queue of one, and found.
    """
    (first,) = await put(db, t, due(1))
    async with db.transaction() as conn:
        locked = await failure.lock_lanes(conn, t, [(first, 1)])
        assert await failure.complete(conn, t, [(first, 1)], locked) == {first}
        parking = asyncio.create_task(put(db, t, due(2)))
        await until_blocked(db)
    await parking
    assert (await parked(db, t), await pick(db, t)) == ({lane()}, [2])


async def test_a_release_that_waits_for_a_newcomer_does_not_free_the_key(db: Database, t: Tables) -> None:
    """The other way round: 1. a newcomer draws a place. 2. The completion waits for the lane. 3. The newcomer commits.
    4. The completion counts in a later statement than the one that waited, and leaves the key parked.
    """
    (first,) = await put(db, t, due(1))
    async with db.transaction() as conn:
        places = await failure.draw_places(conn, t, [due(2)])
        completing = asyncio.create_task(complete(db, t, first))
        await until_blocked(db)
        await failure.put(conn, t, [due(2)], places)
    await completing
    assert (await parked(db, t), await pick(db, t)) == ({lane()}, [2])


async def test_a_rolled_back_release_leaves_everything_as_it_was(db: Database, t: Tables) -> None:
    (first,) = await put(db, t, due(1))
    async with db.transaction() as conn:
        await failure.complete(conn, t, [(first, 1)])
        await conn.rollback()
    assert (await parked(db, t), await pick(db, t)) == ({lane()}, [1])


@final
class Traffic:
    """Parkers, the slow way and operators on a few keys, each in the order of locks."""

    HANDLERS = (H, H + 1)
    KEYS = tuple(b"%d" % n for n in range(5))
    HOMES = (Partition("orders", 0),)

    def __init__(self, db: Database, t: Tables) -> None:
        self.db = db
        self.t = t
        self.offsets = itertools.count()

    async def many(self, seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(40):
            await dice.choice((self.park, self.work, self.work, self.operate))(dice)

    def new(self, dice: random.Random) -> NewFailure:
        place, new = Place(dice.choice(self.HANDLERS), 0, 0), event(next(self.offsets), dice.choice(self.KEYS))
        return queued(place, new, WHY, due=NOW, attempts=1, now=NOW)

    async def claim(self, conn: AsyncConnection, ids: Collection[tuple[int, bytes]]) -> None:
        await claim.lock_generations(conn, self.t, self.HANDLERS)
        for handler in self.HANDLERS:
            mine = sorted({(event_id, 1) for of, event_id in ids if of == handler})
            await claim.claim(conn, self.t, handler, 0, mine, optimistic=False)

    async def park(self, dice: random.Random) -> None:
        rows = [self.new(dice) for _ in range(4)]
        async with self.db.transaction() as conn:
            places = await failure.draw_places(conn, self.t, rows)
            await self.claim(conn, [(row.handler, digest16(b"neighbour", row.event_id)) for row in rows])
            await failure.put(conn, self.t, rows, places)

    async def pick(self, limit: int) -> list[Failure]:
        async with self.db.transaction() as conn:
            return await failure.pick(conn, self.t, self.HANDLERS, self.HOMES, {}, NOW, limit)

    async def work(self, dice: random.Random) -> None:
        rows = await self.pick(dice.randrange(1, 4))
        seen = [(row.id, row.row_version) for row in rows]
        async with self.db.transaction() as conn:
            locked = await failure.lock_lanes(conn, self.t, seen)
            await self.claim(conn, [(row.handler, row.event_id) for row in rows])
            if dice.random() < 0.5:
                await failure.complete(conn, self.t, seen, locked)
            else:
                for one in sorted(seen):
                    await failure.bury(conn, self.t, one, WHY, attempts=1, now=NOW, locked=locked)

    async def operate(self, dice: random.Random) -> None:
        async with self.db.transaction() as conn:
            rows = (await conn.execute(sa.select(self.t.failure.c.id, self.t.failure.c.row_version))).all()
            seen = [(row[0], row[1]) for row in dice.sample(rows, min(len(rows), 6))]
            act = (
                failure.discard(conn, self.t, seen) if dice.random() < 0.3 else failure.requeue(conn, self.t, seen, NOW)
            )
            await act


async def test_whatever_happens_at_once_nobody_deadlocks_and_nothing_is_left_behind(db: Database, t: Tables) -> None:
    """Parkers, the slow way and operators on the same few keys: the order of locks holds, every queued row is found.

    Case: B37
    Parts: real (PostgreSQL)
    Red when: inbox/lanes.py `draw_places` takes `list(counts)` instead of `sorted(counts)`
    """
    traffic = Traffic(db, t)
    await asyncio.gather(*[traffic.many(seed) for seed in range(8)])
    while rows := await traffic.pick(1_000):
        async with db.transaction() as conn:
            await failure.complete(conn, t, [(row.id, row.row_version) for row in rows])
    async with db.transaction() as conn:
        left = await conn.scalar(sa.text("SELECT count(*) FROM tidegate.failure WHERE state = 'queued'"))
    assert left == 0, "rows that nobody finds"
    assert await parked(db, t, *[lane(key, handler) for key in traffic.KEYS for handler in traffic.HANDLERS]) == set()


# ------------------------------------------------------------------------------------------------- however many wait


FILL = """
    WITH put AS (
      INSERT INTO tidegate.failure (handler, version, origin, topic, incarnation, partition, record_offset, home_topic,
             home_partition, event_id, payload_hash8, lane, seq, state, reason, due, attempts, first_failed_at,
             last_failed_at, exception_type, message, stack_digest, id_text, type, correlation_id, operation_id, key,
             headers, timestamp_ms, timestamp_type)
      SELECT :handler, 0, 'event', 'orders', 0, 0, n, 'orders', 0, decode(md5('e' || n), 'hex'), 0,
             decode(md5('k' || n % :lanes), 'hex'), 1 + n / :lanes, 'queued', 'x', :now, 1, :now, :now, '', '', '', '',
             '', '', '', '', '', 0, 0
        FROM generate_series(0, :rows - 1) n
      RETURNING handler, topic, lane, seq)
    INSERT INTO tidegate.parked_key (handler, topic, key_hash, key, next_seq, waiting, head_seq, head_due,
           head_home_topic, head_home_partition)
    SELECT handler, topic, lane, '', max(seq) + 1, count(*), 1, :now, 'orders', 0 FROM put GROUP BY 1, 2, 3
"""
TUPLES = "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE schemaname = 'tidegate'"
"""How many rows the statements of this transaction have read so far."""


async def _read(db: Database, t: Tables, handler: int) -> list[int]:
    """How many rows a look, an end, a newcomer and the question what is parked read."""
    costs: list[int] = []
    place, homes = Place(handler, 0, 0), [Partition("orders", n) for n in range(4)]

    async def cost(conn: AsyncConnection, before: int) -> int:
        after = await conn.scalar(sa.text(TUPLES))
        costs.append(int(after or 0) - before)
        return int(after or 0)

    async with db.transaction() as conn:
        before = await cost(conn, 0)
        rows = await failure.pick(conn, t, [handler, 1, 2, 3], homes, {"orders": 4}, NOW, 50)
        assert len(rows) == 50
        before = await cost(conn, before)
        assert len(await failure.complete(conn, t, [(row.id, 1) for row in rows[:10]])) == 10
        before = await cost(conn, before)
        new = [queued(place, event(10**6 + n, b"%d" % n), WHY, due=NOW, attempts=1, now=NOW) for n in range(10)]
        await failure.put(conn, t, new)
        before = await cost(conn, before)
        assert await lanes.parked(conn, t, [lane(b"free", handler)] * 10) == frozenset()
        await cost(conn, before)
    return costs[1:]


@pytest.mark.parametrize("analyzed", [False, True])
async def test_what_waits_behind_the_heads_costs_nothing(db: Database, t: Tables, analyzed: bool) -> None:
    """100,000 rows behind 100 heads are read no more than 1,000 are; rows of handlers that are gone not at all."""
    async with db.transaction() as conn:
        for handler, rows in ((7, 1_000), (8, 100_000), (9, 1_000)):
            await conn.execute(sa.text(FILL), {"handler": handler, "rows": rows, "lanes": 100, "now": NOW})
    if analyzed:
        async with db.transaction() as conn:
            await conn.execute(sa.text("ANALYZE tidegate.failure, tidegate.parked_key"))
    few, many = await _read(db, t, 7), await _read(db, t, 8)
    assert all(a <= 2 * b + 100 for a, b in zip(many, few, strict=True)), (few, many)
    assert max(many) <= 1_000, many


async def test_what_is_done_and_not_vacuumed_yet_is_not_passed_again(db: Database, t: Tables) -> None:
    """A transaction that stays open keeps every row that was completed since in the index, before the head."""
    ids = await put(db, t, *[due(n) for n in range(2_000)])
    async with db.transaction() as long:
        await long.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        await long.execute(sa.text("SELECT count(*) FROM tidegate.failure"))
        async with db.transaction() as conn:
            await failure.complete(conn, t, [(failure_id, 1) for failure_id in ids[:1_900]])
            await conn.execute(sa.text("ANALYZE tidegate.failure"))
        async with db.transaction() as conn:
            passed = sa.text("SELECT pg_stat_get_xact_tuples_returned(CAST('tidegate.failure_lane' AS regclass))")
            await conn.execute(sa.text("SET LOCAL plan_cache_mode = force_generic_plan"))  # a planner too looks around
            counts: list[int] = []
            for failure_id in ids[1_900:1_903]:
                assert await failure.complete(conn, t, [(failure_id, 1)]) == {failure_id}
                counts.append(await conn.scalar(passed) or 0)
    assert 0 < counts[2] - counts[1] <= 10, counts
