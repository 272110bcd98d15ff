"""The versions of projections: one is live, and a changed declaration is noticed before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import Tables

RUNS_FROM: Final = 1 << 30
"""Versions from here on are runs: half of what the column holds, and nobody declares a version of a billion."""


def run_version(number: int) -> int:
    """The version that the claims and rows of a run (a backfill, by its number) carry beside those of the live one.

    >>> run_version(7) - RUNS_FROM, is_run(run_version(7)), is_run(7)
    (7, True, False)
    """
    assert 0 <= number < RUNS_FROM, "a billion runs"
    return RUNS_FROM + number


def is_run(version: int) -> bool:
    """Whether it is a run's, and no declared version."""
    return version >= RUNS_FROM


class Changed(NamedTuple):
    """A projection that is declared in another version than the one that is live."""

    name: str
    declared: int
    live: int


async def changed(conn: AsyncConnection, t: Tables, declared: Mapping[int, tuple[str, int]]) -> list[Changed]:
    """Which of these (handler id -> name, declared version) have another live version."""
    rows = await conn.execute(
        sa.select(t.version.c.projection, t.version.c.version)
        .where(t.version.c.projection.in_(sorted(declared)), t.version.c.state == "live")
        .order_by(t.version.c.projection, t.version.c.version)
    )
    return [
        Changed(declared[row.projection][0], declared[row.projection][1], row.version)
        for row in rows
        if row.version != declared[row.projection][1]
    ]


async def declare_live(conn: AsyncConnection, t: Tables, declared: Mapping[int, tuple[str, int]]) -> list[Changed]:
    """Make the declared versions live where the projection has none yet; gives back those that differ, changing nothing
    for them.
    """
    differing = await changed(conn, t, declared)
    names = {change.name for change in differing}
    rows = [
        {"projection": handler_id, "version": version, "state": "live"}
        for handler_id, (name, version) in sorted(declared.items())
        if name not in names
    ]
    if rows:
        await conn.execute(insert(t.version).on_conflict_do_nothing(), rows)
    return differing
