"""Waiting for what another database session does, without guessing how long it takes."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa

from tidegate.inbox.database import Database

_EVERY_S = 0.005
_AT_MOST_S = 20.0


async def until_blocked(db: Database, sessions: int = 1) -> None:
    """Return once that many sessions of this database wait for a lock that another one holds."""
    async with asyncio.timeout(_AT_MOST_S):
        while await blocked(db) < sessions:
            await asyncio.sleep(_EVERY_S)


async def blocked(db: Database) -> int:
    """How many sessions of this database wait for a lock."""
    async with db.transaction() as conn:
        count = await conn.scalar(
            sa.text("""
                SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
            """)
        )
    assert isinstance(count, int)
    return count
