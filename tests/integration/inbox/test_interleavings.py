"""The interleavings that the one lock order was chosen against, as real concurrent transactions."""

from __future__ import annotations

import asyncio
import datetime

import sqlalchemy as sa

from tests.support.locks import blocked, until_blocked
from tidegate.inbox import claim, failure
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Record
from tidegate.inbox.failure_rows import NewFailure, Place, Verdict, linked, queued
from tidegate.inbox.identity import digest16
from tidegate.inbox.tables import Tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
H = 7


def row(n: int, key: bytes = b"k") -> NewFailure:
    event = Event("v", Record("orders", 0, n, key, b"v"), event_id=digest16(b"t", b"%d" % n), id_text=str(n))
    return queued(Place(H, 0, 0), event, Verdict("rejected"), due=NOW, attempts=1, now=NOW)


async def test_slow_way_and_batch_that_need_the_same_lane_and_claim_wait_instead_of_deadlocking(
    db: Database, t: Tables
) -> None:
    """Seen without the order: the slow way holds a parked key and wants claim X, a batch holds X and wants the key.

    1. The slow way locks the lane. 2. The batch comes for the lane and waits, before it has claimed anything.
    3. The slow way claims X and commits. 4. The batch goes on and learns that X is taken.
    """
    x = (digest16(b"t", b"1"), 5)

    async def batch() -> claim.Claimed:
        async with db.transaction() as conn:
            places = await failure.draw_places(conn, t, [row(2)])
            await claim.lock_generations(conn, t, [H])
            result = await claim.claim(conn, t, H, 0, [x], optimistic=False)
            await failure.put(conn, t, [row(2)], places)
            return result

    async with db.transaction() as slow:
        await failure.draw_places(slow, t, [row(1)])
        waiting = asyncio.create_task(batch())
        await until_blocked(db)
        await claim.lock_generations(slow, t, [H])
        assert (await claim.claim(slow, t, H, 0, [x], optimistic=False)).new is None
    assert (await waiting).taken == dict([x])


async def test_lanes_are_locked_in_one_order_whatever_order_the_rows_are_in(db: Database, t: Tables) -> None:
    rows = [row(n, b"key %d" % n) for n in range(600)]

    async def park(part: list[NewFailure]) -> None:
        async with db.transaction() as conn:
            await failure.put(conn, t, part)

    for _ in range(5):
        await asyncio.gather(park(rows), park(rows[::-1]), park(rows), park(rows[::-1]))
    async with db.transaction() as conn:
        assert (await conn.execute(sa.text("SELECT count(*) FROM tidegate.failure"))).scalar_one() == len(rows)


async def test_places_in_a_lane_follow_the_order_of_commits(db: Database, t: Tables) -> None:
    async with db.transaction() as first:
        await failure.put(first, t, [row(5)])
        second = asyncio.create_task(_park(db, t, row(3)))
        await until_blocked(db)
    await second
    async with db.transaction() as conn:
        seqs = await conn.execute(sa.text("SELECT record_offset FROM tidegate.failure ORDER BY seq"))
        assert list(seqs.scalars()) == [5, 3]


async def _park(db: Database, t: Tables, new: NewFailure) -> None:
    async with db.transaction() as conn:
        await failure.put(conn, t, [new])


async def test_a_row_that_moves_from_failure_to_claim_is_always_seen_in_one_of_them(db: Database, t: Tables) -> None:
    """Seen without the order: claims probed first and failure rows in a second statement: the row is in neither."""
    rows = [row(n) for n in range(150)]
    async with db.transaction() as conn:
        puts = await failure.put(conn, t, rows)
    done = asyncio.Event()

    async def move() -> None:
        for put, new in zip(puts, rows, strict=True):
            async with db.transaction() as conn:
                await claim.claim(conn, t, H, 0, [(new.event_id, 1)], optimistic=False)
                assert await failure.complete(conn, t, [(put.id, 1)]) == {put.id}
        done.set()

    async def look() -> int:
        probes = 0
        ids = sorted(new.event_id for new in rows)
        while not done.is_set():
            async with db.transaction() as conn:
                generations = await claim.lock_generations(conn, t, [H])
                known = await claim.probe(conn, t, [(H, 0)], ids, generations)
            seen = {key.event_id for key in (*known.claims, *known.failures)}
            assert len(seen) == len(rows), "a row was in neither"
            probes += 1
        return probes

    _, *probes = await asyncio.gather(move(), look(), look(), look())
    assert sum(probe for probe in probes if probe is not None) > 10


async def test_a_row_cannot_be_linked_to_an_original_that_is_being_completed(db: Database, t: Tables) -> None:
    """A link and the end of its original.

    1. A completion deletes the original. 2. A duplicate is to be linked to it and waits. 3. The completion commits.
    4. There is nothing to link to: the duplicate has a claim to be a duplicate of.
    """
    async with db.transaction() as conn:
        (original,) = await failure.put(conn, t, [row(1)])
    async with db.transaction() as completing:
        await failure.complete(completing, t, [(original.id, 1)])
        linking = asyncio.create_task(_link(db, t, original.id))
        await until_blocked(db)
    assert await linking is None
    assert await blocked(db) == 0


async def _link(db: Database, t: Tables, original_id: int) -> failure.Put | None:
    event = Event("v", Record("orders", 1, 9, b"k", b"v"), event_id=digest16(b"t", b"1"), id_text="1")
    async with db.transaction() as conn:
        (put,) = await failure.link(conn, t, [linked(Place(H, 0, 0), event, original_id, now=NOW)])
    return put
