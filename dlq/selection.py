"""Finds letters in the inbox: by filter, by reference. Reads only; values are always bound."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.errors import TidegateError
from ..inbox.event import Record
from ..inbox.failure_rows import indexed_text
from ..inbox.identity import key_hash16
from ..inbox.outcome import FailureState
from ..inbox.record_bytes import decode_headers, encode_header
from ..inbox.tables import Tables
from .letter import Victim, dead_letter_id, read_letter
from .reach import EVERYWHERE, Columns, Place, Reach


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What letters must match; None matches all. Times are of the last failure, `until` not included."""

    consumer: str | None = None
    handler: str | None = None
    state: FailureState | None = FailureState.DEAD
    reason: str | None = None
    exception_type: str | None = None
    tenant: str | None = None
    """An empty one: the letters of no tenant."""
    brand: str | None = None
    topic: str | None = None
    key: bytes | None = None
    event_id: str | None = None
    """The readable id, as its rule reads it."""
    correlation_id: str | None = None
    operation_id: str | None = None
    header: tuple[str, bytes] | None = None
    """A header that the record came with: name and value, byte for byte."""
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None

    def __str__(self) -> str:
        """For people and for the audit: `reason=rejected handler=revenue`."""
        given = [(name.name, getattr(self, name.name)) for name in fields(self) if name.name not in ("key", "header")]
        if self.header is not None:
            given.append(("header", self.header[0]))
        if self.key is not None:  # a key may be a person's: the audit, which nobody can redact, gets its hash
            given.append(("key_hash", key_hash16(self.key).hex()))
        return " ".join(f"{name}={value}" for name, value in given if value is not None)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A letter as a list shows it: no key, no payload. `id` is the row's number, the short name of the letter."""

    id: int
    row_version: int
    dead_letter_id: str
    consumer: str
    handler: str
    version: int
    state: FailureState
    reason: str
    exception_type: str
    message: str
    stack_digest: str
    topic: str
    incarnation: int
    partition: int
    offset: int
    event_id: bytes
    id_text: str
    type: str
    tenant: str | None
    brand: str | None
    correlation_id: str
    operation_id: str
    attempts: int
    replay_count: int
    first_failed_at: datetime.datetime
    last_failed_at: datetime.datetime
    due: datetime.datetime | None
    effect_id: int | None = None
    """The call that it waits for, or that nobody knows the end of."""
    edit_id: bytes | None = None
    """Which repair is handled in place of what was received."""
    redacted_at: datetime.datetime | None = None
    """When its payload was erased: it can never be run."""
    value_bytes: int | None
    """The value's length; None for a tombstone."""
    handler_id: int = 0
    payload_hash8: int = 0
    attempt_id: bytes | None = None
    """The identity that it ran under last, where that is not the event's own."""

    @property
    def place(self) -> Place:
        """Where it is, for permission and audit."""
        ids = (self.id, self.event_id, self.correlation_id, self.operation_id)
        return Place(self.consumer, self.handler, self.tenant, self.brand, *ids)


async def entries(
    conn: AsyncConnection,
    t: Tables,
    wanted: Filter,
    *,
    within: Reach = EVERYWHERE,
    after: int = 0,
    limit: int,
    upto: int | None = None,
    named: bool = True,
) -> list[Entry]:
    """Rows that match `within` a reach, in the order of their numbers, behind `after` and not behind `upto`.

    Not `named`: without the letters' ids, which cost as much as all else; for acts on many.
    """
    asked = page_of(t, wanted, within, after, upto)
    return _entries(await conn.execute(_listed(t, named=named).where(*asked).order_by(t.failure.c.id).limit(limit)))


def page_of(
    t: Tables, wanted: Filter, within: Reach, after: int, upto: int | None
) -> tuple[sa.ColumnElement[bool], ...]:
    """What is asked of the rows that `entries` gives, before they are ordered and limited."""
    f = t.failure.c
    behind = (f.id > after,) if upto is None else (f.id > after, f.id <= upto)
    return (*behind, *conditions(t, wanted), within.rows(columns(t)))


async def numbered(conn: AsyncConnection, t: Tables, ids: Collection[int]) -> list[Entry]:
    """Those of these rows that are there, without the letters' ids, in the order of their numbers."""
    if not ids:
        return []
    chosen = _listed(t, named=False).where(t.failure.c.id == sa.any_(sa.cast(sorted(ids), _NUMBERS)))
    return _entries(await conn.execute(chosen.order_by(t.failure.c.id)))


_NUMBERS: Final = postgresql.ARRAY(sa.BigInteger())


async def count(
    conn: AsyncConnection, t: Tables, wanted: Filter, *, within: Reach = EVERYWHERE, after: int = 0, upto: int
) -> int:
    """How many rows match `within` a reach, behind `after` and not behind `upto`."""
    asked = page_of(t, wanted, within, after, upto)
    return (await conn.execute(sa.select(sa.func.count()).select_from(joined(t)).where(*asked))).scalar_one()


async def find(conn: AsyncConnection, t: Tables, references: Sequence[str]) -> dict[str, list[Entry]]:
    """The letters that each reference names; an empty list where there is none.

    A reference is a row's number (`17`), a dead-letter id (32 hex digits) or a position (`topic/partition@offset`),
    which may stand for the letters of several handlers.

    Raises:
        TidegateError: one of them has none of these forms.
    """
    found: dict[str, list[Entry]] = {}
    for reference in references:
        found[reference] = await _find(conn, t, reference)
    return found


async def _find(conn: AsyncConnection, t: Tables, reference: str) -> list[Entry]:
    f = t.failure.c
    if _NUMBER.fullmatch(reference):
        return await _where(conn, t, f.id == int(reference))
    if _LETTER_ID.fullmatch(reference):
        return await _by_letter(conn, t, bytes.fromhex(reference))
    if (place := _POSITION.fullmatch(reference)) is not None:
        partition, offset = int(place["partition"]), int(place["offset"])
        return await _where(conn, t, f.topic == place["topic"], f.partition == partition, f.record_offset == offset)
    raise TidegateError(
        f"{reference!r} is no letter's name: give its number, its 32-digit id, or topic/partition@offset"
    )


_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_LETTER_ID: Final = re.compile(r"[0-9a-f]{32}")
_POSITION: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})/(?P<partition>[0-9]{1,9})@(?P<offset>[0-9]{1,18})")


async def _by_letter(conn: AsyncConnection, t: Tables, letter_id: bytes) -> list[Entry]:
    """By the saved letter: it names its row, or at least where the record stood and for whom it died."""
    o = t.outbox.c
    saved = (
        await conn.execute(sa.select(o.failure_id, o.topic, o.headers).where(o.id == letter_id, o.kind == "letter"))
    ).one_or_none()
    if saved is None:
        return []
    if saved.failure_id is not None:
        return await _where(conn, t, t.failure.c.id == saved.failure_id)
    letter = read_letter(Record(saved.topic, 0, 0, None, None, decode_headers(saved.headers)))
    f, h = t.failure.c, t.handler.c
    return await _where(
        conn,
        t,
        h.consumer == letter.consumer,
        h.name == letter.handler,
        f.version == letter.handler_version,
        f.topic == letter.origin_topic,
        f.incarnation == letter.origin_incarnation,
        f.partition == letter.origin_partition,
        f.record_offset == letter.origin_offset,
    )


async def _where(conn: AsyncConnection, t: Tables, *conditions: sa.ColumnElement[bool]) -> list[Entry]:
    rows = await conn.execute(_listed(t).where(*conditions).order_by(t.failure.c.id).limit(NAMED_MAX))
    return _entries(rows)


NAMED_MAX: Final = 100
"""One position has a row for each handler and version at most."""


def columns(t: Tables) -> Columns:
    """Where a letter's row, joined with its handler's, has what a reach is told by."""
    return Columns(t.handler.c.consumer, t.handler.c.name, t.failure.c.tenant, t.failure.c.brand)


def joined(t: Tables) -> sa.Join:
    """Rows with their handlers."""
    return t.failure.join(t.handler, t.handler.c.id == t.failure.c.handler)


def _listed(t: Tables, *, named: bool = True) -> sa.Select[Any]:
    f, h = t.failure.c, t.handler.c
    plain = [f[name] for name in _PLAIN]
    return sa.select(
        *plain,
        f.record_offset.label("offset"),
        h.consumer,
        h.name.label("handler"),
        h.id.label("handler_id"),
        sa.func.octet_length(f.value).label("value_bytes"),
        *((f.key, _latest_letter(t).label("saved_letter")) if named else ()),
    ).select_from(joined(t))


def _latest_letter(t: Tables) -> sa.ScalarSelect[Any]:
    """The id of the letter as it was written: the handler may have had another name then."""
    o = t.outbox.c
    mine = sa.select(o.id).where(o.failure_id == t.failure.c.id).order_by(o.seq.desc()).limit(1)
    return mine.correlate(t.failure).scalar_subquery()


_PLAIN: Final = (
    *("id", "row_version", "version", "state", "reason", "exception_type", "message", "stack_digest", "topic"),
    *("incarnation", "partition", "event_id", "id_text", "type", "tenant", "brand", "correlation_id", "operation_id"),
    *("attempts", "replay_count", "first_failed_at", "last_failed_at", "due", "effect_id", "edit_id", "redacted_at"),
    *("payload_hash8", "attempt_id"),
)


def conditions(t: Tables, wanted: Filter) -> list[sa.ColumnElement[bool]]:
    """What `wanted` asks of rows and their handlers."""
    f, h = t.failure.c, t.handler.c
    equal: list[tuple[sa.ColumnElement[Any], object]] = [
        (h.consumer, wanted.consumer),
        (h.name, wanted.handler),
        (f.state, None if wanted.state is None else wanted.state.value),
        (f.reason, wanted.reason),
        (f.exception_type, wanted.exception_type),
        (f.tenant, wanted.tenant or None),
        (f.brand, wanted.brand),
        (f.topic, wanted.topic),
        (f.key, wanted.key),
        (f.id_text, wanted.event_id),
    ]
    asked = [column == value for column, value in equal if value is not None]
    asked += [_standing_or_queued(t, wanted.state, is_it) for is_it in _indexed(t, wanted)]
    if wanted.tenant == "":
        asked.append(f.tenant.is_(None))
    if wanted.header is not None:  # as it is stored: name and value, each behind its length
        asked.append(sa.func.position(sa.literal(encode_header(wanted.header)).op("IN")(f.headers)) > 0)
    if wanted.since is not None:
        asked.append(f.last_failed_at >= wanted.since)
    if wanted.until is not None:
        asked.append(f.last_failed_at < wanted.until)
    return asked


def _indexed(t: Tables, wanted: Filter) -> list[sa.ColumnElement[bool]]:
    """What `wanted` asks of columns that have an index of their own, in its words."""
    f = t.failure.c
    equal: list[tuple[sa.ColumnElement[Any], object]] = [
        (sa.func.sha256(f.key), None if wanted.key is None else sa.func.sha256(wanted.key)),
        (f.correlation_id, None if wanted.correlation_id is None else indexed_text(wanted.correlation_id)),
        (f.operation_id, None if wanted.operation_id is None else indexed_text(wanted.operation_id)),
    ]
    return [column == value for column, value in equal if value is not None]


def _standing_or_queued(t: Tables, state: FailureState | None, is_it: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Rows that stand have such an index, those that are queued have none, so that a replay writes fewer.

    These are found through the queue's own two indexes: each part says which rows its index has.
    """
    f = t.failure.c
    if state not in (None, FailureState.QUEUED):
        return is_it
    queued = f.state == FailureState.QUEUED.value
    return sa.or_(
        sa.and_(sa.not_(queued), is_it),
        sa.and_(queued, f.alone, is_it),
        sa.and_(queued, sa.not_(f.alone), is_it),
    )


def _entries(rows: sa.CursorResult[Any]) -> list[Entry]:
    """The columns' names are looked at once for all rows."""
    names = list(rows.keys())
    return [_entry(dict(zip(names, row, strict=True))) for row in rows.all()]


def _entry(columns: dict[str, Any]) -> Entry:
    columns["state"] = state = FailureState(columns["state"])
    if "saved_letter" not in columns:
        return Entry(**columns, dead_letter_id="")
    key, saved = columns.pop("key"), columns.pop("saved_letter")
    letter_id: bytes = _letter_id(columns, key, state) if saved is None else saved
    return Entry(**columns, dead_letter_id=letter_id.hex())


def _letter_id(columns: dict[str, Any], key: bytes | None, state: FailureState) -> bytes:
    """The id of the row's latest letter: a row that was replayed and is not dead again has the one from before."""
    replays: int = columns["replay_count"]
    ordinal = max(0, replays - 1) if state is FailureState.QUEUED else replays
    victim = Victim(columns["consumer"], columns["handler"], columns["version"], columns["event_id"])
    origin = Record(columns["topic"], columns["partition"], columns["offset"], key, None)
    return dead_letter_id(victim, origin, columns["incarnation"], ordinal)


async def published_at(conn: AsyncConnection, t: Tables, entry: Entry) -> datetime.datetime | None:
    """When the letter was delivered to its topic; None while it waits (or its outbox row is gone)."""
    o = t.outbox.c
    return await conn.scalar(sa.select(o.published_at).where(o.id == bytes.fromhex(entry.dead_letter_id)))
