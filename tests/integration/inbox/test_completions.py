"""The statement of a plain group: all of it, or what is left over; and the connection that it goes over."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import asyncpg
import pytest
import sqlalchemy as sa

from tests.support.locks import until_blocked
from tidegate.inbox import checkpoint, claim, failure, fence
from tidegate.inbox.checkpoint import Move
from tidegate.inbox.claim import ClaimKey
from tidegate.inbox.completions import NEWS_MAX, NewClaim, Written, complete
from tidegate.inbox.database import Database, Fault, classify
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failing import FailingIds
from tidegate.inbox.failure_rows import NewFailure, Place, dead
from tidegate.inbox.identity import digest16
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.points import Writes
from tidegate.inbox.quick import QuickStore, Statements
from tidegate.inbox.tables import Tables

H, CONSUMER, TOPIC = 7, "billing", "shop.orders"
NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
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


@dataclass(frozen=True, slots=True)
class Desk:
    """Groups of one handler, written for the two partitions."""

    db: Database
    t: Tables
    store: QuickStore
    epochs: dict[Partition, int]
    known: FailingIds

    async def complete(self, wanted: list[NewClaim], *moves: Move, optimistic: bool = False) -> Written:
        failing = self.known.read_up_to([H])
        async with self.store.single(Writes.GROUP) as statements:
            return await complete(
                statements, self.t, CONSUMER, self.epochs, failing, wanted, list(moves), optimistic=optimistic
            )

    async def points(self) -> list[int]:
        async with self.db.transaction() as conn:
            rows = await conn.execute(self.t.sql("SELECT next_offset FROM {checkpoint} ORDER BY partition"))
            return [row[0] for row in rows]

    async def claimed(self, wanted: list[NewClaim]) -> int:
        async with self.db.transaction() as conn:
            found = await claim.probe(conn, self.t, [(H, 0)], [one.key.event_id for one in wanted])
        return len(found.claims)


@pytest.fixture
async def desk(db: Database, t: Tables, quick_store: QuickStore, epochs: dict[Partition, int]) -> Desk:
    known = FailingIds()
    await known.catch_up(db.transaction, t, [H])
    return Desk(db, t, quick_store, epochs, known)


@pytest.mark.parametrize("optimistic", [True, False])
async def test_a_group_is_claimed_and_its_checkpoints_are_moved(desk: Desk, optimistic: bool) -> None:
    written = await desk.complete(claims(0, 50), move(P0, 10, 40), move(P1, 10, 30), optimistic=optimistic)
    assert written == Written(None, moved=True)
    assert await desk.points() == [40, 30]
    assert await desk.claimed(claims(0, 50)) == 50


async def test_a_group_without_a_move_is_claimed(desk: Desk) -> None:
    assert await desk.complete(claims(0, 5)) == Written(None, moved=True)
    assert await desk.claimed(claims(0, 5)) == 5


@pytest.mark.parametrize("optimistic", [True, False])
@pytest.mark.parametrize("lost", ["epoch", "wanted", "never"])
async def test_nothing_is_written_unless_every_partition_is_ours(desk: Desk, lost: str, optimistic: bool) -> None:
    match lost:
        case "epoch":
            await fence.take_over(desk.db, desk.t, CONSUMER, P1, "other", 5.0)
        case "wanted":
            async with desk.db.transaction() as conn:
                await fence.want(conn, desk.t, CONSUMER, P1, "other")
        case _:
            desk.epochs[Partition(TOPIC, 2)] = 1
    written = await desk.complete(claims(0, 5), move(P0, 10, 40), optimistic=optimistic)
    assert written == Written(frozenset(), moved=False)
    assert await desk.points() == [10, 10]
    assert await desk.claimed(claims(0, 5)) == 0


async def test_a_group_that_is_taken_for_new_is_written_as_a_whole_or_not_at_all(desk: Desk) -> None:
    await desk.complete(claims(3, 4))
    with pytest.raises(asyncpg.UniqueViolationError):
        await desk.complete(claims(0, 5), move(P0, 10, 40), optimistic=True)
    assert await desk.points() == [10, 10]
    assert await desk.claimed(claims(0, 5)) == 1
    assert await desk.complete(claims(4, 6), move(P0, 10, 40), optimistic=True) == Written(None, moved=True)


async def test_of_ids_that_were_claimed_before_the_others_are_ours_and_no_checkpoint_passes_them(desk: Desk) -> None:
    await desk.complete(claims(3, 4))
    written = await desk.complete(claims(0, 5), move(P0, 10, 40))
    assert written == Written(frozenset(one.key for one in claims(0, 5)) - {claims(3, 4)[0].key}, moved=False)
    assert await desk.points() == [10, 10]
    assert await desk.claimed(claims(0, 5)) == 5


async def test_a_checkpoint_that_stands_elsewhere_is_told(desk: Desk) -> None:
    assert await desk.complete(claims(0, 5), move(P0, 10, 40), move(P1, 9, 30)) == Written(None, moved=False)
    assert await desk.points() == [40, 10]


async def test_an_id_with_a_failure_row_that_nobody_has_read_of_is_not_claimed(desk: Desk) -> None:
    """Only the group that has it is left over; and too many that nobody has read of are too many to look through."""
    await put(desk, 0, 1)
    assert await desk.complete(claims(0, 5)) == Written(frozenset(), moved=False)
    assert await desk.complete(claims(1, 5)) == Written(None, moved=True)
    await put(desk, 1_000, 1_000 + NEWS_MAX)
    assert await desk.complete(claims(5, 9)) == Written(frozenset(), moved=False)
    await desk.known.catch_up(desk.db.transaction, desk.t, [H])
    assert await desk.complete(claims(5, 9)) == Written(None, moved=True)
    assert list(desk.known.suspects(H, [one.key.event_id for one in claims(0, 1)])) == [claims(0, 1)[0].key.event_id]


async def test_the_row_of_a_transaction_that_was_open_when_the_filter_was_read_is_seen(desk: Desk) -> None:
    async with desk.db.transaction() as conn:
        await failure.put(conn, desk.t, [row(0)])
        await desk.known.catch_up(desk.db.transaction, desk.t, [H])
    assert await desk.complete(claims(0, 5)) == Written(frozenset(), moved=False)


async def test_rows_that_were_put_by_the_transaction_that_read_the_filter_are_looked_through_once(desk: Desk) -> None:
    """As groups of failed events do: two of them in a row must not send what follows the long way."""
    async with desk.db.transaction() as conn:
        await conn.execute(sa.text("SELECT pg_current_xact_id()"))
        await desk.known.read(conn, desk.t, [H], lock=True)
        await failure.put(conn, desk.t, [row(n) for n in range(1_000, 1_000 + NEWS_MAX - 1)])
    assert await desk.complete(claims(0, 5)) == Written(None, moved=True)
    assert await desk.complete(claims(1_000, 1_001)) == Written(frozenset(), moved=False)


async def test_what_another_server_has_told_counts_for_nothing(desk: Desk) -> None:
    """Its transactions have other numbers: nothing is written until the filter was read anew."""
    unread = Desk(desk.db, desk.t, desk.store, desk.epochs, FailingIds())
    assert await unread.complete(claims(0, 5)) == Written(frozenset(), moved=False)


async def test_an_open_group_holds_a_takeover_and_a_rotation_up(desk: Desk) -> None:
    async with desk.store.transaction(Writes.GROUP) as statements:
        await complete(statements, desk.t, CONSUMER, desk.epochs, desk.known.read_up_to([H]), claims(0, 5), [])
        taking = asyncio.create_task(fence.take_over(desk.db, desk.t, CONSUMER, P1, "other", 30.0))
        await until_blocked(desk.db)
        async with desk.db.transaction() as conn:
            lock = {"key": desk.t.generation_lock}
            assert await conn.scalar(desk.t.sql("SELECT pg_try_advisory_xact_lock(:key)"), lock) is False
        assert not taking.done()
    assert await taking == desk.epochs[P1] + 1


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
            await statements.fetch(t.sql(CLAIM), one_claim())
            await statements.fetch(t.sql("SELECT 1 / CAST(:n AS int)"), {"n": 0})

    with pytest.raises(asyncpg.DivisionByZeroError):
        await fail()
    assert await known(db, t) == 0
    async with quick_store.transaction(Writes.GROUP) as statements:
        assert await pid(statements, t) == first


async def test_a_cancelled_owner_gives_the_connection_up(db: Database, t: Tables, quick_store: QuickStore) -> None:
    async def hang() -> None:
        async with quick_store.transaction(Writes.GROUP) as statements:
            await statements.fetch(t.sql(CLAIM), one_claim())
            await statements.fetch(t.sql("SELECT pg_advisory_xact_lock(:key)"), {"key": t.generation_lock})

    async with db.transaction() as conn:
        await conn.execute(t.sql("SELECT pg_advisory_xact_lock(:key)"), {"key": t.generation_lock})
        hanging = asyncio.create_task(hang())
        await until_blocked(db)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    assert await known(db, t) == 0


async def put(desk: Desk, first: int, last: int) -> None:
    async with desk.db.transaction() as conn:
        await failure.put(conn, desk.t, [row(number) for number in range(first, last)])


def row(number: int) -> NewFailure:
    record = Record(TOPIC, 0, number, b"k", b"value")
    event = Event("v", record, event_id=digest16(b"t", b"%d" % number), id_text=str(number))
    return dead(Place(H, 0, 0), event, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW)


CLAIM: Final = "INSERT INTO {claim_1} (handler, version, event_id, payload_hash8) VALUES (:handler, 0, :id, 1)"


def one_claim() -> dict[str, object]:
    return {"handler": H, "id": claims(0, 1)[0].key.event_id}


async def known(db: Database, t: Tables) -> int:
    async with db.transaction() as conn:
        return len((await claim.probe(conn, t, [(H, 0)], [claims(0, 1)[0].key.event_id])).claims)


async def pid(statements: Statements, t: Tables) -> int:
    (row,) = await statements.fetch(t.sql("SELECT pg_backend_pid()"), {})
    return row[0]


async def terminate(db: Database, backend: int) -> None:
    async with db.transaction() as conn:
        await conn.execute(sa.text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": backend})
