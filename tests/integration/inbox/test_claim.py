"""Claims: each id is ours once, whoever races, however it is tried."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from tests.support.locks import until_blocked
from tidegate.inbox import claim
from tidegate.inbox.claim import Claimed
from tidegate.inbox.database import Database, Fault, classify
from tidegate.inbox.identity import digest16
from tidegate.inbox.tables import Tables

H = 7


def ids(first: int, last: int) -> list[tuple[bytes, int]]:
    return sorted((digest16(b"t", b"%d" % n), n) for n in range(first, last))


async def claimed(
    db: Database, t: Tables, wanted: list[tuple[bytes, int]], *, optimistic: bool, version: int = 0
) -> Claimed:
    async with db.transaction() as conn:
        await claim.lock_generations(conn, t, [H])
        return await claim.claim(conn, t, H, version, wanted, optimistic=optimistic)


async def count(db: Database) -> int:
    async with db.transaction() as conn:
        return (await conn.execute(sa.text("SELECT count(*) FROM tidegate.claim_1"))).scalar_one()


@pytest.mark.parametrize("optimistic", [True, False])
async def test_new_ids_are_all_ours_and_repeats_come_back_with_the_hash_of_the_first(
    db: Database, t: Tables, optimistic: bool
) -> None:
    assert await claimed(db, t, ids(0, 50), optimistic=optimistic) == Claimed(None, {})
    again = await claimed(db, t, [(i, h + 1000) for i, h in ids(40, 60)], optimistic=optimistic)
    assert again == Claimed(frozenset(i for i, _ in ids(50, 60)), dict(ids(40, 50)))
    assert await count(db) == 60


async def test_another_handler_or_version_claims_for_itself(db: Database, t: Tables) -> None:
    await claimed(db, t, ids(0, 5), optimistic=True)
    assert await claimed(db, t, ids(0, 5), optimistic=True, version=1) == Claimed(None, {})
    assert await count(db) == 10


async def test_hashes_at_the_ends_of_their_range_come_back_exactly(db: Database, t: Tables) -> None:
    wanted = sorted([(digest16(b"low"), -(2**63)), (digest16(b"high"), 2**63 - 1), (digest16(b"zero"), 0)])
    await claimed(db, t, wanted, optimistic=True)
    assert (await claimed(db, t, wanted, optimistic=False)).taken == dict(wanted)


async def test_what_was_done_before_the_claim_survives_the_fallback(db: Database, t: Tables) -> None:
    await claimed(db, t, ids(0, 1), optimistic=True)
    async with db.transaction() as conn:
        await conn.execute(sa.text("CREATE TABLE public.before (n int)"))
        await conn.execute(sa.text("INSERT INTO public.before VALUES (1)"))
        assert (await claim.claim(conn, t, H, 0, ids(0, 2), optimistic=True)).taken == dict(ids(0, 1))
        await conn.execute(sa.text("INSERT INTO public.before VALUES (2)"))
    async with db.transaction() as conn:
        assert (await conn.execute(sa.text("SELECT sum(n) FROM public.before"))).scalar_one() == 3


async def test_the_callers_own_savepoint_serves_as_well(db: Database, t: Tables) -> None:
    await claimed(db, t, ids(0, 1), optimistic=True)
    async with db.transaction() as conn:
        await conn.execute(sa.text("SAVEPOINT mine"))
        result = await claim.claim(conn, t, H, 0, ids(0, 3), optimistic=True, savepoint="mine")
    assert result.new == {i for i, _ in ids(1, 3)}
    assert await count(db) == 3


@pytest.mark.parametrize("optimistic", [True, False])
async def test_an_id_whose_claim_is_deleted_as_we_meet_it_is_ours(db: Database, t: Tables, optimistic: bool) -> None:
    """Between the insert that met it and the look at it: a trigger deletes it there. Nobody handled it, so we do.

    Case: B50
    Parts: real (PostgreSQL)
    Red when: inbox/claim.py `claim` inserts once only
    """
    await claimed(db, t, ids(0, 3), optimistic=True)
    async with db.transaction() as conn:
        for statement in (
            "CREATE FUNCTION public.forget() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN DELETE FROM tidegate.claim_1 WHERE payload_hash8 = 1; RETURN NULL; END $$",
            "CREATE TRIGGER forget AFTER INSERT ON tidegate.claim_1 EXECUTE FUNCTION public.forget()",
        ):
            await conn.execute(sa.text(statement))
    wanted = [(event_id, n + 1000) for event_id, n in ids(0, 5)]
    assert await claimed(db, t, wanted, optimistic=optimistic) == Claimed(
        frozenset(i for i, _ in [*ids(1, 2), *ids(3, 5)]), dict([*ids(0, 1), *ids(2, 3)])
    )
    assert await count(db) == 5


async def test_claims_vanish_with_the_transaction_that_made_them(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        await claim.lock_generations(conn, t, [H])
        await claim.claim(conn, t, H, 0, ids(0, 10), optimistic=True)
        await conn.rollback()
    assert await count(db) == 0
    assert (await claimed(db, t, ids(0, 10), optimistic=True)).new is None


@pytest.mark.parametrize("optimistic", [True, False])
@pytest.mark.parametrize("first_commits", [True, False])
async def test_of_two_at_once_one_claims_and_the_other_learns_of_it(
    db: Database, t: Tables, optimistic: bool, first_commits: bool
) -> None:
    """A redelivered record that two workers hold at once has one effect, whether the first of them commits or not.

    Case: B50
    Parts: real (PostgreSQL)
    Red when: inbox/claim.py leaves `ON CONFLICT DO NOTHING` out of its insert
    """
    async with db.transaction() as first:
        await claim.lock_generations(first, t, [H])
        assert (await claim.claim(first, t, H, 0, ids(0, 1), optimistic=optimistic)).new is None
        second = asyncio.create_task(claimed(db, t, ids(0, 1), optimistic=optimistic))
        await until_blocked(db)
        if not first_commits:
            await first.rollback()
    expected = Claimed(frozenset(), dict(ids(0, 1))) if first_commits else Claimed(None, {})
    assert await second == expected
    assert await count(db) == 1


async def test_a_duplicate_that_is_blocked_too_long_is_a_transient_outcome(db: Database, t: Tables) -> None:
    async with db.transaction() as first:
        await claim.lock_generations(first, t, [H])
        await claim.claim(first, t, H, 0, ids(0, 1), optimistic=True)
        error: BaseException | None = None
        try:
            async with db.transaction() as second:
                await second.execute(sa.text("SET LOCAL lock_timeout = '50ms'"))
                await claim.claim(second, t, H, 0, ids(0, 1), optimistic=True)
        except Exception as raised:  # noqa: BLE001 - the kind is what is asked about
            error = raised
    assert error is not None
    assert classify(error) is Fault.TRANSIENT


async def test_a_role_that_defaults_to_repeatable_read_changes_nothing(
    db: Database, t: Tables, migrated_url: str
) -> None:
    """The promise rests on READ COMMITTED, so each transaction asks for it.

    Case: B50
    Parts: real (PostgreSQL)
    Red when: inbox/database.py leaves `isolation_level` and `default_transaction_isolation` out
    """
    async with db.transaction() as conn:
        name = (await conn.execute(sa.text("SELECT current_database()"))).scalar_one()
        await conn.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"))
    other = Database(migrated_url)
    try:
        async with other.transaction() as conn:
            await claim.lock_generations(conn, t, [H])
            await claimed(db, t, ids(0, 1), optimistic=True)
            assert (await claim.claim(conn, t, H, 0, ids(0, 1), optimistic=True)).taken == dict(ids(0, 1))
    finally:
        await other.close()


async def test_sorted_claims_of_overlapping_batches_never_deadlock(db: Database, t: Tables) -> None:
    batches = [ids(n * 20, n * 20 + 200) for n in range(8)]
    results = await asyncio.gather(*[claimed(db, t, batch, optimistic=n % 2 == 0) for n, batch in enumerate(batches)])
    assert await count(db) == 7 * 20 + 200
    new = [len(batch) if r.new is None else len(r.new) for r, batch in zip(results, batches, strict=True)]
    assert sum(new) == 7 * 20 + 200


async def test_the_generation_lock_keeps_a_rotator_out_until_the_end(db: Database, t: Tables) -> None:
    async with db.transaction() as claiming:
        await claim.lock_generations(claiming, t, [H])
        async with db.transaction() as rotator:
            got = await rotator.execute(sa.text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": t.generation_lock})
            assert got.scalar_one() is False
    async with db.transaction() as rotator:
        got = await rotator.execute(sa.text("SELECT pg_try_advisory_xact_lock(:key)"), {"key": t.generation_lock})
        assert got.scalar_one() is True


async def test_no_session_state_outlives_a_transaction(db: Database, t: Tables) -> None:
    """A lock or setting that stayed on a connection would belong to somebody else behind a transaction-mode pooler.

    Case: B46
    Parts: real (PostgreSQL; no pooler)
    Red when: inbox/failing.py takes pg_advisory_lock_shared instead of `pg_advisory_xact_lock_shared`
    """
    await claimed(db, t, ids(0, 10), optimistic=True)
    async with db.transaction() as conn:
        locks = await conn.execute(
            sa.text("""
                SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            """)
        )
        assert locks.scalar_one() == 0
