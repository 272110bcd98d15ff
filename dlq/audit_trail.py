"""The audit as people read it: lines within their reach, by who, what and when, and whether all of them still stand.

Reads only. A line that concerns things of several tenants belongs to none of them: it is seen by who sees all tenants.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, audit_seal
from ..inbox.audit import CORRELATIONS, EVENTS, AuditEntry
from ..inbox.audit import LETTERS as LETTERS
from ..inbox.audit_seal import Head, Verified
from ..inbox.failure_rows import indexed_text
from ..inbox.tables import Tables
from .permission import Gate, Warrant
from .reach import Columns, Reach, Whole
from .verbs import Verb

PAGE_LINES: Final = 1_000
"""Lines of one step of an export: a second's work at most, and a few megabytes."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """What lines must match; None matches all. `until` is not included."""

    actor: str | None = None
    act: str | None = None
    allowed: bool | None = None
    event_id: str | None = None
    """An event's readable id, or its 32 hex digits; lines that name its letters among others count."""
    correlation_id: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


async def lines(gate: Gate, wanted: AuditFilter, *, after: int = 0, limit: int = 100) -> list[AuditEntry]:
    """Lines in the order of their numbers, behind number `after`."""
    async with gate.asked(Verb.LIST_AUDIT) as asked:
        return await _read(asked, wanted, after, limit)


async def export(gate: Gate, wanted: AuditFilter) -> AsyncGenerator[AuditEntry]:
    """All of them, page by page; what is written meanwhile may be among them."""
    after = 0
    while True:
        async with gate.asked(Verb.EXPORT_AUDIT) as asked:
            page = await _read(asked, wanted, after, PAGE_LINES)
        for entry in page:
            yield entry
            after = entry.id
        if len(page) < PAGE_LINES:
            return


async def verify(gate: Gate, known: Head | None = None) -> Verified:
    """Whether every sealed line stands as it was written. `known`: a head that was noted down elsewhere.

    Raises:
        NotPermitted: the caller does not see everything; the chain is one.
    """
    async with gate.asked(Verb.VERIFY_AUDIT) as asked:
        asked.require_whole(Whole())
        return await audit_seal.verify(asked.conn, asked.t, known)


async def of_letter(conn: AsyncConnection, t: Tables, sees: Reach, failure_id: int) -> list[AuditEntry]:
    """What was done about one letter, as far as its lines are within this reach; acts on many letters count too."""
    about = sa.or_(t.audit.c.failure_id == failure_id, _names(t, LETTERS, failure_id))
    return await audit.read(conn, t, about, sees.rows(columns(t)))


def columns(t: Tables) -> Columns:
    """Where a line has what a reach is told by."""
    c = t.audit.c
    return Columns(c.consumer, c.handler, c.tenant, c.brand)


async def _read(asked: Warrant, wanted: AuditFilter, after: int, limit: int) -> list[AuditEntry]:
    conditions = [*_conditions(asked.t, wanted), asked.reach.rows(columns(asked.t))]
    if wanted.event_id is not None:
        conditions.append(await _about(asked, wanted.event_id))
    return await audit.read(asked.conn, asked.t, *conditions, after=after, limit=limit)


def _conditions(t: Tables, wanted: AuditFilter) -> list[sa.ColumnElement[bool]]:
    c = t.audit.c
    equal: list[tuple[sa.Column[Any], object]] = [
        (c.actor, wanted.actor),
        (c.act, wanted.act),
        (c.allowed, wanted.allowed),
    ]
    conditions = [column == value for column, value in equal if value is not None]
    if wanted.correlation_id is not None:
        correlation_id = indexed_text(wanted.correlation_id)
        conditions.append(sa.or_(c.correlation_id == correlation_id, _names(t, CORRELATIONS, correlation_id)))
    if wanted.since is not None:
        conditions.append(c.at >= wanted.since)
    if wanted.until is not None:
        conditions.append(c.at < wanted.until)
    return conditions


async def _about(asked: Warrant, event_id: str) -> sa.ColumnElement[bool]:
    """Lines of this event, and of acts on many letters that name one of its rows, as far as the inbox has them."""
    f, c = asked.t.failure.c, asked.t.audit.c
    is_digest = _DIGEST.fullmatch(event_id) is not None
    is_it = f.event_id == bytes.fromhex(event_id) if is_digest else f.id_text == event_id
    rows = (await asked.conn.execute(sa.select(f.id, f.event_id).where(is_it).order_by(f.id).limit(_ROWS_MAX))).all()
    digests = {row.event_id for row in rows} | ({bytes.fromhex(event_id)} if is_digest else set[bytes]())
    named = [_names(asked.t, LETTERS, row.id) for row in rows]
    named += [_names(asked.t, EVENTS, digest.hex()) for digest in sorted(digests)]
    return sa.or_(sa.false(), c.event_id.in_(sorted(digests)), *named)


_DIGEST: Final = re.compile(r"[0-9a-f]{32}")

_ROWS_MAX: Final = 100
"""An event has a row for each handler at most."""


def _names(t: Tables, detail: str, name: int | str) -> sa.ColumnElement[bool]:
    """Whether the line of an act on many letters names this one; the index on details answers it."""
    return t.audit.c.details.contains(sa.cast(sa.literal({detail: [name]}, JSONB), JSONB))
