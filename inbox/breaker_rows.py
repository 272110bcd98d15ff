"""Breakers that all replicas share, one row each, moved by compare-and-set on `changes`.

A row is written when its breaker moves, never for an event. Each function is a short transaction's only statement, so
that its row stands in no lock order. A time to try again that is further away than a breaker ever waits comes from a
clock that jumped back, and counts as over.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from .breaker_phase import Phase
from .tables import Tables


class Seen(NamedTuple):
    """A breaker as it stood; `wait_s` until one may be tried, 0 while it is closed."""

    phase: Phase
    changes: int
    wait_s: float
    why: str


async def look(conn: AsyncConnection, t: Tables, names: Collection[str], retry_after_s: float) -> dict[str, Seen]:
    """Those of the named breakers that ever moved."""
    rows = await conn.execute(
        t.sql("""
            SELECT name, state, changes, coalesce(extract(epoch FROM retry_at - clock_timestamp()), 0), why
              FROM {breaker} WHERE name = ANY (CAST(:names AS text[]))
        """),
        {"names": sorted(names)},
    )
    return {row[0]: Seen(Phase(row[1]), row[2], _bounded(float(row[3]), retry_after_s), row[4]) for row in rows}


def _bounded(wait_s: float, retry_after_s: float) -> float:
    return wait_s if 0.0 < wait_s <= retry_after_s else 0.0


async def trip(conn: AsyncConnection, t: Tables, name: str, *, why: str, failures: int, retry_after_s: float) -> None:
    """Open it, if it is closed."""
    await conn.execute(
        t.sql("""
            INSERT INTO {breaker} AS b (name, state, failures, why, opened_at, retry_at, changes)
            VALUES (:name, 'open', :failures, :why, clock_timestamp(),
                    clock_timestamp() + make_interval(secs => :retry_after_s), 1)
            ON CONFLICT (name) DO UPDATE SET state = 'open', failures = excluded.failures, why = excluded.why,
               opened_at = excluded.opened_at, retry_at = excluded.retry_at, changes = b.changes + 1
             WHERE b.state = 'closed'
        """),
        {"name": name, "why": why, "failures": failures, "retry_after_s": retry_after_s},
    )


async def claim_try(conn: AsyncConnection, t: Tables, name: str, changes: int, *, retry_after_s: float) -> int | None:
    """Be the one who is tried: the row's new `changes`, or None where somebody else is, or it moved meanwhile.

    Until `retry_after_s` from now nobody else gets it; whoever is gone without a word by then is followed by another.
    """
    mine: int | None = await conn.scalar(
        t.sql("""
            UPDATE {breaker} SET state = 'half_open', changes = changes + 1,
                   retry_at = clock_timestamp() + make_interval(secs => :retry_after_s)
             WHERE name = :name AND changes = :changes AND state <> 'closed' AND NOT retry_at
                   BETWEEN clock_timestamp() AND clock_timestamp() + make_interval(secs => :retry_after_s)
            RETURNING changes
        """),
        {"name": name, "changes": changes, "retry_after_s": retry_after_s},
    )
    return mine


async def settle(
    conn: AsyncConnection, t: Tables, name: str, changes: int, *, ok: bool, why: str, retry_after_s: float
) -> bool:
    """How the one who was tried ended. False: it moved meanwhile, and this is no news any more."""
    moved = await conn.scalar(
        t.sql("""
            UPDATE {breaker} SET changes = changes + 1,
                   state = CASE WHEN :ok THEN 'closed' ELSE 'open' END,
                   failures = CASE WHEN :ok THEN 0 ELSE failures + 1 END,
                   why = CASE WHEN :ok THEN '' ELSE :why END,
                   opened_at = CASE WHEN :ok THEN NULL ELSE opened_at END,
                   retry_at = CASE WHEN :ok THEN NULL
                                   ELSE clock_timestamp() + make_interval(secs => :retry_after_s) END
             WHERE name = :name AND changes = :changes AND state = 'half_open' RETURNING changes
        """),
        {"name": name, "changes": changes, "ok": ok, "why": why, "retry_after_s": retry_after_s},
    )
    return moved is not None


async def close(conn: AsyncConnection, t: Tables, name: str) -> bool:
    """Close it, whoever says so. False: it is closed, or never moved."""
    moved = await conn.scalar(
        t.sql("""
            UPDATE {breaker} SET state = 'closed', failures = 0, why = '', opened_at = NULL, retry_at = NULL,
                   changes = changes + 1
             WHERE name = :name AND state <> 'closed' RETURNING changes
        """),
        {"name": name},
    )
    return moved is not None


async def show(conn: AsyncConnection, t: Tables, name: str, why: str) -> None:
    """Show people a breaker that one process opened for itself. Of such a row `changes` counts only what people did."""
    await conn.execute(
        t.sql("""
            INSERT INTO {breaker} AS b (name, state, why, opened_at, retry_at)
            VALUES (:name, 'open', :why, clock_timestamp(), clock_timestamp())
            ON CONFLICT (name) DO UPDATE SET state = 'open', why = excluded.why,
               opened_at = excluded.opened_at, retry_at = excluded.retry_at
             WHERE b.state = 'closed'
        """),
        {"name": name, "why": why},
    )


async def hide(conn: AsyncConnection, t: Tables, name: str) -> None:
    """The process closed it again; what others hold open they show again."""
    await conn.execute(
        t.sql("""
            UPDATE {breaker} SET state = 'closed', why = '', opened_at = NULL, retry_at = NULL
             WHERE name = :name AND state <> 'closed'
        """),
        {"name": name},
    )


async def listed(conn: AsyncConnection, t: Tables) -> list[dict[str, Any]]:
    """All that ever moved, by name, for people."""
    rows = await conn.execute(
        t.sql("SELECT name, state, failures, why, opened_at, retry_at FROM {breaker} ORDER BY name")
    )
    return [dict(row) for row in rows.mappings()]
