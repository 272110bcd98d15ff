"""Consumers that ever started: whose they are, and what their app says of its effects to those who have no app."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .effect_rules import Effect
from .tables import Tables


async def first_start(conn: AsyncConnection, t: Tables, consumer: str) -> bool:
    """Note that the consumer starts; true for the one caller who was first."""
    statement = insert(t.consumer).values(name=consumer).on_conflict_do_nothing().returning(t.consumer.c.name)
    return await conn.scalar(statement) is not None


async def ever_started(conn: AsyncConnection, t: Tables, consumer: str) -> bool:
    """Whether it ever did; nothing is noted."""
    return await conn.scalar(sa.select(t.consumer.c.name).where(t.consumer.c.name == consumer)) is not None


async def declare_needs(conn: AsyncConnection, t: Tables, consumer: str, effects: Iterable[Effect]) -> None:
    """What a person has to give who says of a call of these effects that it was done; replaces what was declared."""
    needs = {effect.name: sorted(effect.done_needs) for effect in effects if effect.done_needs}
    c = t.consumer.c
    await conn.execute(sa.update(t.consumer).where(c.name == consumer, c.done_needs != needs).values(done_needs=needs))


async def belongs_to(conn: AsyncConnection, t: Tables, consumer: str, app: str) -> None:
    """The app that starts it has it; one that had it before does not miss it any more."""
    c = t.consumer.c
    await conn.execute(sa.update(t.consumer).where(c.name == consumer, c.app.is_distinct_from(app)).values(app=app))


async def gone_consumers(conn: AsyncConnection, t: Tables, app: str, names: Collection[str]) -> list[str]:
    """Consumers that this app started last, that are none of `names`, and that left what nobody has discarded.

    By the app's name, because several apps may share a schema: what another one started is not missed here.
    """
    rows = await conn.scalars(
        t.sql("""
            SELECT c.name FROM {consumer} c
             WHERE c.app = :app AND NOT c.name = ANY (CAST(:names AS text[]))
               AND (EXISTS (SELECT FROM {handler} h WHERE h.consumer = c.name AND h.discarded_at IS NULL)
                 OR EXISTS (SELECT FROM {outbox} o WHERE o.consumer = c.name AND o.published_at IS NULL)
                 OR EXISTS (SELECT FROM {effect} e WHERE e.consumer = c.name AND e.state IN ('intended', 'unknown')))
             ORDER BY c.name
        """),
        {"app": app, "names": sorted(names)},
    )
    return list(rows)
