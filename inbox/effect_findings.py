"""What is found out about effects behind their calls: doubts, probes' answers, a person's word, late testimony.

Each changes one row, by `row_version` or under its lock, and says nothing about the event behind it: that is the
failure table's business. Effect rows are locked alone, or with the failure row that waits for them, behind it (lock
order 6).
"""

from __future__ import annotations

import datetime
import enum
from dataclasses import dataclass
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from . import audit
from .audit import AuditLine
from .effect_rows import EffectRow, next_key
from .effect_states import EffectAct, EffectState, Resolution, sources
from .effects import GIVEN_UP, Ending
from .safe_text import Detail
from .tables import Tables

ACTOR: Final = "tidegate"
"""Who writes the audit lines of what no person did."""


async def doubt(conn: AsyncConnection, t: Tables, row: EffectRow, why: str) -> bool:
    """Nobody knows how the call ended; False where the row changed since it was read."""
    changed = await conn.execute(
        t.sql("""
            UPDATE {effect} SET state = 'unknown', resolution = NULL, in_doubt = true, error = :why,
                   unsure = greatest(unsure, 1), ended_at = clock_timestamp(), row_version = row_version + 1
             WHERE id = :id AND row_version = :row_version AND state = ANY (CAST(:sources AS text[]))
               AND resolution IS DISTINCT FROM 'done'
        """),
        {"id": row.id, "row_version": row.row_version, "why": why, "sources": sorted(sources(EffectAct.DOUBT))},
    )
    return changed.rowcount == 1


async def postpone(
    conn: AsyncConnection, t: Tables, row: EffectRow, after_s: float, why: str
) -> datetime.datetime | None:
    """A probe could not tell: when to ask again; None where the row changed since it was read."""
    due: datetime.datetime | None = await conn.scalar(
        t.sql("""
            UPDATE {effect} SET state = 'unknown', in_doubt = true, probes = probes + 1, error = :why,
                   unsure = greatest(unsure, 1), ended_at = coalesce(ended_at, clock_timestamp()),
                   due = clock_timestamp() + CAST(:after_s AS float8) * interval '1 second',
                   row_version = row_version + 1
             WHERE id = :id AND row_version = :row_version AND state IN ('intended', 'unknown')
            RETURNING due
        """),
        {"id": row.id, "row_version": row.row_version, "after_s": after_s, "why": why},
    )
    return due


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe or a person found. `result` is JSON as text; `new_key` goes with `not_done` only."""

    resolution: Resolution
    result: str | None = None
    external_id: str | None = None
    new_key: bool = False


async def resolve(conn: AsyncConnection, t: Tables, row: EffectRow, finding: Finding) -> bool:
    """Write down what a person says; False where the row changed since it was read, or a call may still be under way.

    The caller writes the audit line and lets the event behind it run again, so that claim and outbox are written.
    """
    return await _resolve(conn, t, row, finding, unsure=0)


async def resolve_probed(conn: AsyncConnection, t: Tables, row: EffectRow, finding: Finding, events: int = 0) -> bool:
    """The same for what a probe found, with its audit line; `events` run again because of it.

    A call that was found not done stays counted, as where an attempt asks by itself: a service that never answers and
    never does it has to end with a person, whoever asks.
    """
    unsure = row.unsure + 1 if finding.resolution is Resolution.NOT_DONE else 0
    if not await _resolve(conn, t, row, finding, unsure=unsure):
        return False
    await note_probe(conn, t, row, finding, events)
    return True


async def note_probe(conn: AsyncConnection, t: Tables, row: EffectRow, finding: Finding, events: int = 0) -> None:
    """Lock order 7: the audit line of what a probe found, for the transaction that acts on it."""
    found = await conn.execute(t.sql("SELECT owner, consumer, event_id FROM {effect} WHERE id = :id"), {"id": row.id})
    whose = found.one()
    details: dict[str, Detail] = {
        "effect_id": row.id,
        "effect": row.name,
        "found": finding.resolution.value,
        "external_id": finding.external_id,
        "events": events,
    }
    line = AuditLine(
        act="effect_probed",
        actor=ACTOR,
        consumer=whose.consumer,
        handler=whose.owner,
        event_id=whose.event_id,
        correlation_id=row.correlation_id,
        operation_id=row.operation_id,
        tenant=row.tenant,
        brand=row.brand,
        details=details,
    )
    await audit.write(conn, t, line)


async def _resolve(conn: AsyncConnection, t: Tables, row: EffectRow, finding: Finding, *, unsure: int) -> bool:
    new_key = finding.new_key and finding.resolution is Resolution.NOT_DONE
    changed = await conn.execute(
        t.sql("""
            UPDATE {effect} SET state = 'resolved', resolution = :resolution, result = CAST(:result AS jsonb),
                   external_id = :external_id, error = '', in_doubt = false, unsure = :unsure, probes = 0,
                   ended_at = clock_timestamp(), key = :key, key_no = key_no + :more, row_version = row_version + 1
             WHERE id = :id AND row_version = :row_version AND state = ANY (CAST(:sources AS text[]))
               AND (state <> 'intended' OR due <= clock_timestamp())
        """).bindparams(sa.bindparam("result", type_=sa.Text()), sa.bindparam("external_id", type_=sa.Text())),
        {
            "id": row.id,
            "row_version": row.row_version,
            "resolution": finding.resolution.value,
            "result": finding.result,
            "external_id": finding.external_id,
            "unsure": unsure,
            "key": next_key(row.key) if new_key else row.key,
            "more": int(new_key),
            "sources": sorted(sources(EffectAct.RESOLVE)),
        },
    )
    return changed.rowcount == 1


class Testimony(enum.Enum):
    """What evidence says that came when the row was closed already."""

    __test__ = False

    AGREES = "agrees"
    """It says what is known."""
    TWICE = "effect_done_twice"
    """Another external id, or a second call that was answered where the key does not make the two one."""
    AFTER_ALL = "effect_done_after_all"
    """Somebody had said that it was not done, or not wanted; another call may have been made because of that."""
    UNHEARD = "unheard"
    """The row is gone, or does not know the attempt."""


async def testify(conn: AsyncConnection, t: Tables, ending: Ending) -> Testimony:
    """Take the evidence of an attempt that was given up, or whose row was closed by another one, a probe or a person.

    Alarms are audited.
    """
    found = await conn.execute(
        t.sql("""
            SELECT state, resolution, external_id, owner, consumer, event_id, tenant, brand, operation_id,
                   correlation_id, name, :given_up = ANY (earlier) AS given_up FROM {effect}
             WHERE id = :id AND (attempt_id = :attempt_id OR :attempt_id = ANY (earlier) OR :given_up = ANY (earlier))
               FOR NO KEY UPDATE
        """),
        {
            "id": ending.effect_id,
            "attempt_id": ending.attempt_id,
            "given_up": ending.attempt_id + GIVEN_UP,
        },
    )
    row = found.one_or_none()
    if row is None:
        return Testimony.UNHEARD
    said = _said(row, ending)
    if said is not Testimony.TWICE:
        await _complete(conn, t, ending, known=row.state == EffectState.COMPLETED or row.resolution == Resolution.DONE)
    else:
        await _note_second(conn, t, ending)
    if row.given_up:
        await _heard(conn, t, ending, alone=row.state != EffectState.COMPLETED)
    if said is not Testimony.AGREES:
        await audit.write(conn, t, _alarm(row, ending, said))
    return said


def _said(row: sa.Row[Any], ending: Ending) -> Testimony:
    if row.resolution in (Resolution.NOT_DONE, Resolution.DISCARDED):
        return Testimony.AFTER_ALL
    if row.external_id is not None and ending.external_id is not None:
        return Testimony.AGREES if row.external_id == ending.external_id else Testimony.TWICE
    if row.given_up:
        return Testimony.TWICE if row.state == EffectState.COMPLETED else Testimony.AFTER_ALL
    return Testimony.AGREES


async def _complete(conn: AsyncConnection, t: Tables, ending: Ending, *, known: bool) -> None:
    """What is known stays; what was missing is filled in."""
    await conn.execute(
        t.sql("""
            UPDATE {effect}
               SET state = CASE WHEN :known THEN state ELSE 'completed' END,
                   resolution = CASE WHEN :known THEN resolution END,
                   ended_at = coalesce(ended_at, clock_timestamp()),
                   external_id = coalesce(external_id, :external_id),
                   result = coalesce(result, CAST(:result AS jsonb)),
                   error = CASE WHEN :known THEN error ELSE :error END, row_version = row_version + 1
             WHERE id = :id
        """).bindparams(sa.bindparam("result", type_=sa.Text()), sa.bindparam("external_id", type_=sa.Text())),
        {
            "id": ending.effect_id,
            "known": known,
            "external_id": ending.external_id,
            "result": ending.result,
            "error": ending.error,
        },
    )


async def _heard(conn: AsyncConnection, t: Tables, ending: Ending, *, alone: bool) -> None:
    """An attempt that was given up has answered: said again, it says nothing new.

    `alone`: it is the first one that did. Whoever else called did so because nobody knew: another answer is one too
    many.
    """
    await conn.execute(
        t.sql("""
            UPDATE {effect} e
               SET earlier = ARRAY(SELECT CASE WHEN substring(a FROM 1 FOR 16) = :attempt_id THEN :attempt_id
                                               WHEN :alone THEN substring(a FROM 1 FOR 16) || :mark ELSE a END
                                     FROM unnest(CASE WHEN :alone THEN array_prepend(e.attempt_id, e.earlier)
                                                      ELSE e.earlier END) a),
                   row_version = e.row_version + 1
             WHERE e.id = :id
        """).bindparams(
            sa.bindparam("attempt_id", type_=sa.LargeBinary()), sa.bindparam("mark", type_=sa.LargeBinary())
        ),
        {"id": ending.effect_id, "attempt_id": ending.attempt_id, "alone": alone, "mark": GIVEN_UP},
    )


async def _note_second(conn: AsyncConnection, t: Tables, ending: Ending) -> None:
    await conn.execute(
        t.sql("""
            UPDATE {effect} SET second_external_id = coalesce(second_external_id, :external_id),
                   row_version = row_version + 1 WHERE id = :id
        """),
        {"id": ending.effect_id, "external_id": ending.external_id},
    )


def _alarm(row: sa.Row[Any], ending: Ending, said: Testimony) -> AuditLine:
    return AuditLine(
        act=said.value,
        actor=ACTOR,
        consumer=row.consumer,
        handler=row.owner,
        event_id=row.event_id,
        correlation_id=row.correlation_id,
        operation_id=row.operation_id,
        tenant=row.tenant,
        brand=row.brand,
        details={
            "effect_id": ending.effect_id,
            "effect": row.name,
            "external_id": row.external_id,
            "second_external_id": ending.external_id,
        },
    )
