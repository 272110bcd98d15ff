"""What a handler that the app no longer has left behind, and the word that nobody misses it.

Nothing of it is deleted: its open rows become `discarded`, which answers probes like a claim; its number, claims and
checkpoints stay, so that a handler of that name which comes back goes on where the old one stopped. Rows come in
transactions of bounded size, each with its audit line. What if it stops between two of them? The handler still counts
as gone, and the same command goes on with what is left. What if an app that has the handler runs meanwhile? Each row is
discarded at the version at which it was read; what that worker completes first is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, failure
from ..inbox.audit import AuditLine
from ..inbox.handlers import mark_discarded
from ..inbox.outcome import FailureState
from ..inbox.states import Act, sources
from ..inbox.tables import Tables

ROWS_MAX: Final = 1_000
"""Rows in one transaction: as many as one replay takes; their lanes are locked for a moment only."""


@final
@dataclass(frozen=True, slots=True)
class Left:
    """What a handler left: its rows by their state, and the partitions that it has checkpoints in."""

    rows: Mapping[FailureState, int]
    partitions: int

    @property
    def open_rows(self) -> int:
        """Rows that something is still to be done about."""
        return sum(count for state, count in self.rows.items() if state in sources(Act.DISCARD))

    def __str__(self) -> str:
        rows = [f"{count} {state} rows" for state, count in sorted(self.rows.items())]
        return ", ".join([*rows, f"checkpoints in {self.partitions} partitions"])


async def left_by(conn: AsyncConnection, t: Tables, handler_id: int) -> Left:
    """Count it; no lock."""
    f, c = t.failure.c, t.checkpoint.c
    counted = sa.select(f.state, sa.func.count()).where(f.handler == handler_id).group_by(f.state)
    rows = {FailureState(state): count for state, count in await conn.execute(counted)}
    places = sa.select(c.topic, c.partition).where(c.handler == handler_id).distinct().subquery()
    return Left(rows, await conn.scalar(sa.select(sa.func.count()).select_from(places)) or 0)


async def open_effects(conn: AsyncConnection, t: Tables, consumer: str) -> dict[str, int]:
    """How many calls of each effect the consumer made or began, and nobody knows the end of."""
    e = t.effect.c
    counted = sa.select(e.name, sa.func.count()).where(e.state.in_(("intended", "unknown")), e.consumer == consumer)
    rows = await conn.execute(counted.group_by(e.name).order_by(e.name))
    return {row[0]: row[1] for row in rows}


async def discard_some(conn: AsyncConnection, t: Tables, handler_id: int, line: AuditLine) -> int:
    """Lock order 2, 6, 7: discard up to `ROWS_MAX` open rows, `line` with their number in the audit; how many."""
    f = t.failure.c
    is_open = f.state.in_(sorted(state.value for state in sources(Act.DISCARD)))
    wanted = sa.select(f.id, f.row_version).where(f.handler == handler_id, is_open).order_by(f.id).limit(ROWS_MAX)
    rows = [(row.id, row.row_version) for row in await conn.execute(wanted)]
    if rows:
        done = await failure.discard(conn, t, rows)
        await audit.write(conn, t, _with(line, {"discarded": len(done), "changed_meanwhile": len(rows) - len(done)}))
    return len(rows)


async def close(conn: AsyncConnection, t: Tables, handler_id: int, line: AuditLine) -> None:
    """Lock order 7: nobody misses the handler; its last audit line."""
    await mark_discarded(conn, t, handler_id)
    await audit.write(conn, t, _with(line, {"closed": True}))


def _with(line: AuditLine, more: Mapping[str, int | bool]) -> AuditLine:
    return AuditLine(
        act=line.act, actor=line.actor, consumer=line.consumer, handler=line.handler, details={**line.details, **more}
    )
