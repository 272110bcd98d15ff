"""The database's standbys: whether a failover, or a crash, would forget calls that were written down and made.

An intent that is forgotten is a call that nobody knows of: its event is handled again, and calls again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection


@final
@dataclass(frozen=True, slots=True)
class Durability:
    """What a commit waits for. `standbys` are (name, sync_state); the state is None where we may not see it."""

    synchronous_commit: str
    standbys: Sequence[tuple[str, str | None]] = ()


async def look(conn: AsyncConnection) -> Durability:
    """Ask the server; a plain read. Standbys that are not connected now are not known to it."""
    rows = await conn.execute(_STANDBYS)
    commit: str = await conn.scalar(sa.text("SELECT current_setting('synchronous_commit')"))
    return Durability(commit, [(row[0], row[1]) for row in rows])


_STANDBYS: Final = sa.text("""
    SELECT coalesce(nullif(r.application_name, ''), host(r.client_addr), 'without a name'), r.sync_state
      FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
     WHERE s.slot_type IS DISTINCT FROM 'logical' AND r.state IS DISTINCT FROM 'backup'
       AND r.application_name IS DISTINCT FROM 'pg_receivewal'
     ORDER BY 1, 2
""")
"""Not those that take a backup, archive WAL or decode it: nobody fails over to these."""


def dangers_of(found: Durability) -> list[str]:
    """What may forget an intent, for people."""
    dangers: list[str] = []
    if found.synchronous_commit == "off":
        dangers.append(f"synchronous_commit is off, so a crash of the server {_FORGETS}: set it to on")
    if found.synchronous_commit == "local" and found.standbys:
        dangers.append(f"synchronous_commit is local, so a failover {_FORGETS}: set it to on")
    behind = [name for name, state in found.standbys if state == "async"]
    if behind:
        dangers.append(
            f"{_names(behind)} asynchronously, so a failover to it {_FORGETS}: name it in synchronous_standby_names, "
            "or declare each failover with `tidegate restored`"
        )
    if any(state is None for _, state in found.standbys):
        dangers.append(
            "there are standbys, and we may not see whether they follow synchronously (a failover to one that does not "
            f"{_FORGETS}): GRANT pg_read_all_stats to this role"
        )
    return dangers


_FORGETS: Final = "may forget calls of effects that were made, and they would be made again"


def _names(names: Sequence[str]) -> str:
    return f"standby {names[0]!r} follows" if len(names) == 1 else f"standbys {', '.join(map(repr, names))} follow"
