"""Consumers that ever started, and what their app says of its effects to those who have no app at hand."""

from __future__ import annotations

from collections.abc import Iterable

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
