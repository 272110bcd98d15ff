"""Who may write: the two-step takeover, and that a former owner never writes after it."""

from __future__ import annotations

import asyncio
import itertools
import time

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tests.support.locks import until_blocked
from tidegate.inbox import fence
from tidegate.inbox.database import Database
from tidegate.inbox.errors import OwnershipLost, TransientError
from tidegate.inbox.event import Partition
from tidegate.inbox.tables import Tables

C = "billing"
P2, P3 = Partition("orders", 2), Partition("orders", 3)


async def take(db: Database, t: Tables, partition: Partition, token: str, patience_s: float = 10) -> int:
    return await fence.take_over(db, t, C, partition, token, patience_s)


async def holds(db: Database, t: Tables, epochs: dict[Partition, int]) -> frozenset[Partition]:
    async with db.transaction() as conn:
        return await fence.hold(conn, t, C, epochs)


async def test_each_takeover_raises_the_epoch_and_shuts_the_former_owner_out(db: Database, t: Tables) -> None:
    first = await take(db, t, P2, "a")
    assert await holds(db, t, {P2: first}) == {P2}
    second = await take(db, t, P2, "b")
    assert second == first + 1
    assert await holds(db, t, {P2: first, P3: 1}) == frozenset()
    assert await holds(db, t, {P2: second}) == {P2}


async def test_only_the_partitions_that_are_still_ours_come_back(db: Database, t: Tables) -> None:
    mine, lost = await take(db, t, P2, "a"), await take(db, t, P3, "a")
    await take(db, t, P3, "b")
    assert await holds(db, t, {P3: lost, P2: mine}) == {P2}


async def test_a_takeover_waits_for_a_writer_that_is_open_and_lets_no_new_one_in(db: Database, t: Tables) -> None:
    epoch = await take(db, t, P2, "a")
    async with db.transaction() as writer:
        assert await fence.hold(writer, t, C, {P2: epoch}) == {P2}
        takeover = asyncio.create_task(take(db, t, P2, "b"))
        await until_blocked(db)
        assert await holds(db, t, {P2: epoch}) == frozenset()
        assert not takeover.done()
    assert await takeover == epoch + 1


async def test_a_takeover_does_not_starve_under_writers_that_overlap_without_end(db: Database, t: Tables) -> None:
    """In one step it would: key-share lockers pass the waiter for ever."""
    epoch = await take(db, t, P2, "a")
    stop = asyncio.Event()
    writes = 0

    async def write() -> None:
        nonlocal writes
        while not stop.is_set():
            async with db.transaction() as conn:
                if P2 not in await fence.hold(conn, t, C, {P2: epoch}):
                    return
                await conn.execute(sa.text("SELECT pg_sleep(0.02)"))
                writes += 1

    writers = [asyncio.create_task(write()) for _ in range(8)]
    while writes < 16:
        await asyncio.sleep(0)
    started = time.monotonic()
    try:
        assert await take(db, t, P2, "b", patience_s=5) == epoch + 1
    finally:
        stop.set()
        await asyncio.gather(*writers)
    assert time.monotonic() - started < 5


async def test_epochs_never_interleave_whoever_races(db: Database, t: Tables) -> None:
    """Five owners take the partition from each other and write as fast as they can; writes are numbered in the log."""
    async with db.transaction() as conn:
        await conn.execute(sa.text("CREATE TABLE public.log (n bigint GENERATED ALWAYS AS IDENTITY, epoch bigint)"))
    tokens = (f"t{n}" for n in itertools.count())

    async def own() -> None:
        turns = 0
        while turns < 3:
            try:
                epoch = await take(db, t, P2, next(tokens))
            except OwnershipLost:
                continue
            while await write(epoch):
                turns += 1
                if turns % 5 == 0:
                    break

    async def write(epoch: int) -> bool:
        async with db.transaction() as conn:
            held = await fence.hold(conn, t, C, {P2: epoch})
            if held:
                await conn.execute(sa.text("INSERT INTO public.log (epoch) VALUES (:epoch)"), {"epoch": epoch})
            return bool(held)

    await asyncio.gather(*[own() for _ in range(5)])
    async with db.transaction() as conn:
        epochs = list((await conn.execute(sa.text("SELECT epoch FROM public.log ORDER BY n"))).scalars())
    assert len(set(epochs)) >= 5
    assert epochs == sorted(epochs)


async def test_wanting_is_lost_to_whoever_wants_later(db: Database, t: Tables) -> None:
    epoch = await take(db, t, P2, "a")
    async with db.transaction() as writer:
        await fence.hold(writer, t, C, {P2: epoch})
        first = asyncio.create_task(take(db, t, P2, "b"))
        await until_blocked(db)
        second = asyncio.create_task(take(db, t, P2, "c"))
        await until_blocked(db, 2)
    with pytest.raises(OwnershipLost):
        await first
    assert await second == epoch + 1


async def test_a_writer_of_ours_that_does_not_end_is_terminated(db: Database, t: Tables) -> None:
    epoch = await take(db, t, P2, "a")

    async def freeze() -> None:
        async with db.transaction() as frozen:
            await fence.hold(frozen, t, C, {P2: epoch})
            assert await take(db, t, P2, "b", patience_s=0.3) == epoch + 1
            await frozen.execute(sa.text("SELECT 1"))

    with pytest.raises(exc.DBAPIError):
        await freeze()


async def test_a_session_that_is_not_ours_is_left_alone_and_named(db: Database, t: Tables, migrated_url: str) -> None:
    epoch = await take(db, t, P2, "a")
    stranger = await asyncpg.connect(migrated_url, server_settings={"application_name": "psql"})
    try:
        async with stranger.transaction():
            await stranger.execute("SELECT FROM tidegate.fence FOR KEY SHARE")
            with pytest.raises(TransientError, match="not tidegate's"):
                await take(db, t, P2, "b", patience_s=0.2)
            assert await holds(db, t, {P2: epoch}) == frozenset(), "still wanted: the next owner begins anew"
    finally:
        await stranger.close()
    assert await take(db, t, P2, "c") == epoch + 1


async def test_offsets_go_only_forward_and_only_under_the_own_epoch(db: Database, t: Tables) -> None:
    epoch = await take(db, t, P2, "a")

    async def note(offset: int, epoch_: int = epoch, *, forced: bool = False) -> frozenset[Partition]:
        async with db.transaction() as conn:
            return await fence.note_offsets(conn, t, C, {P2: (epoch_, offset), P3: (1, 5)}, forced=forced)

    assert await note(10) == {P2}
    assert await note(10) == {P2}
    assert await note(9) == frozenset()
    assert await note(20, epoch + 1) == frozenset()
    assert await note(3, forced=True) == {P2}
    async with db.transaction() as conn:
        assert (await fence.read(conn, t, C, [P2, P3]))[P2].kafka_offset == 3


async def test_what_is_given_back_shuts_the_giver_out_too_and_epochs_are_never_used_twice(
    db: Database, t: Tables
) -> None:
    owner = await take(db, t, P2, "owner")
    zombie = await take(db, t, P2, "zombie")
    async with db.transaction() as conn:
        await fence.give_back(conn, t, C, P2, "zombie", zombie)
        row = (await fence.read(conn, t, C, [P2]))[P2]
    assert row.released_at is not None
    assert await holds(db, t, {P2: owner}) == frozenset()
    assert await take(db, t, P2, "owner again") == zombie + 1


async def test_a_wish_that_came_to_nothing_is_taken_away(db: Database, t: Tables) -> None:
    epoch = await take(db, t, P2, "a")
    async with db.transaction() as conn:
        await fence.want(conn, t, C, P2, "zombie")
    assert await holds(db, t, {P2: epoch}) == frozenset()
    async with db.transaction() as conn:
        await fence.give_back(conn, t, C, P2, "zombie")
    assert await holds(db, t, {P2: epoch}) == {P2}


async def test_a_clean_end_is_marked_by_the_owner_only(db: Database, t: Tables) -> None:
    former = await take(db, t, P2, "a")
    owner = await take(db, t, P2, "b")

    async def released(epoch: int) -> bool:
        async with db.transaction() as conn:
            await fence.release(conn, t, C, {P2: epoch})
            return (await fence.read(conn, t, C, [P2]))[P2].released_at is not None

    assert not await released(former)
    assert await released(owner)


async def test_a_group_over_two_partitions_and_their_takeovers_never_deadlock(db: Database, t: Tables) -> None:
    """Seen without the order: a group that holds p3 and wants p2, against a takeover of both."""
    epochs = {P2: await take(db, t, P2, "a"), P3: await take(db, t, P3, "a")}
    async with db.transaction() as other, db.transaction() as writer:
        assert await fence.hold(other, t, C, {P2: epochs[P2]}) == {P2}
        assert await fence.hold(writer, t, C, {P3: epochs[P3]}) == {P3}
        takeovers = [asyncio.create_task(take(db, t, partition, "b")) for partition in (P2, P3)]
        await until_blocked(db, 2)
        # The writer comes for p2 as well: it is told no at once instead of waiting for who waits for it.
        assert await fence.hold(writer, t, C, epochs) == frozenset()
    assert await asyncio.gather(*takeovers) == [epochs[P2] + 1, epochs[P3] + 1]
