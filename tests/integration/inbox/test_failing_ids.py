"""While a handler has few failure rows, a claiming transaction is told their ids; with many it looks them up."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest

from tidegate.inbox import claim, failure
from tidegate.inbox.claim import FAILING_IDS_MAX, ClaimKey, Generations, Probe
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Record
from tidegate.inbox.failure_rows import NewFailure, Place, dead
from tidegate.inbox.identity import digest16
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.tables import Tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
HANDLER = 7


def event_id(number: int) -> bytes:
    return digest16(b"t", b"%d" % number)


def row(number: int) -> NewFailure:
    record = Record("orders", 0, number, b"k", b"value")
    event = Event("v", record, event_id=event_id(number), id_text=str(number))
    return dead(Place(HANDLER, 0, 0), event, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW)


async def probed(db: Database, t: Tables, ids: Sequence[bytes]) -> tuple[Generations, Probe]:
    async with db.transaction() as conn:
        generations = await claim.lock_generations(conn, t, [HANDLER])
        return generations, await claim.probe(conn, t, [(HANDLER, 0)], ids, generations, newest=False)


@pytest.mark.parametrize("rows", [1, FAILING_IDS_MAX, FAILING_IDS_MAX + 1])
async def test_a_failure_is_found_however_many_there_are(db: Database, t: Tables, rows: int) -> None:
    async with db.transaction() as conn:
        await failure.put(conn, t, [row(number) for number in range(rows)])
    generations, found = await probed(db, t, [event_id(0), event_id(rows)])
    assert generations.failing == {HANDLER}
    assert (generations.failing_ids is None) == (rows > FAILING_IDS_MAX)
    assert list(found.failures) == [ClaimKey(HANDLER, 0, event_id(0))]


async def test_a_handler_without_failures_knows_so(db: Database, t: Tables) -> None:
    assert await probed(db, t, [event_id(0)]) == (Generations(frozenset(), frozenset()), Probe())
