"""The outbox: nothing twice, in order, each row with an owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tidegate.inbox import outbox
from tidegate.inbox.database import Database
from tidegate.inbox.event import Partition
from tidegate.inbox.identity import digest16
from tidegate.inbox.outbox import NOTHING_BLOCKED, Blocked, NewOutgoing
from tidegate.inbox.tables import Tables

P0, P5 = Partition("orders", 0), Partition("orders", 5)


def row(n: int, *, home: Partition | None = P0, topic: str = "out", payload: bytes | None = b"v") -> NewOutgoing:
    return NewOutgoing(
        id=digest16(b"out", b"%d" % n),
        kind="publish",
        topic=topic,
        key=b"%d" % n,
        payload=payload,
        headers=(("n", b"%d" % n), ("null", None)),
        correlation_id="c\0",
        consumer=None if home is None else "billing",
        home=home,
    )


async def put(db: Database, t: Tables, *rows: NewOutgoing) -> None:
    async with db.transaction() as conn:
        await outbox.put(conn, t, rows)


async def waiting(
    db: Database,
    t: Tables,
    homes: Sequence[Partition] = (P0,),
    blocked: Blocked = NOTHING_BLOCKED,
    count: int | None = None,
    limit: int = 100,
) -> list[bytes | None]:
    async with db.transaction() as conn:
        counts = {} if count is None else {"orders": count}
        rows = await outbox.unpublished(conn, t, "billing", homes, counts, limit=limit, blocked=blocked)
    return [r.key for r in rows]


async def test_rows_come_in_the_order_they_were_put_and_a_repeat_puts_nothing(db: Database, t: Tables) -> None:
    await put(db, t, row(3), row(1), row(2))
    await put(db, t, row(1), row(4), row(4))
    assert await waiting(db, t) == [b"3", b"1", b"2", b"4"]


async def test_a_tombstone_and_null_headers_stay_what_they_are(db: Database, t: Tables) -> None:
    await put(db, t, row(1, payload=None))
    async with db.transaction() as conn:
        (out,) = await outbox.unpublished(conn, t, "billing", [P0], limit=1)
    assert (out.payload, out.headers, out.kind, out.home) == (None, (("n", b"1"), ("null", None)), "publish", P0)


async def test_only_the_owner_of_a_rows_home_gets_it(db: Database, t: Tables) -> None:
    await put(db, t, row(1), row(2, home=P5), row(3, home=None))
    assert await waiting(db, t, [P0]) == [b"1"]
    assert await waiting(db, t, [P5]) == [b"2"]
    assert await waiting(db, t, []) == []
    async with db.transaction() as conn:
        assert await outbox.unpublished(conn, t, "another", [P0, P5], limit=9) == []


async def test_a_home_beyond_the_topics_partitions_has_an_owner_too(db: Database, t: Tables) -> None:
    await put(db, t, row(2, home=P5))
    assert await waiting(db, t, [Partition("orders", 1)], count=4) == [b"2"]


async def test_a_blocked_topic_never_stops_the_others(db: Database, t: Tables) -> None:
    await put(db, t, row(1, topic="forbidden"), row(2))
    assert await waiting(db, t, blocked=Blocked(["forbidden"])) == [b"2"]


async def test_a_blocked_key_and_a_blocked_row_take_nobodys_place(db: Database, t: Tables) -> None:
    """They are left out by the database, so that as many others come as may."""
    await put(db, t, row(1), row(2), replace(row(3), key=None), replace(row(4), key=None), row(1, topic="other"))
    await put(db, t, replace(row(5), key=b"1"), replace(row(6, topic="other"), key=b"1"), row(7))
    blocked = Blocked(keys=[("out", b"1"), ("out", b"2")], ids=[row(3).id])
    assert await waiting(db, t, blocked=blocked, limit=2) == [None, b"1"]
    assert await waiting(db, t, blocked=blocked) == [None, b"1", b"7"]


async def test_what_is_published_is_gone_from_the_queue_and_kept_in_the_table(db: Database, t: Tables) -> None:
    await put(db, t, row(1), row(2))
    async with db.transaction() as conn:
        assert (await outbox.pending(conn, t, "billing")).count == 2
        await outbox.mark_published(conn, t, [row(1).id])
        pending = await outbox.pending(conn, t)
        assert pending.count == 1
        assert 0 <= pending.oldest_age_s < 60
        assert (await outbox.pending(conn, t, "another")).count == 0
        assert (await conn.execute(sa.text("SELECT count(*) FROM tidegate.outbox"))).scalar_one() == 2
    await put(db, t, row(1))
    assert await waiting(db, t) == [b"2"]


async def test_a_home_without_its_consumer_is_refused(db: Database, t: Tables) -> None:
    await put(db, t, row(1))
    with pytest.raises(exc.IntegrityError):
        async with db.transaction() as conn:
            await conn.execute(sa.update(t.outbox).values(consumer=None))
