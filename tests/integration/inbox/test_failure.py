"""Failure rows: one for each position, in the order of their lane, through legal states only."""

from __future__ import annotations

import datetime
import random
from collections.abc import Collection

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tidegate.inbox import failure, finding
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Headers, Partition, Record
from tidegate.inbox.failure_rows import (
    Failure,
    NewFailure,
    Place,
    Verdict,
    dead,
    dead_record,
    linked,
    queued,
    unknown,
)
from tidegate.inbox.finding import Filters
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.identity import digest16, position_id16
from tidegate.inbox.outcome import Dead, FailureState, Reason
from tidegate.inbox.states import Act
from tidegate.inbox.tables import Tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(hours=1)
H = 7
PLACE = Place(H, 0, 0)
WHY = Verdict("rejected", "no")


def event(offset: int, *, partition: int = 0, key: bytes | None = b"k", topic: str = "orders") -> Event[str]:
    record = Record(topic, partition, offset, key, b"value", (("h", b"1"), ("h", None)), 1234, 1)
    return Event("v", record, type="Order", event_id=digest16(b"t", b"%d" % offset), id_text=f"id-{offset}")


def due(offset: int, *, at: datetime.datetime = NOW, partition: int = 0, key: bytes | None = b"k") -> NewFailure:
    return queued(PLACE, event(offset, partition=partition, key=key), WHY, due=at, attempts=1, now=NOW)


async def put(db: Database, t: Tables, *rows: NewFailure) -> list[int]:
    async with db.transaction() as conn:
        return [put.id for put in await failure.put(conn, t, rows)]


async def get(db: Database, t: Tables, failure_id: int) -> Failure | None:
    async with db.transaction() as conn:
        return await finding.get(conn, t, failure_id)


async def test_the_records_bytes_come_back_exactly(db: Database, t: Tables) -> None:
    headers: Headers = (("h", b"1"), ("h", None), ("\udcff\ud800", b""), ("", b"\0\xff"))
    record = Record("orders", 3, 2**40, b"", None, headers, -5, 2)
    (failure_id,) = await put(
        db, t, dead(PLACE, Event(None, record, id_text="x"), Dead(Reason.TOMBSTONE, "why"), attempts=1, now=NOW)
    )
    row = await get(db, t, failure_id)
    assert row is not None
    back = row.record
    assert (back.topic, back.partition, back.offset, back.key, back.value) == ("orders", 3, 2**40, b"", None)
    assert (back.headers, back.timestamp_ms, back.timestamp_type) == (headers, -5, 2)
    assert (row.state, row.dead_reason, row.seq, row.row_version) == (FailureState.DEAD, Reason.TOMBSTONE, 1, 1)


async def test_a_redelivered_position_finds_its_row_and_another_incarnation_or_version_does_not(
    db: Database, t: Tables
) -> None:
    (first,) = await put(db, t, due(1))
    async with db.transaction() as conn:
        again = await failure.put(conn, t, [due(2), due(1), due(2)])
    assert [p.created for p in again] == [True, False, False]
    assert again[1].id == first
    assert again[0].id == again[2].id
    for place in (Place(H, 0, 1), Place(H, 1, 0), Place(H + 1, 0, 0)):
        async with db.transaction() as conn:
            row = queued(place, event(1), WHY, due=NOW, attempts=1, now=NOW)
            assert (await failure.put(conn, t, [row]))[0].created


async def test_rows_of_a_lane_are_in_the_order_they_were_put(db: Database, t: Tables) -> None:
    ids = [*await put(db, t, due(5), due(6, key=b"other"), due(7)), *await put(db, t, due(3), due(4))]
    seqs = [row.seq for failure_id in ids if (row := await get(db, t, failure_id)) is not None]
    assert seqs == [1, 1, 2, 3, 4]


async def test_records_without_a_key_are_lanes_of_their_own(db: Database, t: Tables) -> None:
    await put(db, t, due(1, key=None), due(2, key=None))
    async with db.transaction() as conn:
        picked = await failure.pick(conn, t, [H], [Partition("orders", 0)], {"orders": 4}, NOW, 10)
        lanes = await conn.execute(sa.text("SELECT count(*) FROM tidegate.parked_key"))
        assert lanes.scalar_one() == 0
    assert len(picked) == 2


# ---------------------------------------------------------------------------------------------------------- pick-up


async def pick(db: Database, t: Tables, *homes: int, counts: int = 4, busy: Collection[int] = ()) -> list[int]:
    async with db.transaction() as conn:
        places = [Partition("orders", home) for home in homes]
        rows = await failure.pick(conn, t, [H], places, {"orders": counts}, NOW, 10, busy=busy)
    return [row.record_offset for row in rows]


async def test_only_the_first_of_each_lane_is_taken_up(db: Database, t: Tables) -> None:
    first, *_ = await put(db, t, due(1), due(2), due(3, key=b"other"))
    assert await pick(db, t, 0) == [1, 3]
    assert await pick(db, t, 0, busy=[first]) == [3], "the one in work still holds its lane"
    async with db.transaction() as conn:
        assert await failure.complete(conn, t, [(first, 1)]) == {first}
    assert sorted(await pick(db, t, 0)) == [2, 3]


async def test_a_lane_waits_for_its_first_even_if_that_is_not_due_or_at_home_elsewhere(db: Database, t: Tables) -> None:
    await put(db, t, due(1, at=LATER), due(2), due(3, key=b"b", partition=1), due(4, key=b"b", partition=0))
    assert await pick(db, t, 0) == []
    assert await pick(db, t, 1) == [3]


async def test_every_row_has_an_owner_after_the_topic_was_made_anew_with_fewer_partitions(
    db: Database, t: Tables
) -> None:
    await put(db, t, due(1, partition=7))
    assert await pick(db, t, 0, 1, 2, 3, counts=8) == []
    assert await pick(db, t, 3, counts=4) == [1]


async def test_a_row_that_is_alone_has_an_owner_too_when_its_partition_is_gone(db: Database, t: Tables) -> None:
    await put(db, t, due(1, partition=7, key=None))
    assert await pick(db, t, 0, 1, 2, 3, counts=8) == []
    assert await pick(db, t, 3, counts=4) == [1]


async def test_each_home_has_its_share_of_what_is_picked(db: Database, t: Tables) -> None:
    """Not what is due first of all; and one home alone may have all of it."""
    early = [due(n, at=NOW - datetime.timedelta(hours=1), key=None) for n in range(1_000)]
    await put(db, t, *early, *[due(n, partition=1, key=None) for n in range(600)])
    async with db.transaction() as conn:
        both = [Partition("orders", 0), Partition("orders", 1)]
        rows = await failure.pick(conn, t, [H], both, {}, NOW, 1_000)
        assert [row.partition for row in rows] == [0] * 500 + [1] * 500
        assert len(await failure.pick(conn, t, [H], both[:1], {}, NOW, 1_000)) == 1_000
        assert len(await failure.pick(conn, t, [H], both, {}, NOW, 1_000, bytes_max=100)) < 10


async def test_a_handler_has_no_more_rows_picked_than_it_has_room(db: Database, t: Tables) -> None:
    """However many of it are due before those of others; a row in work takes no room from the others of its handler."""
    other, third = Place(H + 1, 0, 0), Place(H + 2, 0, 0)
    early, late = NOW - datetime.timedelta(hours=1), NOW
    ids = await put(
        db, t,
        *[due(n, at=early, partition=n % 2, key=b"%d" % n if n % 3 else None) for n in range(60)],
        *[queued(place, event(n), WHY, due=late, attempts=1, now=NOW) for place in (other, third) for n in (1, 2)],
    )  # fmt: skip
    both, handlers = [Partition("orders", 0), Partition("orders", 1)], [H, H + 1, H + 2]

    async def picked(limit: int, rooms: dict[int, int], *busy: int) -> list[int]:
        async with db.transaction() as conn:
            rows = await failure.pick(conn, t, handlers, both, {}, NOW, limit, busy=busy, rooms=rooms)
        assert not {row.id for row in rows} & set(busy)
        return [row.handler for row in rows]

    assert await picked(100, {H: 3, H + 1: 3}) == [H] * 3 + [H + 1, H + 2]
    assert await picked(100, {H: 3, H + 1: 3}, *ids[:10]) == [H] * 3 + [H + 1, H + 2]
    assert await picked(100, {H: 3}, ids[60]) == [H] * 3 + [H + 2], "its lane has one in work"
    assert await picked(4, {H: 3}) == [H] * 3 + [H + 1]
    assert await picked(100, {}) == [H] * 60 + [H + 1, H + 2]


async def test_a_row_that_is_written_anew_stays_on_its_page(db: Database, t: Tables) -> None:
    """Pages are filled by half: what is on one page before and behind a change is half the log."""
    why = Dead(Reason.REJECTED, "no")
    await put(db, t, *[dead(PLACE, event(n), why, attempts=1, now=NOW, alone=True) for n in range(60)])

    async def pages() -> list[int]:
        async with db.transaction() as conn:
            found = await conn.execute(t.sql("SELECT CAST((CAST(CAST(ctid AS text) AS point))[0] AS int)"
                                             "  FROM {failure} ORDER BY id"))  # fmt: skip
            return list(found.scalars())

    before = await pages()
    async with db.transaction() as conn:
        assert len(await failure.requeue(conn, t, [(number, 1) for number in range(1, 61)], NOW)) == 60
    assert sum(old == new for old, new in zip(before, await pages(), strict=True)) > 50


async def test_rows_of_handlers_that_the_app_no_longer_has_are_left_alone(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        await failure.put(conn, t, [queued(Place(H + 1, 0, 0), event(1), WHY, due=NOW, attempts=1, now=NOW)])
    assert await pick(db, t, 0) == []


# -------------------------------------------------------------------------------------------------------- transitions


async def test_a_dead_row_is_replayed_and_dies_again(db: Database, t: Tables) -> None:
    (failure_id,) = await put(db, t, dead(PLACE, event(1), Dead(Reason.REJECTED, "no"), attempts=3, now=NOW))
    async with db.transaction() as conn:
        assert await failure.requeue(conn, t, [(failure_id, 9)], NOW) == frozenset()
        assert await failure.requeue(conn, t, [(failure_id, 1)], NOW) == {failure_id}
    row = await get(db, t, failure_id)
    assert row is not None
    assert (row.state, row.due, row.replay_count, row.row_version) == (FailureState.QUEUED, NOW, 1, 2)
    async with db.transaction() as conn:
        why = Verdict("exhausted", "bad \0 text \ud800", "Boom", "abc")
        assert not await failure.bury(conn, t, (failure_id, 1), why, attempts=4, now=LATER)
        assert await failure.bury(conn, t, (failure_id, 2), why, attempts=4, now=LATER)
    row = await get(db, t, failure_id)
    assert row is not None
    assert (row.state, row.due, row.reason, row.attempts) == (FailureState.DEAD, None, "exhausted", 4)
    assert (row.message, row.first_failed_at, row.last_failed_at) == ("bad � text �", NOW, LATER)


async def test_a_queued_row_is_postponed_reviewed_and_resolved(db: Database, t: Tables) -> None:
    (failure_id,) = await put(db, t, due(1))
    async with db.transaction() as conn:
        assert await failure.postpone(conn, t, (failure_id, 1), WHY, due=LATER, attempts=2, now=NOW)
        assert await failure.review(conn, t, (failure_id, 2), WHY, attempts=2, now=NOW)
        assert await failure.requeue(conn, t, [(failure_id, 3)], NOW) == frozenset(), "replay is for the dead"
        assert await failure.requeue(conn, t, [(failure_id, 3)], NOW, Act.RESOLVE) == {failure_id}


async def test_a_discarded_row_stays_and_nothing_else_is_done_to_it(db: Database, t: Tables) -> None:
    (failure_id,) = await put(db, t, dead(PLACE, event(1), Dead(Reason.REJECTED, "no"), attempts=3, now=NOW))
    async with db.transaction() as conn:
        assert await failure.discard(conn, t, [(failure_id, 1)]) == {failure_id}
        assert await failure.requeue(conn, t, [(failure_id, 2)], NOW) == frozenset()
        assert await failure.complete(conn, t, [(failure_id, 2)]) == frozenset()
    row = await get(db, t, failure_id)
    assert row is not None
    assert row.state is FailureState.DISCARDED


async def test_linked_rows_end_with_their_original(db: Database, t: Tables) -> None:
    (original,) = await put(db, t, due(1))
    async with db.transaction() as conn:
        (link,) = await failure.link(conn, t, [linked(PLACE, event(9, partition=2), original, now=NOW)])
        (none,) = await failure.link(conn, t, [linked(PLACE, event(10, partition=2), 999, now=NOW)])
    assert none is None
    assert link is not None
    row = await get(db, t, link.id)
    assert row is not None
    assert (row.state, row.duplicate_of) == (FailureState.LINKED, original)
    async with db.transaction() as conn:
        assert await failure.complete(conn, t, [(link.id, 1)]) == frozenset(), "never by itself"
        assert await failure.complete(conn, t, [(original, 1)]) == {original}
    assert await get(db, t, link.id) is None


ILLEGAL = {
    "queued without a due time": {"due": None},
    "due without being queued": {"state": "dead"},
    "a state that is none": {"state": "parked", "due": None},
    "linked to nothing": {"state": "linked", "due": None},
    "no reason": {"reason": ""},
    "an event without an offset": {"record_offset": -1},
    "an id that is no hash": {"event_id": b"short"},
    "ended before it began": {"last_failed_at": NOW - datetime.timedelta(days=1)},
}


@pytest.mark.parametrize("what", ILLEGAL)
async def test_the_database_refuses_an_illegal_row(db: Database, t: Tables, what: str) -> None:
    (failure_id,) = await put(db, t, due(1))
    with pytest.raises(exc.IntegrityError):
        async with db.transaction() as conn:
            await conn.execute(sa.update(t.failure).where(t.failure.c.id == failure_id).values(**ILLEGAL[what]))


# --------------------------------------------------------------------------------------------- bad text, long ids


async def test_a_failure_can_always_be_written_whatever_its_texts_are(db: Database, t: Tables) -> None:
    """NUL and lone surrogates in ids, types and exception texts are replaced where we write, and only there.

    Case: B43
    Parts: real (PostgreSQL)
    Red when: inbox/safe_text.py does not replace NUL
    """
    record = Record("orders", 0, 1, b"k\0", b"a\0b", (("h\0", b"\0"), ("\ud800", None)))
    bad = Event("v", record, type="T\0", id_text="id\0\ud800", tenant="t\0", brand="\udfff", correlation_id="c\0")
    verdict = Dead(Reason.REJECTED, "Boom \0 \ud800 \ud83d\ude00 \\u0000", "E\0", "d\0")
    (failure_id,) = await put(db, t, dead(PLACE, bad, verdict, attempts=1, now=NOW))
    row = await get(db, t, failure_id)
    assert row is not None
    assert row.message == "Boom � � \U0001f600 \\u0000"
    assert (row.id_text, row.type, row.tenant, row.brand, row.correlation_id) == ("id��", "T�", "t�", "�", "c�")
    assert (row.key, row.value, row.record.headers) == (b"k\0", b"a\0b", record.headers), "bytes stay what they are"
    async with db.transaction() as conn:
        assert [f.id for f in await finding.find(conn, t, Filters(correlation_id="c\0"))] == [failure_id]


@pytest.mark.parametrize("long_id", [random.Random(45).randbytes(3000).hex(), "k" * 3000], ids=["random", "repeated"])
async def test_an_id_of_any_length_is_one_key(db: Database, t: Tables, long_id: str) -> None:
    """Keys are hashes; the readable copy is cut, also where it stands in an index of its own.

    Case: B45
    Parts: real (PostgreSQL)
    Red when: inbox/failure_rows.py writes `event.operation_id` instead of `indexed_text(event.operation_id)`
    """
    record = Record("orders", 0, 2**33, b"k", b"v")
    new = dead(
        PLACE,
        Event("v", record, event_id=digest16(b"t", long_id.encode()), id_text=long_id),
        Dead(Reason.REJECTED, "no"),
        attempts=2**31,
        now=NOW,
    )
    (failure_id,) = await put(db, t, new)
    async with db.transaction() as conn:
        assert not (await failure.put(conn, t, [new]))[0].created
        found = await finding.find(conn, t, Filters(operation_id=long_id))
    assert [(f.id, f.record_offset, f.attempts) for f in found] == [(failure_id, 2**33, 2**31)]


async def test_a_record_that_never_became_an_event_is_known_by_its_position(db: Database, t: Tables) -> None:
    record = Record("orders", 1, 5, b"lane", b"\xff")
    (failure_id,) = await put(db, t, dead_record(Place(H, 0, 3), record, Dead(Reason.UNDECODABLE, "x"), now=NOW))
    row = await get(db, t, failure_id)
    assert row is not None
    assert row.event_id == position_id16("orders", 3, 1, 5)
    assert row.id_text == "orders/1@5"


async def test_rows_are_found_by_what_is_known_of_them(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        handlers = await register_handlers(conn, t, "billing", ["a", "b"])
        rows = [
            dead(Place(handlers[name], 0, 0), event(n), Dead(Reason.REJECTED, "no", "Boom"), attempts=1, now=NOW)
            for n, name in enumerate("aab")
        ]
        ids = [put.id for put in await failure.put(conn, t, rows)]
        question = unknown(Place(handlers["b"], 0, 0), event(9), Verdict("conflict"), attempts=1, now=LATER)
        (asked,) = await failure.put(conn, t, [question])

    async def find(wanted: Filters) -> list[int]:
        async with db.transaction() as conn:
            found = [f.id for f in await finding.find(conn, t, wanted)]
            assert await finding.count(conn, t, wanted) == len(found)
        return found

    assert await find(Filters()) == [*ids, asked.id]
    assert await find(Filters(consumer="billing", handler="a")) == ids[:2]
    assert await find(Filters(consumer="other")) == []
    assert await find(Filters(states=[FailureState.UNKNOWN])) == [asked.id]
    assert await find(Filters(reason="rejected", exception_type="Boom", topic="orders")) == ids
    assert await find(Filters(event_id=event(1).event_id)) == ids[1:2]
    assert await find(Filters(id_text="id-2")) == ids[2:]
    assert await find(Filters(since=LATER)) == [asked.id]
    assert await find(Filters(until=LATER)) == ids
    async with db.transaction() as conn:
        assert [f.id for f in await finding.find(conn, t, Filters(), after=ids[0], limit=2)] == ids[1:]
