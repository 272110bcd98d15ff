"""The two statements of a plain group: all of it, or the word that it is not plain; and the connection they go over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest
import sqlalchemy as sa

from tests.support.locks import until_blocked
from tidegate.inbox import checkpoint, claim, fence
from tidegate.inbox.checkpoint import Move
from tidegate.inbox.claim import ClaimKey, Generations
from tidegate.inbox.completions import NewClaim, claim_and_move, open_group
from tidegate.inbox.database import Database, Fault, classify
from tidegate.inbox.event import Partition
from tidegate.inbox.failing import FailingIds
from tidegate.inbox.identity import digest16
from tidegate.inbox.points import Writes
from tidegate.inbox.quick import QuickStore, Statements
from tidegate.inbox.tables import Tables

H, CONSUMER, TOPIC = 7, "billing", "shop.orders"
P0, P1 = Partition(TOPIC, 0), Partition(TOPIC, 1)


@pytest.fixture
async def quick_store(db: Database) -> AsyncIterator[QuickStore]:
    store = QuickStore(db)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def epochs(db: Database, t: Tables) -> dict[Partition, int]:
    """Both partitions are ours, and start at 10."""
    epochs = {p: await fence.take_over(db, t, CONSUMER, p, "token", 5.0) for p in (P0, P1)}
    async with db.transaction() as conn:
        for partition in epochs:
            await checkpoint.create(conn, t, [(H, 0)], partition, 0, 10)
    return epochs


def claims(first: int, last: int) -> list[NewClaim]:
    return sorted(NewClaim(ClaimKey(H, 0, digest16(b"t", b"%d" % n)), n) for n in range(first, last))


def move(partition: Partition, old: int, new: int) -> Move:
    return Move(H, 0, partition.topic, partition.number, old, new)


async def points(db: Database, t: Tables) -> list[int]:
    async with db.transaction() as conn:
        rows = await conn.execute(t.sql("SELECT next_offset FROM {checkpoint} ORDER BY partition"))
        return [row[0] for row in rows]


async def known(db: Database, t: Tables, wanted: list[NewClaim]) -> int:
    async with db.transaction() as conn:
        found = await claim.probe(conn, t, [(H, 0)], [one.key.event_id for one in wanted])
    return len(found.claims)


async def opened(store: QuickStore, t: Tables, epochs: dict[Partition, int]) -> Generations | None:
    async with store.transaction(Writes.GROUP) as statements:
        return await open_group(statements, t, CONSUMER, epochs, [H], FailingIds())


async def test_a_group_is_claimed_and_its_checkpoints_are_moved(
    db: Database, t: Tables, quick_store: QuickStore, epochs: dict[Partition, int]
) -> None:
    async with quick_store.transaction(Writes.GROUP) as statements:
        generations = await open_group(statements, t, CONSUMER, epochs, [H], FailingIds())
        assert generations is not None
        assert not generations.failing
        assert await claim_and_move(statements, t, claims(0, 50), [move(P0, 10, 40), move(P1, 10, 30)])
    assert await points(db, t) == [40, 30]
    assert await known(db, t, claims(0, 50)) == 50


async def test_a_group_without_a_move_is_claimed(
    db: Database, t: Tables, quick_store: QuickStore, epochs: dict[Partition, int]
) -> None:
    async with quick_store.transaction(Writes.GROUP) as statements:
        assert await claim_and_move(statements, t, claims(0, 5), [])
    assert await known(db, t, claims(0, 5)) == 5


@pytest.mark.parametrize("lost", ["epoch", "wanted", "never"])
async def test_a_group_opens_only_if_every_partition_is_ours(
    db: Database, t: Tables, quick_store: QuickStore, epochs: dict[Partition, int], lost: str
) -> None:
    assert await opened(quick_store, t, epochs) is not None
    match lost:
        case "epoch":
            await fence.take_over(db, t, CONSUMER, P1, "other", 5.0)
        case "wanted":
            async with db.transaction() as conn:
                await fence.want(conn, t, CONSUMER, P1, "other")
        case _:
            epochs[Partition(TOPIC, 2)] = 1
    assert await opened(quick_store, t, epochs) is None
    assert await opened(quick_store, t, {P0: epochs[P0]}) is not None


async def test_an_open_group_holds_a_takeover_and_a_rotation_up(
    db: Database, t: Tables, quick_store: QuickStore, epochs: dict[Partition, int]
) -> None:
    async with quick_store.transaction(Writes.GROUP) as statements:
        await open_group(statements, t, CONSUMER, epochs, [H], FailingIds())
        taking = asyncio.create_task(fence.take_over(db, t, CONSUMER, P1, "other", 30.0))
        await until_blocked(db)
        async with db.transaction() as conn:
            free = await conn.scalar(t.sql("SELECT pg_try_advisory_xact_lock(:key)"), {"key": t.generation_lock})
        assert free is False
        assert not taking.done()
    assert await taking == epochs[P1] + 1


@pytest.mark.parametrize("why", ["an id was claimed", "a checkpoint stands elsewhere"])
async def test_where_one_thing_is_not_as_expected_nothing_counts(
    db: Database, t: Tables, quick_store: QuickStore, epochs: dict[Partition, int], why: str
) -> None:
    """The caller rolls back: until then no checkpoint has moved past an event that is not ours."""
    moves = [move(P0, 10, 40), move(P1, 10, 30)]
    if why == "an id was claimed":
        async with quick_store.transaction(Writes.GROUP) as statements:
            assert await claim_and_move(statements, t, claims(3, 4), [])
    else:
        moves[1] = move(P1, 9, 30)
    with suppress(KeyError):
        async with quick_store.transaction(Writes.GROUP) as statements:
            assert not await claim_and_move(statements, t, claims(0, 5), moves)
            raise KeyError
    assert await points(db, t) == [10, 10]
    assert await known(db, t, claims(0, 5)) == (1 if why == "an id was claimed" else 0)


async def test_a_lost_connection_is_told_and_made_anew(db: Database, t: Tables, quick_store: QuickStore) -> None:
    """Whether it goes in the transaction or between two of them."""

    async def lose() -> None:
        async with quick_store.transaction(Writes.GROUP) as statements:
            await terminate(db, await pid(statements, t))
            await pid(statements, t)

    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)) as caught:
        await lose()
    assert classify(caught.value) is Fault.DEPENDENCY
    async with quick_store.transaction(Writes.GROUP) as statements:
        second = await pid(statements, t)
    async with quick_store.transaction(Writes.GROUP) as statements:
        assert await pid(statements, t) == second


async def test_a_failed_statement_undoes_and_keeps_the_connection(
    db: Database, t: Tables, quick_store: QuickStore
) -> None:
    async with quick_store.transaction(Writes.GROUP) as statements:
        first = await pid(statements, t)

    async def fail() -> None:
        async with quick_store.transaction(Writes.GROUP) as statements:
            assert await claim_and_move(statements, t, claims(0, 5), [])
            await statements.fetch(t.sql("SELECT 1 / CAST(:n AS int)"), {"n": 0})

    with pytest.raises(asyncpg.DivisionByZeroError):
        await fail()
    assert await known(db, t, claims(0, 5)) == 0
    async with quick_store.transaction(Writes.GROUP) as statements:
        assert await pid(statements, t) == first


async def test_a_cancelled_owner_gives_the_connection_up(db: Database, t: Tables, quick_store: QuickStore) -> None:
    async def hang() -> None:
        async with quick_store.transaction(Writes.GROUP) as statements:
            await claim_and_move(statements, t, claims(0, 5), [])
            await statements.fetch(t.sql("SELECT pg_advisory_xact_lock(:key)"), {"key": t.generation_lock})

    async with db.transaction() as conn:
        await conn.execute(t.sql("SELECT pg_advisory_xact_lock(:key)"), {"key": t.generation_lock})
        hanging = asyncio.create_task(hang())
        await until_blocked(db)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    assert await known(db, t, claims(0, 5)) == 0


async def pid(statements: Statements, t: Tables) -> int:
    (row,) = await statements.fetch(t.sql("SELECT pg_backend_pid()"), {})
    return row[0]


async def terminate(db: Database, backend: int) -> None:
    async with db.transaction() as conn:
        await conn.execute(sa.text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": backend})
