"""The numbers of handlers: every key in the inbox carries one, so that two consumers never share a claim."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import Tables

RESERVED: Final = ""
"""The handler of records without one of their own: undecodable and unmatched ones."""


async def register_handlers(conn: AsyncConnection, t: Tables, consumer: str, names: Iterable[str]) -> dict[str, int]:
    """The ids of the consumer's handlers, made where new; with the reserved one. Any number may do this at once."""
    wanted = sorted({RESERVED, *names})
    await conn.execute(
        t.sql("""
            INSERT INTO {handler} (consumer, name)
            SELECT :consumer, u.name FROM unnest(CAST(:names AS text[])) u (name)
             WHERE NOT EXISTS (SELECT FROM {handler} h WHERE h.consumer = :consumer AND h.name = u.name)
             ORDER BY u.name COLLATE "C"
            ON CONFLICT DO NOTHING
        """),
        {"consumer": consumer, "names": wanted},
    )
    known = await known_handlers(conn, t, consumer)
    return {name: known[name] for name in wanted}


async def known_handlers(conn: AsyncConnection, t: Tables, consumer: str) -> dict[str, int]:
    """Every handler that the consumer ever had, the reserved one included: name -> id."""
    rows = await conn.execute(sa.select(t.handler.c.name, t.handler.c.id).where(t.handler.c.consumer == consumer))
    return {row.name: row.id for row in rows}
