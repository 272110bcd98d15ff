"""Looking failure rows up: by what an operator knows of them. Plain reads, no locks."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString, cast, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .columns import ID_TEXT_CHARS_MAX, NAME_CHARS_MAX
from .failure_rows import Failure, indexed_text
from .outcome import FailureState
from .safe_text import safe_text
from .tables import Tables


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What rows must all meet; None does not count. Times are of the last failure: from `since`, before `until`."""

    consumer: str | None = None
    handler: str | None = None
    states: Collection[FailureState] | None = None
    reason: str | None = None
    exception_type: str | None = None
    topic: str | None = None
    event_id: bytes | None = None
    id_text: str | None = None
    correlation_id: str | None = None
    operation_id: str | None = None
    tenant: str | None = None
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


async def get(conn: AsyncConnection, t: Tables, failure_id: int) -> Failure | None:
    """The row, None where there is none (any more)."""
    rows = await conn.execute(sa.select(t.failure).where(t.failure.c.id == failure_id))
    row = rows.mappings().one_or_none()
    return None if row is None else failure_of(row)


async def find(
    conn: AsyncConnection, t: Tables, filters: Filters, *, after: int = 0, limit: int = 100
) -> list[Failure]:
    """Rows in the order of their ids, behind `after` (the last id of the page before)."""
    c = t.failure.c
    wanted = sa.select(t.failure).where(c.id > after, *_conditions(t, filters)).order_by(c.id).limit(limit)
    rows = await conn.execute(wanted)
    return [failure_of(row) for row in rows.mappings()]


async def count(conn: AsyncConnection, t: Tables, filters: Filters) -> int:
    """How many rows there are."""
    rows = await conn.execute(sa.select(sa.func.count()).select_from(t.failure).where(*_conditions(t, filters)))
    return rows.scalar_one()


def _conditions(t: Tables, filters: Filters) -> list[sa.ColumnElement[bool]]:
    c = t.failure.c
    equal: list[tuple[sa.ColumnElement[Any], object]] = [
        (c.reason, filters.reason),
        (c.exception_type, _cut(filters.exception_type, NAME_CHARS_MAX)),
        (c.topic, filters.topic),
        (c.event_id, filters.event_id),
        (c.id_text, _cut(filters.id_text, ID_TEXT_CHARS_MAX)),
        (c.correlation_id, None if filters.correlation_id is None else indexed_text(filters.correlation_id)),
        (c.operation_id, None if filters.operation_id is None else indexed_text(filters.operation_id)),
        (c.tenant, _cut(filters.tenant, NAME_CHARS_MAX)),
    ]
    conditions = [column == value for column, value in equal if value is not None]
    if filters.states is not None:
        conditions.append(c.state.in_([state.value for state in filters.states]))
    if filters.since is not None:
        conditions.append(c.last_failed_at >= filters.since)
    if filters.until is not None:
        conditions.append(c.last_failed_at < filters.until)
    return [*conditions, *_of_handlers(t, filters)]


def _of_handlers(t: Tables, filters: Filters) -> list[sa.ColumnElement[bool]]:
    h = t.handler.c
    names = [(h.consumer, filters.consumer), (h.name, filters.handler)]
    conditions = [column == value for column, value in names if value is not None]
    if not conditions and filters.event_id is None:
        return []
    return [t.failure.c.handler.in_(sa.select(h.id).where(*conditions))]  # by event ids rows are found for each handler


def _cut(text: str | None, chars_max: int) -> str | None:
    return None if text is None else safe_text(text, chars_max)


COLUMNS: Final = cast("LiteralString", ", ".join(Failure._fields))
"""For a SELECT that `failures_of` reads; the names stand in the source, as a class's fields."""


def failure_of(row: sa.RowMapping) -> Failure:
    """A row of the table, all its columns, as a value."""
    return _failure([row[name] for name in Failure._fields])


def failures_of(rows: sa.CursorResult[Any]) -> list[Failure]:
    """Many of them, read by `COLUMNS`."""
    return [_failure(row) for row in rows.all()]


def _failure(values: Sequence[Any]) -> Failure:
    return Failure._make((values[0], _STATES[values[1]], *values[2:]))


_STATES: Final = {state.value: state for state in FailureState}
"""The enum's own look-up takes three times as long, for each of many rows."""
