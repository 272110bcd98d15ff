"""Statements of the effects ledger. All times are the database's.

A row is made, taken over and closed each by one statement: the intent (lock order 1, then the row) under the fence of
its home, whatever is learned later without one, since evidence is true whoever brings it. Two processes that want the
same row meet at `row_version`: one statement changes it, the other one's changes nothing, and it reads again.

What if the process stops between intent and call? The row says that a call may be under way; after `due` it goes by
its rule. Between call and completion? The same. What if the fence is lost between intent and call? The call is made
all the same: no fence stops a caller that froze between check and send. Its row is there, so the new owner waits.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import asyncpg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .columns import NAME_CHARS_MAX
from .effect_judging import TakeOver
from .effect_rows import Call, EffectRow
from .effect_rules import rule_name
from .effect_states import EffectAct, EffectState, Resolution, sources
from .errors import OwnershipLost
from .failure_rows import indexed_text
from .safe_text import safe_text
from .tables import Tables

Driver: TypeAlias = "asyncpg.Connection[Any]"

EARLIER_MAX: Final = 100
"""Attempts whose late answer still counts as evidence: an answer that is a hundred attempts late does not come."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Intent:
    """An attempt that asks to be written down before its call."""

    call: Call
    attempt_id: bytes


@final
@dataclass(frozen=True, slots=True)
class Made:
    """The intent is durable."""

    effect_id: int
    deadline: datetime.datetime


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """How an attempt ended: `state` is completed (evidence), failed (surely not done) or unknown.

    `answered` is not written: whether the provider did, for its breaker; None says nothing about it.
    """

    effect_id: int
    attempt_id: bytes
    state: EffectState
    result: str | None = None
    external_id: str | None = None
    error: str = ""
    answered: bool | None = None


# ------------------------------------------------------------------------------------------------- grouped statements


def intend_sql(t: Tables) -> str:
    """Write many intents, each under its fence: one statement, one commit. Parameters by `intend`.

    A row that stands already, one whose fence is not ours, and one below the bound of a restored database are left
    out; ordered, so that two groups never wait for each other crosswise.
    """
    return t.sql("""
        WITH asked AS (
          SELECT * FROM unnest(
            $1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[],
            $9::bytea[], $10::text[], $11::float8[], $12::float8[], $13::text[], $14::bytea[], $15::text[],
            $16::text[], $17::text[], $18::int[], $19::text[], $20::int[], $21::bigint[])
            u (identity, scope, owner, name, operation_id, rule, provider, fingerprint,
               attempt_id, key, deadline_s, due_s, consumer, event_id, tenant,
               brand, correlation_id, home, origin_topic, origin_partition, origin_offset)),
        held AS (
          SELECT h.no FROM unnest($22::int[], $23::text[], $24::text[], $25::int[], $26::bigint[])
                           h (no, consumer, topic, partition, epoch)
            JOIN {fence} f ON f.consumer = h.consumer AND f.topic = h.topic AND f.partition = h.partition
                          AND f.epoch = h.epoch
           WHERE f.wanted IS NULL ORDER BY f.consumer, f.topic, f.partition FOR KEY SHARE OF f),
        made AS (
          INSERT INTO {effect} (identity, scope, owner, name, operation_id, state, rule, provider, fingerprint,
                                attempt_id, key, deadline, due, consumer, event_id, tenant, brand, correlation_id)
          SELECT identity, scope, owner, name, operation_id, 'intended', rule, provider, fingerprint, attempt_id, key,
                 clock_timestamp() + deadline_s * interval '1 second', clock_timestamp() + due_s * interval '1 second',
                 consumer, event_id, tenant, brand, correlation_id
            FROM asked a
           WHERE (a.home = 0 OR a.home IN (SELECT no FROM held))
             AND NOT EXISTS (SELECT FROM {restored} r
                              WHERE r.consumer = a.consumer AND r.topic = a.origin_topic
                                AND r.partition = a.origin_partition AND a.origin_offset < r.until_offset)
           ORDER BY a.identity
          ON CONFLICT (identity) DO NOTHING RETURNING id, attempt_id, deadline)
        SELECT id, attempt_id, deadline FROM made
    """).text


async def intend(driver: Driver, sql: str, intents: Sequence[Intent]) -> list[Made | None]:
    """Run `intend_sql` for `intents`; None for each that was left out."""
    homes: dict[tuple[str, str, int, int], int] = {}
    columns = [list(column) for column in zip(*[_intent_values(intent, homes) for intent in intents], strict=True)]
    fences = [(no, *place) for place, no in homes.items()]
    places: list[list[Any]] = [list(column) for column in zip(*fences, strict=True)] or [[], [], [], [], []]
    rows = await driver.fetch(sql, *columns, *places)
    made = {row[1]: Made(row[0], row[2]) for row in rows}
    return [made.get(intent.attempt_id) for intent in intents]


def _intent_values(intent: Intent, homes: dict[tuple[str, str, int, int], int]) -> tuple[Any, ...]:
    call, effect, owner = intent.call, intent.call.effect, intent.call.owner
    home, origin = owner.home, owner.origin
    number = 0
    if home is not None:
        place = (home.consumer, home.partition.topic, home.partition.number, home.epoch)
        number = homes.setdefault(place, len(homes) + 1)
    consumer = origin.consumer if origin is not None else home.consumer if home is not None else ""
    topic, partition, offset = (None, None, None) if origin is None else (*origin.partition, origin.offset)
    return (
        *(call.identity, _name(call.scope), _name(owner.name), effect.name, indexed_text(call.operation_id)),
        *(rule_name(effect.rule), _name(effect.provider), call.fingerprint, intent.attempt_id, call.key),
        *(effect.deadline_s, effect.deadline_s + effect.margin_s, consumer, owner.event_id, _optional(owner.tenant)),
        *(_optional(owner.brand), indexed_text(owner.correlation_id), number, topic, partition, offset),
    )


def end_sql(t: Tables) -> str:
    """Write down how many attempts ended: one statement, one commit. Parameters by `end`.

    Evidence of any attempt counts, unless the result is known or somebody resolved the row; what is less than evidence
    counts of the attempt that is the present one.
    """
    return t.sql("""
        UPDATE {effect} e
           SET state = CASE WHEN u.state = 'failed' AND e.in_doubt THEN 'unknown' ELSE u.state END,
               ended_at = clock_timestamp(), result = CAST(u.result AS jsonb), external_id = u.external_id,
               error = u.error, unsure = CASE u.state WHEN 'unknown' THEN greatest(e.unsure, 1) ELSE e.unsure END,
               row_version = e.row_version + 1
          FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::text[])
               u (id, attempt_id, state, result, external_id, error)
         WHERE e.id = u.id
           AND CASE u.state WHEN 'completed' THEN e.state IN ('intended', 'failed', 'unknown')
                                              AND (e.attempt_id = u.attempt_id OR u.attempt_id = ANY (e.earlier))
                            ELSE e.state = 'intended' AND e.attempt_id = u.attempt_id END
        RETURNING u.attempt_id
    """).text


async def end(driver: Driver, sql: str, endings: Sequence[Ending]) -> list[bool]:
    """Run `end_sql`; False for each that changed nothing: evidence of that kind goes to `testify`."""
    ordered = sorted(endings, key=lambda ending: ending.effect_id)
    values = [(e.effect_id, e.attempt_id, e.state.value, e.result, e.external_id, e.error) for e in ordered]
    rows = await driver.fetch(sql, *map(list, zip(*values, strict=True)))
    written = {row[0] for row in rows}
    return [ending.attempt_id in written for ending in endings]


# -------------------------------------------------------------------------------------------------- one row at a time

_READ: Final = (
    *("id", "state", "rule", "fingerprint", "attempt_id", "attempts", "unsure", "in_doubt", "key", "key_no"),
    *("key_since", "intended_at", "deadline", "due", "ended_at", "external_id", "result", "error", "resolution"),
    *("probes", "row_version", "name", "operation_id", "tenant", "brand", "correlation_id"),
)


async def find(conn: AsyncConnection, t: Tables, call: Call) -> tuple[EffectRow | None, datetime.datetime, bool]:
    """What is known of `call`, the database's time, and whether the database may have forgotten about it; no lock."""
    place, restored_at = call.owner.origin, None
    now: datetime.datetime = await conn.scalar(sa.text("SELECT clock_timestamp()"))
    if place is not None:
        restored_at = await conn.scalar(
            t.sql("""
                SELECT declared_at FROM {restored} WHERE consumer = :consumer AND topic = :topic
                   AND partition = :partition AND :offset < until_offset
            """),
            {
                "consumer": place.consumer,
                "topic": place.partition.topic,
                "partition": place.partition.number,
                "offset": place.offset,
            },
        )
    found = await conn.execute(_reading(t).where(t.effect.c.identity == call.identity))
    row = found.mappings().one_or_none()
    return None if row is None else _row(row, now, restored_at), now, restored_at is not None


async def read(conn: AsyncConnection, t: Tables, effect_id: int) -> EffectRow | None:
    """A row by its number, with the database's time; no lock."""
    now = await conn.scalar(sa.text("SELECT clock_timestamp()"))
    row = (await conn.execute(_reading(t).where(t.effect.c.id == effect_id))).mappings().one_or_none()
    return None if row is None else _row(row, now, None)


def _reading(t: Tables) -> sa.Select[Any]:
    return sa.select(*[t.effect.c[name] for name in _READ])


def _row(row: sa.RowMapping, now: datetime.datetime, restored_at: datetime.datetime | None) -> EffectRow:
    columns: dict[str, Any] = {str(name): value for name, value in row.items()}
    columns["state"] = EffectState(columns["state"])
    columns["resolution"] = None if columns["resolution"] is None else Resolution(columns["resolution"])
    return EffectRow(**columns, now=now, restored_at=restored_at)


async def hold(conn: AsyncConnection, t: Tables, call: Call) -> None:
    """Lock order 1: the fence of the call's home, where it has one. Raises OwnershipLost."""
    home = call.owner.home
    if home is None:
        return
    mine = await conn.execute(
        t.sql("""
            SELECT 1 FROM {fence} WHERE consumer = :consumer AND topic = :topic AND partition = :partition
               AND epoch = :epoch AND wanted IS NULL FOR KEY SHARE
        """),
        {
            "consumer": home.consumer,
            "topic": home.partition.topic,
            "partition": home.partition.number,
            "epoch": home.epoch,
        },
    )
    if mine.one_or_none() is None:
        raise OwnershipLost(f"{home.partition} is held by somebody else")


async def take_over(
    conn: AsyncConnection, t: Tables, row: EffectRow, intent: Intent, judged: TakeOver, *, withdrawn: bool = False
) -> Made | None:
    """A new attempt of a row as it was read; None where it changed since. After `hold`.

    Of an intent that is not over by the database's clock only where that attempt was `withdrawn`: never called.
    """
    effect = intent.call.effect
    found = await conn.execute(
        t.sql("""
            UPDATE {effect} e
               SET state = 'intended', rule = :rule, fingerprint = :fingerprint, attempt_id = :attempt_id,
                   earlier = (array_prepend(e.attempt_id, e.earlier))[1:CAST(:earlier_max AS int)],
                   attempts = e.attempts + 1, unsure = :unsure, in_doubt = :in_doubt,
                   key_since = coalesce(:key_since, clock_timestamp()), resolution = NULL, ended_at = NULL,
                   external_id = NULL, error = '', probes = 0,
                   deadline = clock_timestamp() + CAST(:deadline_s AS float8) * interval '1 second',
                   due = clock_timestamp() + CAST(:due_s AS float8) * interval '1 second',
                   row_version = e.row_version + 1
             WHERE e.id = :id AND e.row_version = :row_version AND e.state = ANY (CAST(:sources AS text[]))
               AND e.resolution IS DISTINCT FROM 'done'
               AND (e.state <> 'intended' OR e.due <= clock_timestamp() OR :withdrawn)
            RETURNING e.id, e.deadline
        """).bindparams(sa.bindparam("key_since", type_=sa.DateTime(timezone=True))),
        {
            "id": row.id,
            "row_version": row.row_version,
            "rule": rule_name(effect.rule),
            "fingerprint": intent.call.fingerprint,
            "attempt_id": intent.attempt_id,
            "earlier_max": EARLIER_MAX,
            "unsure": judged.unsure,
            "in_doubt": judged.in_doubt,
            "key_since": judged.key_since,
            "deadline_s": effect.deadline_s,
            "due_s": effect.deadline_s + effect.margin_s,
            "withdrawn": withdrawn,
            "sources": sorted(sources(EffectAct.INTEND)),
        },
    )
    changed = found.one_or_none()
    return None if changed is None else Made(*changed)


async def open_after_restore(conn: AsyncConnection, t: Tables, intent: Intent, judged: TakeOver | None) -> Made | None:
    """The row of a call that the database may have forgotten: in doubt with its key, or unknown. After `hold`.

    None where a row stands by now: read it. `Made` of an unknown row means that it is there, not that a call is due.
    """
    effect, owner = intent.call.effect, intent.call.owner
    call_s = 0.0 if judged is None else effect.deadline_s
    due_s = 0.0 if judged is None else effect.deadline_s + effect.margin_s
    now = sa.func.clock_timestamp()
    values: dict[str, Any] = dict(zip(_IDENTITY, _intent_values(intent, {}), strict=False))
    values |= {
        "state": EffectState.UNKNOWN if judged is None else EffectState.INTENDED,
        "in_doubt": True,
        "unsure": 1,
        "key_since": _LONG_AGO if judged is None else judged.key_since,
        "deadline": now + datetime.timedelta(seconds=call_s),
        "due": now + datetime.timedelta(seconds=due_s),
        "ended_at": now if judged is None else None,
        "error": "the database was restored, and may have forgotten a call" if judged is None else "",
        "consumer": "" if owner.origin is None else owner.origin.consumer,
        "event_id": owner.event_id,
        "tenant": _optional(owner.tenant),
        "brand": _optional(owner.brand),
        "correlation_id": indexed_text(owner.correlation_id),
    }
    statement = insert(t.effect).values(values).on_conflict_do_nothing(index_elements=["identity"])
    made = (await conn.execute(statement.returning(t.effect.c.id, t.effect.c.deadline))).one_or_none()
    return None if made is None else Made(*made)


_IDENTITY: Final = (
    *("identity", "scope", "owner", "name", "operation_id", "rule", "provider", "fingerprint", "attempt_id", "key"),
)
"""The columns that come first in an intent's values."""

_LONG_AGO: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
"""Since when a key may have been in use that nobody knows the age of: no service remembers it for certain."""


def _name(text: str) -> str:
    return safe_text(text, NAME_CHARS_MAX)


def _optional(text: str | None) -> str | None:
    return None if text is None else safe_text(text, NAME_CHARS_MAX)
