"""The statements of a group of dead events: what the long way writes, all of it or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import pytest

from tests.support.locks import until_blocked
from tidegate.dlq.burial import Burial, Buried, letters_of
from tidegate.dlq.letter import LETTER_BYTES_MIN
from tidegate.inbox import checkpoint, claim, dead_rows, failure, fence, outbox
from tidegate.inbox.checkpoint import Move
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.database import Database
from tidegate.inbox.dead_rows import Dead, NotAsExpectedError
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failing import FailingIds
from tidegate.inbox.failure_rows import Place
from tidegate.inbox.identity import digest16
from tidegate.inbox.outcome import Dead as Verdict
from tidegate.inbox.outcome import Reason
from tidegate.inbox.points import Writes
from tidegate.inbox.quick import QuickStore
from tidegate.inbox.record_bytes import decode_headers
from tidegate.inbox.tables import Tables

H, CONSUMER, TOPIC = 7, "billing", "shop.orders"
P0, P1 = Partition(TOPIC, 0), Partition(TOPIC, 1)
BURIAL = Burial(CONSUMER, ManualClock(1_735_689_600.0))


def event(n: int) -> Event[str]:
    headers = (("event-id", b"%d" % n), ("nothing", None))
    record = Record(
        TOPIC, n % 2, n, None if n % 5 == 4 else b"k%d" % (n % 3), None if n == 3 else b"\0v%d" % n, headers
    )
    return Event("v", record, event_id=digest16(b"t", b"%d" % n), id_text=f"e{n}", payload_hash=n, tenant="acme")


def dead(*numbers: int) -> list[Dead]:
    """Some without a key, one without a value."""
    verdict = Verdict(Reason.REJECTED, "no", "ValueError", "0123456789abcdef")
    return [BURIAL.bury(Place(H, 0, 0), "charge", event(n), verdict, alone=event(n).key is None) for n in numbers]


@dataclass(frozen=True, slots=True)
class Desk:
    """Writes groups of one handler for the two partitions, which start at 10."""

    db: Database
    t: Tables
    store: QuickStore
    epochs: dict[Partition, int]
    known: FailingIds

    async def put(self, rows: Sequence[Dead], *moves: Move) -> bool:
        async with self.store.transaction(Writes.GROUP) as statements:
            return await dead_rows.put(statements, self.t, CONSUMER, self.epochs, self.known, rows, moves)

    async def put_the_long_way(self, rows: Sequence[Dead]) -> None:
        async with self.db.transaction() as conn:
            places = await failure.draw_places(conn, self.t, [row for row, _ in rows])
            puts = await failure.put(conn, self.t, [row for row, _ in rows], places)
            await outbox.put(conn, self.t, letters_of(puts, [Buried(*pair) for pair in rows]))

    async def read(self, text: LiteralString) -> list[tuple[Any, ...]]:
        async with self.db.transaction() as conn:
            rows = await conn.execute(self.t.sql(text))
            return [tuple(row) for row in rows]

    async def written(self) -> list[list[tuple[Any, ...]]]:
        """All that stands in the tables, but for numbers and times that are given out."""
        return [
            await self.read(
                "SELECT (to_jsonb(f) - 'id' - 'put_xid')::text FROM {failure} f ORDER BY partition, record_offset"
            ),
            await self.read(
                "SELECT (to_jsonb(o) - 'seq' - 'failure_id' - 'created_at')::text, f.record_offset FROM {outbox} o"
                " JOIN {failure} f ON f.id = o.failure_id ORDER BY o.seq"
            ),
            await self.read("SELECT to_jsonb(p)::text FROM {parked_key} p ORDER BY key_hash"),
        ]

    async def is_empty(self) -> bool:
        return await self.written() == [[], [], []] and await self.points() == [10, 10]

    async def points(self) -> list[int]:
        return [row[0] for row in await self.read("SELECT next_offset FROM {checkpoint} ORDER BY partition")]


@pytest.fixture
async def desk(db: Database, t: Tables) -> AsyncIterator[Desk]:
    epochs = {p: await fence.take_over(db, t, CONSUMER, p, "token", 5.0) for p in (P0, P1)}
    async with db.transaction() as conn:
        for partition in epochs:
            await checkpoint.create(conn, t, [(H, 0)], partition, 0, 10)
    known, store = FailingIds(), QuickStore(db)
    await known.catch_up(db.transaction, t, [H])
    try:
        yield Desk(db, t, store, epochs, known)
    finally:
        await store.close()


def move(partition: Partition, old: int, new: int) -> Move:
    return Move(H, 0, partition.topic, partition.number, old, new)


async def test_what_is_written_is_what_the_long_way_writes(desk: Desk) -> None:
    """Two groups, some of whose lanes had a failure before."""
    await desk.put_the_long_way(dead(20))
    await desk.put(dead(*range(8)))
    await desk.put(dead(*range(8, 12)))
    quick = await desk.written()
    await desk.read(
        "WITH f AS (DELETE FROM {failure}), o AS (DELETE FROM {outbox}) DELETE FROM {parked_key} RETURNING 1"
    )
    for numbers in ([20], range(8), range(8, 12)):
        await desk.put_the_long_way(dead(*numbers))
    assert quick == await desk.written()
    assert [len(rows) for rows in quick] == [13, 13, 3]


async def test_what_a_letter_left_out_is_left_out_of_the_outbox_alone(desk: Desk) -> None:
    """A value that is too large for the topic; a key beside it; the same text as the id or another one."""
    limited = Burial(CONSUMER, ManualClock(1_735_689_600.0), {f"{TOPIC}.{CONSUMER}.dlq": LETTER_BYTES_MIN})
    verdict = Verdict(Reason.UNDECODABLE, "no", "ValueError", "0123456789abcdef")
    records = [Record(TOPIC, 0, n, b"k" * length, b"v" * LETTER_BYTES_MIN) for n, length in ((1, 1), (2, 0))]
    rows: list[Dead] = [
        *[limited.reject(Place(H, 0, 0), record, verdict) for record in records],
        *[limited.bury(Place(H, 0, 0), "charge", _correlated(event(n)), verdict, attempts=n) for n in (4, 5)],
        *dead(6),
    ]
    await desk.put(rows)
    quick = await desk.written()
    await desk.read(
        "WITH f AS (DELETE FROM {failure}), o AS (DELETE FROM {outbox}) DELETE FROM {parked_key} RETURNING 1"
    )
    await desk.put_the_long_way(rows)
    assert quick == await desk.written()
    assert await desk.read("SELECT count(*) FROM {outbox} WHERE payload IS NULL AND key IS NOT NULL") == [(2,)]


async def test_a_letter_of_another_value_goes_the_long_way(desk: Desk) -> None:
    ((row, letter),) = dead(0)
    with pytest.raises(NotAsExpectedError):
        await desk.put([*dead(2), (row, replace(letter, payload=b"other"))])
    assert await desk.is_empty()


def _correlated(event: Event[str]) -> Event[str]:
    headers = (*event.headers, ("correlation-id", b"request-7"))
    record = Record(event.topic, event.partition, event.offset, event.key, event.record.value, headers)
    return Event("v", record, event_id=event.event_id, id_text=event.id_text, payload_hash=-event.payload_hash)


async def test_its_checkpoints_are_moved(desk: Desk) -> None:
    await desk.put(dead(0, 1), move(P0, 10, 40), move(P1, 10, 30))
    assert await desk.points() == [40, 30]


async def test_places_in_a_lane_go_on_where_the_last_group_stopped(desk: Desk) -> None:
    await desk.put(dead(0, 3))
    await desk.put(dead(6))
    assert await desk.read("SELECT seq FROM {failure} ORDER BY record_offset") == [(1,), (2,), (3,)]
    assert await desk.read("SELECT next_seq, waiting FROM {parked_key}") == [(4, 0)]


@pytest.mark.parametrize("lost", ["epoch", "wanted"])
async def test_nothing_is_written_unless_every_partition_is_ours(desk: Desk, lost: str) -> None:
    async with desk.db.transaction() as conn:
        if lost == "wanted":
            await fence.want(conn, desk.t, CONSUMER, P1, "other")
    if lost == "epoch":
        await fence.take_over(desk.db, desk.t, CONSUMER, P1, "other", 5.0)
    with pytest.raises(NotAsExpectedError):
        await desk.put(dead(0, 1), move(P0, 10, 40))
    assert await desk.is_empty()


async def test_nothing_is_written_of_a_group_in_which_an_id_was_handled(desk: Desk) -> None:
    async with desk.db.transaction() as conn:
        await claim.claim(conn, desk.t, H, 0, [(event(1).event_id, 1)], optimistic=False)
    with pytest.raises(NotAsExpectedError):
        await desk.put(dead(0, 1), move(P0, 10, 40))
    assert await desk.is_empty()


async def test_nothing_is_written_of_a_group_in_which_an_id_failed_before(desk: Desk) -> None:
    """Whether its row was put by this process, or by somebody of whom the filter has not read."""
    await desk.put(dead(0))
    before = await desk.written()
    with pytest.raises(NotAsExpectedError):
        await desk.put(dead(0, 1))
    await desk.put_the_long_way(dead(2))
    with pytest.raises(NotAsExpectedError):
        await desk.put(dead(2, 5), move(P0, 10, 40))
    assert (await desk.written())[0][:1] == before[0]
    assert await desk.points() == [10, 10]
    await desk.put(dead(1, 5))


async def test_nothing_is_written_before_the_filter_has_caught_up(desk: Desk) -> None:
    unread = Desk(desk.db, desk.t, desk.store, desk.epochs, FailingIds())
    with pytest.raises(NotAsExpectedError):
        await unread.put(dead(0))
    assert await desk.is_empty()


async def test_a_checkpoint_that_stands_elsewhere_undoes_the_group(desk: Desk) -> None:
    with pytest.raises(NotAsExpectedError):
        await desk.put(dead(0, 1), move(P0, 9, 40))
    assert await desk.is_empty()


async def test_a_position_that_is_there_already_undoes_the_group(desk: Desk) -> None:
    """Under another id: no filter tells of it."""
    ((row, letter),) = dead(2)
    await desk.put_the_long_way(dead(2))
    await desk.read("UPDATE {failure} SET event_id = decode(md5('other'), 'hex') RETURNING 1")
    with pytest.raises(NotAsExpectedError):
        await desk.put([(row, letter), *dead(1)])
    assert await desk.read("SELECT count(*) FROM {failure}") == [(1,)]


async def test_an_open_group_holds_a_takeover_and_its_lanes(desk: Desk) -> None:
    async with desk.store.transaction(Writes.GROUP) as statements:
        await dead_rows.put(statements, desk.t, CONSUMER, desk.epochs, desk.known, dead(0, 1), [])
        taking = asyncio.create_task(fence.take_over(desk.db, desk.t, CONSUMER, P1, "other", 30.0))
        await until_blocked(desk.db)
        async with desk.db.transaction() as conn:
            lock = {"key": desk.t.generation_lock}
            assert await conn.scalar(desk.t.sql("SELECT pg_try_advisory_xact_lock(:key)"), lock) is False
            free = await conn.execute(desk.t.sql("SELECT 1 FROM {parked_key} FOR UPDATE SKIP LOCKED"))
            assert free.all() == []
        assert not taking.done()
    assert await taking == desk.epochs[P1] + 1


async def test_a_letter_that_stood_there_before_stays_as_it_was_and_is_not_told_to_be_new(desk: Desk) -> None:
    """Its row was deleted, and it was not: whoever sends it has to read what it says."""
    assert await desk.put(dead(0)), "a new one"
    (row, letter) = dead(1)[0]
    async with desk.db.transaction() as conn:
        await outbox.put(conn, desk.t, [replace(letter, headers=(("as-it", b"was"),))])
    assert not await desk.put([(row, letter)])
    (headers,) = await desk.read("SELECT headers FROM {outbox} ORDER BY seq DESC LIMIT 1")
    assert decode_headers(headers[0]) == (("as-it", b"was"),)
