"""A claiming transaction knows without look-ups which ids have no failure row, and never says so of one that has."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.locks import until_blocked
from tidegate.inbox import claim, failure, id_filter
from tidegate.inbox.claim import ADVISED_MIN, ClaimKey, Generations, Probe
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Record
from tidegate.inbox.failing import FEW, FailingIds
from tidegate.inbox.failure_rows import NewFailure, Place, dead
from tidegate.inbox.id_filter import NEWER_MIN, IdFilter, Reached
from tidegate.inbox.identity import digest16
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.store import Store
from tidegate.inbox.tables import Tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
HANDLER = 7


def event_id(number: int) -> bytes:
    return digest16(b"t", b"%d" % number)


def row(number: int, handler: int = HANDLER) -> NewFailure:
    record = Record("orders", 0, number, b"k", b"value")
    event = Event("v", record, event_id=event_id(number), id_text=str(number))
    return dead(Place(handler, 0, 0), event, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW)


async def put(db: Database, t: Tables, *numbers: int) -> None:
    async with db.transaction() as conn:
        await failure.put(conn, t, [row(number) for number in numbers])


async def probed(
    db: Database, t: Tables, ids: Sequence[bytes], known: FailingIds | None = None
) -> tuple[Generations, Probe]:
    async with db.transaction() as conn:
        generations = await claim.lock_generations(conn, t, [HANDLER], known)
        return generations, await claim.probe(conn, t, [(HANDLER, 0)], ids, generations, newest=False)


async def read(db: Database, t: Tables, known: FailingIds, handler: int = HANDLER) -> IdFilter | None:
    async with db.transaction() as conn:
        return (await known.read(conn, t, [handler], lock=False))[handler]


async def told(db: Database, t: Tables, known: FailingIds, *numbers: int) -> list[int]:
    """Those of `numbers` that are suspected, by a filter that has caught up."""
    filtered = await read(db, t, known)
    assert filtered is not None
    suspects = filtered.suspects([event_id(number) for number in numbers])
    return [number for number in numbers if event_id(number) in suspects]


@pytest.mark.parametrize("rows", [1, FEW - 1, FEW, FEW + 1])
@pytest.mark.parametrize("kept", [False, True])
async def test_a_failure_is_found_however_many_there_are(db: Database, t: Tables, rows: int, kept: bool) -> None:
    await put(db, t, *range(rows))
    generations, found = await probed(db, t, [event_id(0), event_id(rows)], FailingIds() if kept else None)
    assert generations.failing == {HANDLER}
    assert (generations.filters[HANDLER] is None) == (rows >= FEW and not kept)
    assert list(found.failures) == [ClaimKey(HANDLER, 0, event_id(0))]


async def test_a_handler_without_failures_costs_nothing_beside_one_with_many(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        await failure.put(conn, t, [row(number, HANDLER + 1) for number in range(600)])
    async with db.transaction() as conn:
        await conn.execute(sa.text("ANALYZE tidegate.failure"))
    async with db.transaction() as conn:
        generations = await claim.lock_generations(conn, t, [HANDLER])
        assert await claim.probe(conn, t, [(HANDLER, 0)], [event_id(0)], generations, newest=False) == Probe()
        read = await conn.scalar(
            sa.text("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'failure'")
        )
    assert (generations.failing, read) == (frozenset(), 0)


async def test_the_generation_lock_is_held_also_where_nothing_else_is_asked(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        assert await claim.lock_generations(conn, t) == Generations()
        locks = "SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert await conn.scalar(sa.text(locks)) == "ShareLock"


async def test_many_ids_are_looked_up_only_where_the_filter_says_so(db: Database, t: Tables) -> None:
    await put(db, t, *range(5))
    known = FailingIds()
    for ids in ([event_id(3)], [event_id(number) for number in range(ADVISED_MIN)]):
        async with db.transaction() as conn:
            found = await claim.advise(conn, t, [(HANDLER, 0)], ids, known)
        assert {key.event_id for key in found.failures} == {event_id(number) for number in range(5)} & set(ids)


async def asked_when_they_came(db: Database, t: Tables, known: FailingIds, *numbers: int) -> None:
    async with db.transaction() as conn:
        await claim.advise(conn, t, [(HANDLER, 0)], [event_id(number) for number in numbers], known)


@pytest.mark.parametrize("strangers", [0, ADVISED_MIN])
async def test_what_was_asked_for_when_it_came_is_asked_for_again_where_it_was_met_or_put_since(
    db: Database, t: Tables, strangers: int
) -> None:
    await put(db, t, 1, 2)
    known, came = FailingIds(), [1, 3, 4, *range(1_000, 1_000 + strangers)]
    await read(db, t, known)
    known.nothing_came_yet()
    await asked_when_they_came(db, t, known, *came)
    assert known.suspects(HANDLER, [event_id(number) for number in came]) == [event_id(1)], "it was met"
    await put(db, t, 3)
    await read(db, t, known)
    assert known.suspects(HANDLER, [event_id(number) for number in came]) == [event_id(1), event_id(3)]
    assert known.suspects(HANDLER, [event_id(2)]) == [], "who was not asked for when it came must not be asked for so"


async def test_what_came_before_the_pages_is_asked_for_whole(db: Database, t: Tables) -> None:
    """While the filter was behind, in a process that looks nothing up, and of a filter that was read anew."""
    await put(db, t, 1, 3)
    behind, bare, anew = FailingIds(read_max=1), FailingIds(), FailingIds()
    assert await read(db, t, behind) is None
    behind.nothing_came_yet()
    while await read(db, t, behind) is None:
        await asked_when_they_came(db, t, behind, 2)
    await read(db, t, bare)
    await read(db, t, anew)
    anew.nothing_came_yet()
    for number in range(NEWER_MIN + 1):
        anew.met(HANDLER, event_id(number + 10))
    assert await read(db, t, anew) is not None
    await read(db, t, anew)
    for known in (behind, bare, anew):
        assert known.suspects(HANDLER, [event_id(1), event_id(2)]) == [event_id(1)]


# ----------------------------------------------------------------------------------------------- nothing is ever missed


async def test_a_row_that_commits_late_is_not_missed(db: Database, t: Tables) -> None:
    """Two transactions put a row each; the one that began last commits first, and the filter is read between them."""
    known = FailingIds()
    async with db.transaction() as early:
        await failure.put(early, t, [row(1)])
        await _put_for_another_key(db, t, 2)
        assert await told(db, t, known, 1, 2) == [2]
        assert await told(db, t, known, 1, 2) == [2]
    assert await told(db, t, known, 1, 2) == [1, 2]


async def _put_for_another_key(db: Database, t: Tables, *numbers: int) -> None:
    rows = [replace(row(number), lane=digest16(b"other"), lane_key=b"other") for number in numbers]
    async with db.transaction() as conn:
        await failure.put(conn, t, rows)


async def test_an_answer_that_comes_late_moves_nothing_back_or_too_far(db: Database, t: Tables) -> None:
    """1. A read's snapshot is taken. 2. A row is put and another read sees it. 3. The first one's answer comes."""
    known = FailingIds()
    async with db.transaction() as conn:
        await conn.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        await conn.execute(sa.text("SELECT count(*) FROM tidegate.failure"))
        await put(db, t, 1)
        assert await told(db, t, known, 1) == [1]
        await put(db, t, 2)
        await known.read(conn, t, [HANDLER], lock=False)
    assert await told(db, t, known, 1, 2) == [1, 2]


async def test_another_server_is_believed_nothing_from_before(db: Database, t: Tables) -> None:
    """A promoted standby counts transactions from where it was: what it puts may stand before what was read."""
    known = FailingIds()
    await put(db, t, 1)
    filtered = await read(db, t, known)
    assert filtered is not None
    filtered.server = NOW
    filtered.reached = Reached((2**62, 0), frozenset())
    await put(db, t, 2)
    assert await read(db, t, known) is None, "everything is looked up once"
    assert await told(db, t, known, 1, 2) == [1, 2]


async def test_an_answer_for_a_filter_that_was_replaced_is_right_for_what_it_saw(
    db: Database, t: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A read is under way. 2. Another one finds that much was put, and a new filter is begun. 3. The first read's
    answer comes: it goes to the filter that it was for, and the new one goes on where it was.
    """
    monkeypatch.setattr(id_filter, "NEWER_MIN", 5)
    known = FailingIds()
    await put(db, t, 1)
    assert await told(db, t, known, 1) == [1]
    async with db.transaction() as rotator:
        await rotator.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": t.generation_lock})
        late = asyncio.create_task(probed(db, t, [event_id(1)], known))
        await until_blocked(db)
        await put(db, t, *range(2, 8))
        assert await told(db, t, known, *range(9)) == list(range(1, 8)), "the worn one is right for the last time"
        newer = await read(db, t, known)
    generations, found = await late
    assert list(found.failures) == [ClaimKey(HANDLER, 0, event_id(1))]
    assert generations.filters[HANDLER] not in {None, newer}
    assert await read(db, t, known) is newer


async def test_a_filter_catches_up_in_pieces_and_looks_everything_up_until_then(db: Database, t: Tables) -> None:
    await put(db, t, *range(10))
    known = FailingIds(read_max=4)
    assert [await read(db, t, known) for _ in range(2)] == [None, None]
    ids = [event_id(number) for number in (9, 10)]
    assert list((await probed(db, t, ids, known))[1].failures) == [ClaimKey(HANDLER, 0, event_id(9))]
    assert await told(db, t, known, *range(20)) == list(range(10))


async def test_it_is_caught_up_before_the_first_batch_asks(db: Database, t: Tables) -> None:
    await put(db, t, *range(10))
    known = FailingIds(read_max=4)
    await known.catch_up(Store(db, t).look, t, [HANDLER, HANDLER + 1])
    assert await told(db, t, known, 9, 10) == [9]


async def test_a_batch_leaves_the_pages_to_who_catches_up(db: Database, t: Tables) -> None:
    """It looks each id up meanwhile: a page read in each transaction would cost more than its look-ups."""
    await put(db, t, *range(10))
    known, begun, go_on = FailingIds(read_max=4), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def look() -> AsyncGenerator[AsyncConnection]:
        begun.set()
        await go_on.wait()
        async with db.transaction() as conn:
            yield conn

    catching_up = asyncio.create_task(known.catch_up(look, t, [HANDLER]))
    await begun.wait()
    for _ in range(5):
        generations, found = await probed(db, t, [event_id(9), event_id(10)], known)
        assert (generations.filters[HANDLER], list(found.failures)) == (None, [ClaimKey(HANDLER, 0, event_id(9))])
    go_on.set()
    await catching_up
    assert await told(db, t, known, 9, 10) == [9]


async def test_who_could_not_catch_up_leaves_the_pages_to_the_batches(db: Database, t: Tables) -> None:
    known = FailingIds()

    def look() -> AbstractAsyncContextManager[AsyncConnection]:
        raise ConnectionError("the database is away")

    with pytest.raises(ConnectionError):
        await known.catch_up(look, t, [HANDLER])
    await put(db, t, 9)
    assert await told(db, t, known, 9, 10) == [9]


async def test_a_transaction_that_stays_open_is_not_in_the_way(db: Database, t: Tables) -> None:
    known = FailingIds(read_max=4)
    async with db.transaction() as long:
        await failure.put(long, t, [row(100)])
        await _put_for_another_key(db, t, *range(10))
        await known.catch_up(Store(db, t).look, t, [HANDLER])
        assert await told(db, t, known, 9, 10, 100) == [9]
        await _put_for_another_key(db, t, *range(10, 20))
        await known.catch_up(Store(db, t).look, t, [HANDLER])
    assert await told(db, t, known, 19, 20, 100) == [19, 100]


@pytest.mark.parametrize("read_max", [4, 20])
async def test_rows_that_carry_a_dumps_numbers_are_known_too(db: Database, t: Tables, read_max: int) -> None:
    """They stay ahead of the server's own for a while: the pages have them, and no read since stumbles over them."""
    await put(db, t, *range(10))
    async with db.transaction() as conn:
        await conn.execute(sa.text("UPDATE tidegate.failure SET put_xid = 1000000000000 + id"))
    await _put_for_another_key(db, t, 20)
    known = FailingIds(read_max)
    await known.catch_up(Store(db, t).look, t, [HANDLER])
    assert await told(db, t, known, 9, 20, 30) == [9, 20]
    await _put_for_another_key(db, t, 30)
    assert await told(db, t, known, 9, 20, 30, 40) == [9, 20, 30]


async def test_what_is_put_while_the_pages_are_read_is_not_missed(db: Database, t: Tables) -> None:
    """1. The first page is read. 2. A row is put whose id stands in it, and one was put by a transaction that was open
    then. 3. The other pages are read.
    """
    known = FailingIds(read_max=40)
    by_id = sorted(range(100), key=event_id)
    await put(db, t, *[number for number in by_id if number not in {by_id[0], by_id[1]}])
    async with db.transaction() as early:
        await failure.put(early, t, [row(by_id[0])])
        assert await read(db, t, known) is None, "the first page"
        await _put_for_another_key(db, t, by_id[1])
    assert [await read(db, t, known) for _ in range(2)] == [None, None]
    assert await told(db, t, known, *range(120)) == list(range(100))


async def test_two_reads_of_one_page_take_it_up_once_and_neither_answers_for_the_other(db: Database, t: Tables) -> None:
    """1. Two reads see an empty table. 2. The second one's snapshot has a row more. 3. The first one's answer comes."""
    known = FailingIds()
    async with db.transaction() as rotator:
        await rotator.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": t.generation_lock})
        early = asyncio.create_task(probed(db, t, [event_id(1)], known))
        await until_blocked(db)
        await put(db, t, 1)
        assert await told(db, t, known, 1) == [1]
    generations, found = await early
    assert (generations.filters[HANDLER], list(found.failures)) == (None, [ClaimKey(HANDLER, 0, event_id(1))])
    assert await told(db, t, known, 1, 2) == [1]


async def test_more_ids_than_are_kept_are_looked_up(db: Database, t: Tables) -> None:
    await put(db, t, *range(10))
    known = FailingIds(read_max=4, kept_max=8)
    await known.catch_up(Store(db, t).look, t, [HANDLER])
    generations, found = await probed(db, t, [event_id(9), event_id(10)], known)
    assert (generations.filters[HANDLER], list(found.failures)) == (None, [ClaimKey(HANDLER, 0, event_id(9))])


@pytest.mark.parametrize("late", [1, 9])
async def test_what_was_put_at_once_is_read_by_the_index(db: Database, t: Tables, late: int) -> None:
    """Statistics that say that all rows were put by one transaction make no read a scan of the table."""
    known = FailingIds(read_max=8)
    await _put_for_another_key(db, t, *range(1_000, 3_000))
    async with db.transaction() as conn:
        await conn.execute(sa.text("ANALYZE tidegate.failure"))
    await known.catch_up(Store(db, t).look, t, [HANDLER])
    async with db.transaction() as early:
        await failure.put(early, t, [row(number) for number in range(late)])
        assert await told(db, t, known, 0, 1_000) == [1_000]
    async with db.transaction() as conn:
        await known.read(conn, t, [HANDLER], lock=False)
        scanned = await conn.scalar(
            sa.text("SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'failure'")
        )
    assert scanned == 0
    await known.catch_up(Store(db, t).look, t, [HANDLER])
    assert await told(db, t, known, *range(late + 1)) == list(range(late))


async def test_a_filter_is_read_anew_as_the_table_grows(
    db: Database, t: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_filter, "NEWER_MIN", 20)
    known = FailingIds(read_max=100)
    for upto in (3, 40, 300):
        await put(db, t, *range(upto))
        filtered = await read(db, t, known)
        while filtered is None:
            filtered = await read(db, t, known)
        assert filtered.suspects([event_id(number) for number in range(upto)]) == [event_id(n) for n in range(upto)]
        assert filtered.suspects([event_id(number) for number in range(10_000, 11_000)]) == []


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_commits_when_what_a_reader_sees_is_in_its_filter(db: Database, t: Tables, seed: int) -> None:
    """Writers that commit in any order or not at all, readers whose answers cross: no visible row is ever denied."""
    known, numbers, dice, done = FailingIds(read_max=25), iter(range(10**6)), random.Random(seed), asyncio.Event()

    async def write() -> None:
        for _ in range(12):
            async with db.transaction() as conn:
                for _ in range(dice.randrange(1, 4)):
                    number = next(numbers)
                    event = Event("v", Record("orders", 0, number, None, b"v"), event_id=event_id(number), id_text="x")
                    new = dead(Place(HANDLER, 0, 0), event, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW)
                    await failure.put(conn, t, [new])
                    await asyncio.sleep(dice.random() / 100)
                if dice.random() < 0.2:
                    await conn.rollback()

    async def check() -> int:
        answers = 0
        while not done.is_set():
            async with db.transaction() as conn:
                there = list(await conn.scalars(sa.select(t.failure.c.event_id)))
                filtered = (await known.read(conn, t, [HANDLER], lock=False))[HANDLER]
            if filtered is not None:
                assert set(filtered.suspects(there)) == set(there), "a row was denied"
                answers += 1
        return answers

    async def all_writes() -> None:
        await asyncio.gather(*[write() for _ in range(6)])
        done.set()

    _, *answers = await asyncio.gather(all_writes(), check(), check(), check())
    assert sum(answer for answer in answers if answer is not None) > 10
