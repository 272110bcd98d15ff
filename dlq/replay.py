"""The operator's list of dead letters, and the names that a caller needs to replay them.

Replays stand in `replays`, one step of one in `replay_rows`; what is seen of one letter in `looking`.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.tables import Tables
from .replay_order import Order, Refusal, Report
from .replay_rows import replay
from .selection import Entry, Filter, entries

__all__ = ["Entry", "Filter", "Order", "Refusal", "Report", "list_letters", "replay"]


async def list_letters(
    conn: AsyncConnection, t: Tables, wanted: Filter, *, after: int = 0, limit: int = 100
) -> list[Entry]:
    """Letters that `wanted` matches, oldest first, behind the row number `after`; without keys and payloads."""
    return await entries(conn, t, wanted, after=after, limit=limit)
