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
import operator
from collections.abc import Collection, Sequence
from typing import Any, Final, LiteralString, NamedTuple, TypeAlias

import asyncpg
import sqlalchemy as sa
from asyncpg.prepared_stmt import PreparedStatement
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from .columns import NAME_CHARS_MAX
from .effect_judging import TakeOver
from .effect_rows import Call, EffectRow, Owner
from .effect_rules import Effect, rule_name
from .effect_states import EffectAct, EffectState, Resolution, sources
from .errors import OwnershipLost
from .failure_rows import indexed_text
from .json_text import json_text
from .safe_text import safe_text
from .tables import Tables

Driver: TypeAlias = "asyncpg.Connection[Any]"

Statement: TypeAlias = "PreparedStatement[asyncpg.Record]"

EARLIER_MAX: Final = 100
"""Attempts whose late answer still counts as evidence: an answer that is a hundred attempts late does not come."""

GIVEN_UP: Final = b"\0"
"""Stands in `earlier` behind the id of an attempt that was said not to have been done before another one called. An
answer of it is an alarm, so `end_sql` does not find it, and `effect_findings.testify` does.
"""


class Intent(NamedTuple):
    """An attempt that asks to be written down before its call."""

    call: Call
    attempt_id: bytes


class Made(NamedTuple):
    """The intent is durable. `in_doubt`: an earlier call may have been done."""

    effect_id: int
    deadline: datetime.datetime
    in_doubt: bool = False


class Ending(NamedTuple):
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


def intend_sql(t: Tables, *, optimistic: bool) -> str:
    """Write many intents, each under its fence: one statement, one commit. Parameters by `intend`.

    A row that stands already, one whose fence is not ours, and one below the bound of a restored database are left
    out; ordered, so that two groups never wait for each other crosswise. What many intents share is sent once, and what
    was made comes back in one row: numbers, attempts' ids in the same order, and the time behind all of it.

    `optimistic`: a row that stands already is a unique violation, and nothing is written (`optimism`).
    """
    known: LiteralString = "" if optimistic else "ON CONFLICT (identity) DO NOTHING"
    return t.sql(_INTEND.replace("<known>", known)).text


_INTEND: Final[LiteralString] = """
        WITH shared AS MATERIALIZED (
          SELECT s.*, (SELECT r.until_offset FROM {restored} r
                        WHERE r.consumer = s.consumer AND r.topic = s.origin_topic
                          AND r.partition = s.origin_partition) AS restored_below
            FROM jsonb_to_recordset($1::jsonb)
            s (no int, scope text, owner text, name text, rule text, provider text, deadline_s float8, due_s float8,
               tenant text, brand text, consumer text, origin_topic text, origin_partition int, topic text,
               partition int, epoch bigint)),
        held AS (
          SELECT s.no FROM (SELECT * FROM shared ORDER BY consumer, topic, partition OFFSET 0) s
           CROSS JOIN LATERAL
                 (SELECT true FROM {fence} f
                   WHERE f.consumer = s.consumer AND f.topic = s.topic AND f.partition = s.partition
                     AND f.epoch = s.epoch AND f.wanted IS NULL LIMIT 1 FOR KEY SHARE) f),
        asked AS (
          SELECT ($2->>(5 * i))::int AS no, $2->>(5 * i + 1) AS operation_id, $2->>(5 * i + 2) AS correlation_id,
                 $2->>(5 * i + 3) AS key, ($2->>(5 * i + 4))::bigint AS origin_offset,
                 substring($3::bytea FROM 64 * i + 1 FOR 16) AS identity,
                 substring($3::bytea FROM 64 * i + 17 FOR 16) AS fingerprint,
                 substring($3::bytea FROM 64 * i + 33 FOR 16) AS attempt_id,
                 substring($3::bytea FROM 64 * i + 49 FOR 16) AS event_id
            FROM generate_series(0, jsonb_array_length($2::jsonb) / 5 - 1) i),
        made AS (
          INSERT INTO {effect} (identity, scope, owner, name, operation_id, state, rule, provider, fingerprint,
                                attempt_id, key, deadline, due, consumer, event_id, tenant, brand, correlation_id)
          SELECT a.identity, s.scope, s.owner, s.name, a.operation_id, 'intended', s.rule, s.provider, a.fingerprint,
                 a.attempt_id, a.key, clock_timestamp() + s.deadline_s * interval '1 second',
                 clock_timestamp() + s.due_s * interval '1 second', s.consumer, nullif(a.event_id, $4::bytea),
                 s.tenant, s.brand, a.correlation_id
            FROM asked a JOIN shared s ON s.no = a.no
           WHERE (s.epoch IS NULL OR s.no IN (SELECT no FROM held))
             AND (a.origin_offset < s.restored_below) IS NOT TRUE
           ORDER BY a.identity
          <known> RETURNING id, attempt_id)
        SELECT array_agg(id), string_agg(attempt_id, ''::bytea), clock_timestamp() FROM made
"""


async def intend(statement: Statement, intents: Sequence[Intent]) -> list[Made | None]:
    """Run `intend_sql` for `intents`; None for each that was left out.

    Texts and numbers of all of them go in one JSON list, ids of 16 bytes in one string: the driver looks at each member
    of an array, which costs more than the rest of the statement.
    """
    shared: dict[tuple[int, int], int] = {}
    kinds: list[dict[str, Any]] = []
    texts: list[str | int | None] = []
    ids: list[bytes] = []
    for call, attempt_id in intents:
        effect, owner, operation_id, fingerprint, identity, key, correlation_id, event = call
        kind = (id(effect), id(owner))
        no = shared.get(kind)
        if no is None:
            no = shared[kind] = len(kinds)
            kinds.append(_shared_values(no, effect, owner))
        offset, event_id = (None, NO_EVENT) if event is None else (event.record.offset, event.event_id)
        operation = indexed_text(operation_id)
        correlation = operation if correlation_id == operation_id else indexed_text(correlation_id)
        texts += (no, operation, correlation, key, offset)
        ids += (identity, fingerprint, attempt_id, event_id)
    (row,) = await statement.fetch(json_text(kinds), json_text(texts), b"".join(ids), NO_EVENT)
    numbers, attempts, now = row
    made: dict[bytes, int] = dict(zip(_ids_in(attempts), numbers or (), strict=True))
    seconds = {call.effect.deadline_s for call, _ in intents}
    deadlines = {deadline_s: now + datetime.timedelta(seconds=deadline_s) for deadline_s in seconds}
    return [
        Made(made[attempt_id], deadlines[call.effect.deadline_s]) if attempt_id in made else None
        for call, attempt_id in intents
    ]


def _ids_in(packed: bytes | None) -> list[bytes]:
    """Ids of 16 bytes that came back as one string; None where none did."""
    return [] if packed is None else [packed[at : at + 16] for at in range(0, len(packed), 16)]


NO_EVENT: Final = b"\0" * 16
"""Stands for no event while a group is on its way: no digest is that."""


def _shared_values(no: int, effect: Effect, owner: Owner) -> dict[str, Any]:
    home, origin = owner.home, owner.origin
    return {
        "no": no,
        "scope": _name(owner.scope),
        "owner": _name(owner.name),
        "name": effect.name,
        "rule": rule_name(effect.rule),
        "provider": _name(effect.provider),
        "deadline_s": effect.deadline_s,
        "due_s": effect.deadline_s + effect.margin_s,
        "tenant": _optional(owner.tenant),
        "brand": _optional(owner.brand),
        "consumer": home.consumer if home is not None else origin.consumer if origin is not None else "",
        "origin_topic": None if origin is None else origin.partition.topic,
        "origin_partition": None if origin is None else origin.partition.number,
        "topic": None if home is None else home.partition.topic,
        "partition": None if home is None else home.partition.number,
        "epoch": None if home is None else home.epoch,
    }


def end_sql(t: Tables) -> str:
    """Write down how many attempts ended: one statement, one commit. Parameters by `end`.

    Evidence of any attempt counts, unless the result is known or somebody resolved the row; what is less than evidence
    counts of the attempt that is the present one.
    """
    return t.sql("""
        WITH written AS (
        UPDATE {effect} e
           SET state = CASE WHEN u.state = 'failed' AND e.in_doubt THEN 'unknown' ELSE u.state END,
               ended_at = clock_timestamp(), result = CAST(u.result AS jsonb), external_id = u.external_id,
               error = u.error, unsure = CASE u.state WHEN 'unknown' THEN greatest(e.unsure, 1) ELSE e.unsure END,
               row_version = e.row_version + 1
          FROM (SELECT ($1->>(5 * i))::bigint AS id, $1->>(5 * i + 1) AS state, $1->>(5 * i + 2) AS result,
                       $1->>(5 * i + 3) AS external_id, $1->>(5 * i + 4) AS error,
                       substring($2::bytea FROM 16 * i + 1 FOR 16) AS attempt_id
                  FROM generate_series(0, jsonb_array_length($1::jsonb) / 5 - 1) i) u
         WHERE e.id = u.id
           AND CASE u.state WHEN 'completed' THEN e.state IN ('intended', 'failed', 'unknown')
                                              AND (e.attempt_id = u.attempt_id OR u.attempt_id = ANY (e.earlier))
                            ELSE e.state = 'intended' AND e.attempt_id = u.attempt_id END
        RETURNING u.attempt_id)
        SELECT string_agg(attempt_id, ''::bytea) FROM written
    """).text


async def end(statement: Statement, endings: Sequence[Ending]) -> list[bool]:
    """Run `end_sql`; False for each that changed nothing: evidence of that kind goes to `testify`."""
    texts: list[str | int | None] = []
    ids: list[bytes] = []
    for effect_id, attempt_id, state, result, external_id, error, _ in sorted(endings, key=_effect_id):
        texts += (effect_id, state, result, external_id, error)
        ids.append(attempt_id)
    ((packed,),) = await statement.fetch(json_text(texts), b"".join(ids))
    written = set(_ids_in(packed))
    return [ending.attempt_id in written for ending in endings]


_effect_id: Final = operator.itemgetter(0)
"""Of an ending: rows are locked in one order."""


# -------------------------------------------------------------------------------------------------- one row at a time

_READ: Final = (
    *("id", "state", "rule", "fingerprint", "attempt_id", "attempts", "unsure", "in_doubt", "key", "key_no"),
    *("key_since", "intended_at", "deadline", "due", "ended_at", "external_id", "result", "error", "resolution"),
    *("probes", "row_version", "name", "operation_id", "tenant", "brand", "correlation_id"),
)


async def find(conn: AsyncConnection, t: Tables, call: Call) -> tuple[EffectRow | None, datetime.datetime, bool]:
    """What is known of `call`, the database's time, and whether the database may have forgotten about it; no lock."""
    place, event, restored_at = call.owner.origin, call.event, None
    now: datetime.datetime = await conn.scalar(sa.text("SELECT clock_timestamp()"))
    if place is not None and event is not None:
        restored_at = await conn.scalar(
            t.sql("""
                SELECT declared_at FROM {restored} WHERE consumer = :consumer AND topic = :topic
                   AND partition = :partition AND :offset < until_offset
            """),
            {
                "consumer": place.consumer,
                "topic": place.partition.topic,
                "partition": place.partition.number,
                "offset": event.offset,
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


async def first_open(conn: AsyncConnection, t: Tables, effect_ids: Collection[int]) -> int | None:
    """The first of these of which nobody knows yet whether it was done; no lock."""
    e = t.effect.c
    is_open = e.state.in_([EffectState.INTENDED.value, EffectState.UNKNOWN.value])
    found: int | None = await conn.scalar(sa.select(sa.func.min(e.id)).where(e.id.in_(sorted(effect_ids)), is_open))
    return found


async def read_all(conn: AsyncConnection, t: Tables, effect_ids: Collection[int]) -> dict[int, EffectRow]:
    """The same of many; one that is gone is left out."""
    now = await conn.scalar(sa.text("SELECT clock_timestamp()"))
    rows = (await conn.execute(_reading(t).where(t.effect.c.id.in_(sorted(effect_ids))))).mappings()
    return {row["id"]: _row(row, now, None) for row in rows}


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
                   earlier = (ARRAY(SELECT CASE WHEN :in_doubt AND e.resolution IS NULL THEN a
                                                ELSE substring(a FROM 1 FOR 16) || :given_up END
                                      FROM unnest(array_prepend(e.attempt_id, e.earlier)) a)
                             )[1:CAST(:earlier_max AS int)],
                   attempts = e.attempts + 1, unsure = :unsure, in_doubt = :in_doubt,
                   key_since = coalesce(:key_since, clock_timestamp()), resolution = NULL, ended_at = NULL,
                   external_id = NULL, error = '', probes = 0,
                   deadline = clock_timestamp() + CAST(:deadline_s AS float8) * interval '1 second',
                   due = clock_timestamp() + CAST(:due_s AS float8) * interval '1 second',
                   row_version = e.row_version + 1
             WHERE e.id = :id AND e.row_version = :row_version AND e.state = ANY (CAST(:sources AS text[]))
               AND e.resolution IS DISTINCT FROM 'done'
               AND (e.state <> 'intended' OR e.due <= clock_timestamp() OR :withdrawn)
            RETURNING e.id, e.deadline, e.in_doubt
        """).bindparams(
            sa.bindparam("key_since", type_=sa.DateTime(timezone=True)),
            sa.bindparam("given_up", type_=sa.LargeBinary()),
        ),
        {
            "id": row.id,
            "row_version": row.row_version,
            "rule": rule_name(effect.rule),
            "fingerprint": intent.call.fingerprint,
            "attempt_id": intent.attempt_id,
            "earlier_max": EARLIER_MAX,
            "given_up": GIVEN_UP,
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
    effect, owner, event = intent.call.effect, intent.call.owner, intent.call.event
    call_s = 0.0 if judged is None else effect.deadline_s
    due_s = 0.0 if judged is None else effect.deadline_s + effect.margin_s
    now = sa.func.clock_timestamp()
    values = {
        "identity": intent.call.identity,
        "scope": _name(owner.scope),
        "owner": _name(owner.name),
        "name": effect.name,
        "operation_id": indexed_text(intent.call.operation_id),
        "rule": rule_name(effect.rule),
        "provider": _name(effect.provider),
        "fingerprint": intent.call.fingerprint,
        "attempt_id": intent.attempt_id,
        "key": intent.call.key,
        "state": EffectState.UNKNOWN if judged is None else EffectState.INTENDED,
        "in_doubt": True,
        "unsure": 1,
        "key_since": _LONG_AGO if judged is None else judged.key_since,
        "deadline": now + datetime.timedelta(seconds=call_s),
        "due": now + datetime.timedelta(seconds=due_s),
        "ended_at": now if judged is None else None,
        "error": "the database was restored, and may have forgotten a call" if judged is None else "",
        "consumer": "" if owner.origin is None else owner.origin.consumer,
        "event_id": None if event is None else event.event_id,
        "tenant": _optional(owner.tenant),
        "brand": _optional(owner.brand),
        "correlation_id": indexed_text(intent.call.correlation_id),
    }
    statement = insert(t.effect).values(values).on_conflict_do_nothing(index_elements=["identity"])
    returned = (t.effect.c.id, t.effect.c.deadline, t.effect.c.in_doubt)
    made = (await conn.execute(statement.returning(*returned))).one_or_none()
    return None if made is None else Made(*made)


_LONG_AGO: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
"""Since when a key may have been in use that nobody knows the age of: no service remembers it for certain."""


def _name(text: str) -> str:
    return safe_text(text, NAME_CHARS_MAX)


def _optional(text: str | None) -> str | None:
    return None if text is None else safe_text(text, NAME_CHARS_MAX)
