"""Letters with all their bytes, as values that become lines of JSON; read in steps that fit into memory.

What is exported is what stood there at the start: letters that come meanwhile are not in it. An export shows payloads,
so it needs a reason, and its line in the audit is committed before the first letter is read, with the number of those
that it asks for. What if it breaks off? Fewer were shown than the line says, and none without it.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa

from ..inbox import audit
from ..inbox.event import Headers
from ..inbox.failure_rows import Failure
from ..inbox.finding import failure_of
from ..inbox.safe_text import Detail
from ..inbox.store import Store
from . import audit_trail
from .acting import Errand, ask_errand, chosen
from .permission import Act, Permit, common_place
from .reach import Whole
from .selection import NAMED_MAX, Entry, count
from .verbs import Verb

EXPORT: Final = Verb.EXPORT

ROWS_MAX: Final = 500
"""Letters without their values that are looked at in one step: below a megabyte."""

STEP_BYTES_MAX: Final = 8_000_000
"""Values in memory at once; one that is larger comes alone."""


async def export(store: Store, errand: Errand, permit: Permit) -> AsyncGenerator[dict[str, Any]]:
    """The letters of the errand, oldest first. Those that the actor has no permission for are left out.

    Raises:
        NotPermitted: the actor may not; that is audited.
    """
    newest = await _begin(store, errand, permit)
    after, more = 0, True
    while more and after < newest:
        async with store.look() as conn:
            page = await chosen(conn, store.tables, EXPORT, errand, permit, after, ROWS_MAX)
        after, more = max((entry.id for entry in page.found), default=newest), page.more
        mine = [entry for entry in page.found if entry.id <= newest]
        for batch in _batches(mine):
            for row, entry in await _rows(store, batch):
                yield exported(row, entry)


async def _begin(store: Store, errand: Errand, permit: Permit) -> int:
    """Ask for it and write its line; the newest letter's number."""
    wanted, t = errand.filter, store.tables
    first = ROWS_MAX if wanted is not None else len(errand.references) * NAMED_MAX  # each that is named is asked for
    async with store.look() as conn:
        page = await chosen(conn, t, EXPORT, errand, permit, 0, first)
    said: dict[str, Detail] = {"filter": None if wanted is None else str(wanted)}
    await ask_errand(store, Act(EXPORT.value, errand.actor, errand.reason, said), errand, permit, page)
    async with store.transaction() as conn:
        newest: int = (await conn.execute(sa.select(sa.func.coalesce(sa.func.max(t.failure.c.id), 0)))).scalar_one()
        if wanted is None or not page.more:
            said |= {"letters": len(page.found), audit_trail.LETTERS: tuple(entry.id for entry in page.found)}
            place = common_place(entry.place for entry in page.found)
        else:
            said |= {"letters": await count(conn, t, wanted, within=permit.reach(EXPORT), upto=newest), "upto": newest}
            place = Whole().place
        await audit.write(conn, t, Act(EXPORT.value, errand.actor, errand.reason, said).line(place))
    return newest


def _batches(found: Sequence[Entry]) -> list[list[Entry]]:
    """In their order, each with as many as fit into memory together."""
    batches: list[list[Entry]] = []
    room = 0
    for entry in found:
        size = entry.value_bytes or 0
        if not batches or size > room:
            batches.append([])
            room = STEP_BYTES_MAX
        batches[-1].append(entry)
        room -= size
    return batches


async def _rows(store: Store, batch: Sequence[Entry]) -> list[tuple[Failure, Entry]]:
    """As they stand now: one that is gone meanwhile was handled, and is no letter any more."""
    f, entries = store.tables.failure, {entry.id: entry for entry in batch}
    async with store.look() as conn:
        rows = await conn.execute(sa.select(f).where(f.c.id.in_(sorted(entries))).order_by(f.c.id))
        return [(row, entries[row.id]) for row in map(failure_of, rows.mappings())]


def exported(row: Failure, entry: Entry) -> dict[str, Any]:
    """One letter as plain values: times in ISO 8601, bytes in base64, ids in hex."""
    fields = {name: _plain(value) for name, value in asdict(entry).items()}
    return fields | {
        "state": row.state.value,
        "key_base64": _base64(row.key),
        "value_base64": _base64(row.value),
        "edited_value_base64": _base64(row.edited_value),
        "headers": _headers(row.record.headers),
        "timestamp_ms": row.timestamp_ms,
        "timestamp_type": row.timestamp_type,
        "schema_id": row.schema_id,
    }


def _headers(headers: Headers) -> list[dict[str, str | None]]:
    """In their order; a name that UTF-8 does not have is escaped."""
    return [
        {"name": name.encode("utf-8", "backslashreplace").decode(), "value_base64": _base64(value)}
        for name, value in headers
    ]


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat()
    return value.hex() if isinstance(value, bytes) else value
