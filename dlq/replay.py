"""The operator's service on dead letters: list, group, show. Replays stand in `replays`, one step of one in
`replay_rows`.

All functions take an open transaction of the caller's.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import final

from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit
from ..inbox.audit import AuditEntry
from ..inbox.errors import TidegateError
from ..inbox.tables import Tables
from .letter import Letter
from .replay_order import Order, Refusal, Report
from .replay_rows import replay
from .selection import Entry, Filter, entries, find, groups, letter_of_entry, published_at

__all__ = [
    "Entry",
    "Filter",
    "NotFound",
    "Order",
    "Refusal",
    "Report",
    "Shown",
    "groups",
    "list_letters",
    "replay",
    "show",
]


class NotFound(TidegateError):
    """No letter is known under this reference."""


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """One letter with everything about it. Key, value and headers are raw bytes: whoever shows them masks them."""

    entry: Entry
    letter: Letter
    published_at: datetime.datetime | None
    audit: tuple[AuditEntry, ...] = field(default=())


async def list_letters(
    conn: AsyncConnection, t: Tables, wanted: Filter, *, after: int = 0, limit: int = 100
) -> list[Entry]:
    """Letters that `wanted` matches, oldest first, behind the row number `after`; without keys and payloads."""
    return await entries(conn, t, wanted, after=after, limit=limit)


async def show(conn: AsyncConnection, t: Tables, reference: str) -> Shown:
    """The letter that `reference` names.

    Raises:
        NotFound: there is none.
        TidegateError: the reference is not one, or it names several (one position, many handlers).
    """
    found = (await find(conn, t, [reference]))[reference]
    if not found:
        raise NotFound(f"no letter is known as {reference}")
    if len(found) > 1:
        names = ", ".join(f"{entry.id} ({entry.consumer}/{entry.handler})" for entry in found)
        raise TidegateError(f"{reference} stands for several letters: {names}; name one by its number")
    (entry,) = found
    return Shown(
        entry,
        await letter_of_entry(conn, t, entry),
        await published_at(conn, t, entry),
        tuple(await audit.read(conn, t, failure_id=entry.id)),
    )
