"""A transaction that reads which ids fail, and then puts rows itself: the next read has to see them."""

from __future__ import annotations

import datetime

import sqlalchemy as sa

from tidegate.inbox import claim, failure
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Record
from tidegate.inbox.failing import FailingIds
from tidegate.inbox.failure_rows import Place, dead
from tidegate.inbox.identity import digest16
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.tables import Tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
HANDLER = 7


async def test_what_a_reader_puts_itself_is_not_missed_by_its_next_read(db: Database, t: Tables) -> None:
    """Found here: a batch writes before it reads (its fence, its lanes), so it has its number by then.

    1. The batch's transaction gets its number. 2. Another one gets a higher number and commits: from there on a
    snapshot's end is above the batch's own number, which a snapshot does not count among those that are open. 3. The
    batch reads. 4. It puts a row and commits. 5. The next read began behind that number.
    """
    event_id = digest16(b"t", b"1")
    event = Event("v", Record("orders", 0, 1, b"k", b"value"), event_id=event_id, id_text="1")
    row = dead(Place(HANDLER, 0, 0), event, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW)
    known = FailingIds()
    async with db.transaction() as batch:
        await batch.execute(sa.text("SELECT pg_current_xact_id()"))
        async with db.transaction() as other:
            await other.execute(sa.text("SELECT pg_current_xact_id()"))
        await claim.lock_generations(batch, t, [HANDLER], known)
        await failure.put(batch, t, [row])
    async with db.transaction() as conn:
        generations = await claim.lock_generations(conn, t, [HANDLER], known)
    assert generations.suspects(HANDLER, [event_id]) == [event_id]
