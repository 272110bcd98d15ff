"""Which topics something is at home in that waits."""

from __future__ import annotations

import pytest

from tidegate.inbox.database import Database
from tidegate.inbox.homes import topics_with_rows
from tidegate.inbox.tables import Tables


async def at_home(db: Database, t: Tables, handlers: tuple[int, ...] = (1, 2)) -> set[str]:
    async with db.transaction() as conn:
        return await topics_with_rows(conn, t, "billing", handlers)


async def test_nothing_waits_anywhere(db: Database, t: Tables) -> None:
    assert await at_home(db, t) == set()
    assert await at_home(db, t, ()) == set()


@pytest.mark.parametrize("published", [True, False])
async def test_what_was_sent_is_at_home_nowhere(db: Database, t: Tables, published: bool) -> None:
    async with db.transaction() as conn:
        for n, (consumer, home) in enumerate([("billing", "b"), ("billing", "a"), ("billing", "b"), ("other", "c")]):
            await conn.execute(
                t.sql("""
                    INSERT INTO {outbox} (id, kind, consumer, home_topic, home_partition, topic, headers,
                                          correlation_id, published_at)
                    VALUES (:id, 'publish', :consumer, :home, 0, 'out', '', 'c',
                            CASE WHEN :published THEN clock_timestamp() END)
                """),
                {"id": bytes([n]) * 16, "consumer": consumer, "home": home, "published": published},
            )
    assert await at_home(db, t) == (set() if published else {"a", "b"})
