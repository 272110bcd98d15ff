"""One batch through the whole inbox: fence, lock, probe, claims, failure row, letter, checkpoint."""

from __future__ import annotations

import datetime

from tidegate.inbox import checkpoint, claim, failure, fence, outbox
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failure_rows import Place, dead
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.identity import digest16
from tidegate.inbox.outcome import Dead, FailureState, Reason
from tidegate.inbox.tables import Tables

P0 = Partition("orders", 0)
NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)


async def test_a_batch_lands_whole_and_is_found_again(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        handlers = await register_handlers(conn, t, "billing", ["revenue"])
        await checkpoint.create(conn, t, [(handlers["revenue"], 1)], P0, 0, 0)
    revenue = handlers["revenue"]
    epoch = await fence.take_over(db, t, "billing", P0, "token", 5)
    ids = sorted((digest16(b"t", b"%d" % n), n) for n in range(100))
    bad_id = digest16(b"t", b"bad")
    bad = Event("x", Record("orders", 0, 100, b"k", b"v", (("h", None),)), event_id=bad_id, id_text="bad")

    async with db.transaction() as conn:
        assert await fence.hold(conn, t, "billing", {P0: epoch}) == {P0}
        row = dead(Place(revenue, 1, 0), bad, Dead(Reason.REJECTED, "no"), attempts=1, now=NOW)
        places = await failure.draw_places(conn, t, [row])
        generations = await claim.lock_generations(conn, t, [revenue])
        assert generations.failing == set()
        claimed = await claim.claim(conn, t, revenue, 1, ids, optimistic=True)
        assert claimed.new is None
        (put,) = await failure.put(conn, t, [row], places)
        assert put.created
        letter = outbox.NewOutgoing(
            id=digest16(b"o"), kind="letter", topic="orders.dlq", key=b"k", payload=b"v", headers=(("h", None),),
            correlation_id="c", consumer="billing", home=P0, failure_id=put.id,
        )  # fmt: skip
        await outbox.put(conn, t, [letter])
        assert await checkpoint.move(conn, t, [checkpoint.Move(revenue, 1, "orders", 0, 0, 101)]) == []

    async with db.transaction() as conn:
        assert (await claim.lock_generations(conn, t, [revenue])).failing == {revenue}
        probe = await claim.probe(conn, t, [(revenue, 1)], [ids[0][0], bad_id])
        assert probe.claims == {(revenue, 1, ids[0][0]): ids[0][1]}
        (found,) = probe.failures[claim.ClaimKey(revenue, 1, bad_id)]
        assert (found.failure_id, found.state, found.partition, found.offset) == (put.id, FailureState.DEAD, P0, 100)
        again = await claim.claim(conn, t, revenue, 1, ids, optimistic=True)
        assert again.new == set()
        assert again.taken == dict(ids)
        (out,) = await outbox.unpublished(conn, t, "billing", [P0], limit=10)
        assert (out.topic, out.headers, out.home) == ("orders.dlq", (("h", None),), P0)
        assert (await outbox.pending(conn, t)).count == 1
        await outbox.mark_published(conn, t, [out.id])
        assert await outbox.unpublished(conn, t, "billing", [P0], limit=10) == []
        assert await failure.put(conn, t, [row]) == [failure.Put(put.id, created=False)]
        assert (await checkpoint.read(conn, t, "billing", P0)) == {(revenue, 1): checkpoint.Checkpoint(101)}
