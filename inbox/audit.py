"""The audit: who did what, allowed or denied, for ever. Lines are only added; the database refuses all else.

An allowed act's line goes into the act's own transaction; a denied one's into one of its own, before the error is
raised.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .columns import NAME_CHARS_MAX
from .failure_rows import indexed_text
from .json_text import json_text
from .safe_text import Detail, safe_details, safe_text
from .tables import Tables

LETTERS: Final = "failure_ids"
"""The detail in which an act on many letters names them."""

EVENTS: Final = "event_ids"
"""The detail with their events' ids in hex digits, where the letters' rows go with the act."""

CORRELATIONS: Final = "correlation_ids"
"""And the one with their correlation ids."""

NO_DETAILS: Final[Mapping[str, Detail]] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One act. `consumer` and `handler` are names, empty where the act concerns none."""

    act: str
    actor: str
    allowed: bool = True
    consumer: str = ""
    handler: str = ""
    failure_id: int | None = None
    event_id: bytes | None = None
    correlation_id: str = ""
    operation_id: str = ""
    tenant: str | None = None
    brand: str | None = None
    details: Mapping[str, Detail] = field(default_factory=dict[str, Detail])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A line as it stands, with its number and the database's time."""

    id: int
    at: datetime.datetime
    line: AuditLine


async def write(conn: AsyncConnection, t: Tables, line: AuditLine) -> int:
    """Lock order 7: add a line; returns its number."""
    rows = await conn.execute(sa.insert(t.audit).values(_values(line)).returning(t.audit.c.id))
    number: int = rows.scalar_one()
    return number


async def write_many(conn: AsyncConnection, t: Tables, lines: Sequence[AuditLine]) -> None:
    """Lock order 7: add lines in their order, in one statement."""
    if not lines:
        return
    rows = [{**_values(line), "details": json_text(safe_details(line.details))} for line in lines]
    await conn.execute(t.sql(_WRITE_MANY), {name: [row[name] for row in rows] for name in rows[0]})


_WRITE_MANY: Final = """
    INSERT INTO {audit} (act, actor, allowed, consumer, handler, failure_id, event_id, correlation_id, operation_id,
                         tenant, brand, details)
    SELECT act, actor, allowed, consumer, handler, failure_id, event_id, correlation_id, operation_id, tenant, brand,
           CAST(details AS jsonb)
      FROM unnest(CAST(:act AS text[]), CAST(:actor AS text[]), CAST(:allowed AS boolean[]),
                  CAST(:consumer AS text[]), CAST(:handler AS text[]), CAST(:failure_id AS bigint[]),
                  CAST(:event_id AS bytea[]), CAST(:correlation_id AS text[]), CAST(:operation_id AS text[]),
                  CAST(:tenant AS text[]), CAST(:brand AS text[]), CAST(:details AS text[])) WITH ORDINALITY
           u (act, actor, allowed, consumer, handler, failure_id, event_id, correlation_id, operation_id, tenant, brand,
              details, place)
     ORDER BY place
"""


def _values(line: AuditLine) -> dict[str, Any]:
    return {
        "act": safe_text(line.act, NAME_CHARS_MAX),
        "actor": safe_text(line.actor, NAME_CHARS_MAX),
        "allowed": line.allowed,
        "consumer": safe_text(line.consumer, NAME_CHARS_MAX),
        "handler": safe_text(line.handler, NAME_CHARS_MAX),
        "failure_id": line.failure_id,
        "event_id": line.event_id,
        "correlation_id": indexed_text(line.correlation_id),
        "operation_id": indexed_text(line.operation_id),
        "tenant": _optional(line.tenant),
        "brand": _optional(line.brand),
        "details": safe_details(line.details),
    }


def _optional(text: str | None) -> str | None:
    return None if text is None else safe_text(text, NAME_CHARS_MAX)


async def read(
    conn: AsyncConnection,
    t: Tables,
    *conditions: sa.ColumnElement[bool],
    event_id: bytes | None = None,
    failure_id: int | None = None,
    correlation_id: str | None = None,
    after: int = 0,
    limit: int = 100,
) -> list[AuditEntry]:
    """Lines in their order, behind number `after`, that match all; filters that are None do not count."""
    c = t.audit.c
    wanted = sa.select(*[c[name] for name in _READ]).where(c.id > after, *conditions).order_by(c.id).limit(limit)
    if event_id is not None:
        wanted = wanted.where(c.event_id == event_id)
    if failure_id is not None:
        wanted = wanted.where(c.failure_id == failure_id)
    if correlation_id is not None:
        wanted = wanted.where(c.correlation_id == indexed_text(correlation_id))
    rows = await conn.execute(wanted)
    return [_entry(row) for row in rows.mappings()]


_READ: Final = (
    *("id", "at", "act", "actor", "allowed", "consumer", "handler", "failure_id", "event_id", "correlation_id"),
    *("operation_id", "tenant", "brand", "details"),
)


def _entry(row: sa.RowMapping) -> AuditEntry:
    columns: dict[str, Any] = {str(name): value for name, value in row.items()}
    number, at = columns.pop("id"), columns.pop("at")
    return AuditEntry(id=number, at=at, line=AuditLine(**columns))
