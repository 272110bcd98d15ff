"""What only one may do: acquiring, renewing, taking over, and that a former holder writes nothing afterwards."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from tests.support.locks import blocked, until_blocked
from tidegate.inbox import lease
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.database import Database
from tidegate.inbox.lease import Lease, Leaseholder
from tidegate.inbox.store import Store
from tidegate.inbox.tables import Tables

TTL_S = 30.0


async def acquire(db: Database, t: Tables, holder: str, *, ttl_s: float = TTL_S, asked_s: float = 0.0) -> Lease | None:
    async with db.transaction() as conn:
        return await lease.acquire(conn, t, "reconciler/billing", holder, ttl_s=ttl_s, asked_s=asked_s)


async def must_acquire(db: Database, t: Tables, holder: str) -> Lease:
    acquired = await acquire(db, t, holder)
    assert acquired is not None
    return acquired


async def renew(db: Database, t: Tables, held: Lease, asked_s: float = 0.0) -> Lease | None:
    async with db.transaction() as conn:
        return await lease.renew(conn, t, held, ttl_s=TTL_S, asked_s=asked_s)


async def holds(db: Database, t: Tables, held: Lease) -> bool:
    async with db.transaction() as conn:
        return await lease.hold(conn, t, held)


async def shift(db: Database, t: Tables, seconds: float) -> None:
    """Let the row's end be so much further away; a negative number lets time pass."""
    async with db.transaction() as conn:
        await conn.execute(
            t.sql("UPDATE {lease} SET expires_at = expires_at + make_interval(secs => :seconds)"), {"seconds": seconds}
        )


async def test_of_many_who_ask_at_once_one_gets_it(db: Database, t: Tables) -> None:
    answers = await asyncio.gather(*(acquire(db, t, f"h{n}") for n in range(8)))
    assert [answer.token for answer in answers if answer is not None] == [1]


async def test_a_holder_counts_from_before_it_asked(db: Database, t: Tables) -> None:
    acquired = await acquire(db, t, "a", asked_s=100.0)
    assert acquired is not None
    assert acquired == Lease("reconciler/billing", 1, 100.0 + TTL_S)
    assert await renew(db, t, acquired, asked_s=110.0) == Lease("reconciler/billing", 1, 110.0 + TTL_S)


async def test_a_lease_that_was_given_up_is_free_at_once_under_another_token(db: Database, t: Tables) -> None:
    first = await must_acquire(db, t, "a")
    async with db.transaction() as conn:
        await lease.release(conn, t, first)
    second = await must_acquire(db, t, "b")
    assert second.token == first.token + 1
    async with db.transaction() as conn:
        await lease.release(conn, t, first)
    assert await holds(db, t, second), "a former holder gives up what is not its own"


async def test_whoever_is_killed_is_followed_by_another_once_the_lease_ran_out(db: Database, t: Tables) -> None:
    await must_acquire(db, t, "killed")
    assert await acquire(db, t, "b") is None
    await shift(db, t, -TTL_S)
    assert await acquire(db, t, "b") is not None


async def test_a_zombie_neither_writes_nor_renews(db: Database, t: Tables) -> None:
    zombie = await must_acquire(db, t, "zombie")
    await shift(db, t, -TTL_S)
    assert not await holds(db, t, zombie), "nobody took it over yet, but its time is over"
    assert await renew(db, t, zombie) is None
    await must_acquire(db, t, "b")
    assert not await holds(db, t, zombie)
    assert await renew(db, t, zombie) is None


async def test_a_takeover_waits_for_what_the_former_holder_has_open(db: Database, t: Tables) -> None:
    first = await must_acquire(db, t, "a")
    async with db.transaction() as writer:
        assert await lease.hold(writer, t, first)
        await shift(db, t, -TTL_S)
        takeover = asyncio.create_task(acquire(db, t, "b"))
        await until_blocked(db)
        assert not await holds(db, t, first), "a writer that comes after the end does not get in"
        assert not takeover.done()
    taken = await takeover
    assert taken is not None
    assert taken.token == first.token + 1


async def test_asking_for_a_lease_that_is_held_waits_for_nobody(db: Database, t: Tables) -> None:
    first = await must_acquire(db, t, "a")
    async with db.transaction() as writer:
        assert await lease.hold(writer, t, first)
        assert await acquire(db, t, "b") is None
        assert await renew(db, t, first) is not None, "a renewal touches no key, so it does not wait for writers"
        assert await blocked(db) == 0


@pytest.mark.parametrize("hours", [1, 24])
async def test_a_clock_that_jumped_back_does_not_hold_a_lease_for_as_long(db: Database, t: Tables, hours: int) -> None:
    gone = await must_acquire(db, t, "gone")
    await shift(db, t, hours * 3600)
    taken = await must_acquire(db, t, "b")
    assert taken.token == gone.token + 1
    assert not await holds(db, t, gone)


async def test_a_clock_that_jumped_back_does_no_harm_to_a_holder_that_lives(db: Database, t: Tables) -> None:
    alive = await must_acquire(db, t, "alive")
    await shift(db, t, 3600)
    assert await renew(db, t, alive) is not None
    assert await acquire(db, t, "b") is None


async def test_a_loop_keeps_its_lease_for_as_long_as_it_asks(db: Database, t: Tables) -> None:
    clock = ManualClock()
    store = Store(db, t)
    mine = Leaseholder(store, clock, "sweep", "a", ttl_s=TTL_S)
    other = Leaseholder(store, clock, "sweep", "b", ttl_s=TTL_S)
    first = await mine.held()
    assert first is not None
    clock.advance(TTL_S / 4)
    assert await mine.held() == first, "there is time enough left: nobody is asked"
    clock.advance(TTL_S / 4)
    renewed = await mine.held()
    assert renewed == Lease("sweep", first.token, clock.monotonic_s() + TTL_S)
    assert await other.held() is None
    await mine.give_up()
    assert mine.left_s() < 0
    assert await other.held() is not None


async def test_a_loop_that_slept_too_long_asks_like_anybody(db: Database, t: Tables) -> None:
    clock = ManualClock()
    mine = Leaseholder(Store(db, t), clock, "sweep", "a", ttl_s=TTL_S)
    first = await mine.held()
    assert first is not None
    clock.advance(TTL_S + 1)
    assert await mine.held() is None, (
        "by the database's clock it still holds: another one could not know that it sleeps"
    )
    async with db.transaction() as conn:
        await conn.execute(sa.text("UPDATE tidegate.lease SET expires_at = '-infinity'"))
    again = await mine.held()
    assert again is not None
    assert again.token == first.token + 1
