"""Consumers that ever started: what `start="latest"` means depends on whether this is the first time."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import Tables


async def first_start(conn: AsyncConnection, t: Tables, consumer: str) -> bool:
    """Note that the consumer starts; true for the one caller who was first."""
    statement = insert(t.consumer).values(name=consumer).on_conflict_do_nothing().returning(t.consumer.c.name)
    return await conn.scalar(statement) is not None


async def ever_started(conn: AsyncConnection, t: Tables, consumer: str) -> bool:
    """Whether it ever did; nothing is noted."""
    return await conn.scalar(sa.select(t.consumer.c.name).where(t.consumer.c.name == consumer)) is not None
