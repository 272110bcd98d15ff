"""The failure table: the queue of the slow way, of which each row is unique by its position.

Puts draw a place in the lane under the lock of its `parked_key` row, so that nothing overtakes (see `lanes`). Whatever
is done to a row names the version that it was read at; a row that changed meanwhile does not come back. An act locks
the lanes of its rows itself, unless the caller did that before it claimed and hands over what it locked.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, LiteralString, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from .arrays import Typed, arrays, insert_text
from .failure_rows import NewFailure, Verdict, headers_bytes
from .lanes import Change, Locked, Places, Seen, keep, lane_of, needs_place
from .lanes import draw_places as draw_places
from .lanes import lock_lanes as lock_lanes
from .outcome import FailureState
from .picking import ANY_COUNT as ANY_COUNT
from .picking import pick as pick
from .states import Act, sources
from .tables import Tables


class Put(NamedTuple):
    """A row that stands in the table; `created` is False where the same position was there before (a redelivery)."""

    id: int
    created: bool


async def put(conn: AsyncConnection, t: Tables, rows: Sequence[NewFailure], places: Places | None = None) -> list[Put]:
    """Lock order 6: put `rows`; those of one lane come in its order. The answer is in the order of `rows`.

    Without `places` they are drawn here, which is lock order 2: right only where nothing was claimed before.
    """
    if not rows:
        return []
    if places is None:
        places = await draw_places(conn, t, rows)
    seqs = list(seqs_of(rows, places))
    values = [values_of(*pair) for pair in zip(rows, seqs, strict=True)]
    created = (await conn.execute(t.sql(_PUT), arrays(COLUMNS, values))).all()
    ids = {tuple(row[1:]): row[0] for row in created}
    there = await _ids_by_position(conn, t, [row for row in rows if row.position not in ids])
    seen: set[tuple[Any, ...]] = set()
    answer: list[Put] = []
    changes: list[Change] = []
    for row, seq in zip(rows, seqs, strict=True):
        created_now = row.position in ids and row.position not in seen
        answer.append(Put(ids[row.position] if row.position in ids else there[row.position], created_now))
        seen.add(row.position)
        if created_now and needs_place(row):
            changes.append(Change(lane_of(row), seq, waited=False, waits=row.waits))
    await keep(conn, t, changes)
    return answer


async def adopt(
    conn: AsyncConnection, t: Tables, rows: Sequence[NewFailure], places: Places
) -> dict[tuple[int, int, bytes], int]:
    """Lock order 6: put rows of letters, each unique by (handler, version, event id). Gives the ids of the new ones."""
    if not rows:
        return {}
    seqs = list(seqs_of(rows, places))
    values = [values_of(*pair) for pair in zip(rows, seqs, strict=True)]
    created = await conn.execute(t.sql(_ADOPT), arrays(COLUMNS, values))
    ids = {(row[1], row[2], row[3]): row[0] for row in created}
    pairs = zip(rows, seqs, strict=True)
    here = [(row, seq) for row, seq in pairs if (row.handler, row.version, row.event_id) in ids and needs_place(row)]
    await keep(conn, t, [Change(lane_of(row), seq, waited=False, waits=row.waits) for row, seq in here])
    return ids


def seqs_of(rows: Sequence[NewFailure], places: Places) -> Iterator[int]:
    """Each row's place in its lane, out of those that were drawn."""
    following = dict(places)
    for row in rows:
        if needs_place(row):
            yield following[lane_of(row)]
            following[lane_of(row)] += 1
        else:
            yield 1


_POSITION: Final = ("handler", "version", "topic", "incarnation", "partition", "record_offset")

TYPED: Final[tuple[Typed, ...]] = (
    *(("origin", "text"), ("handler", "bigint"), ("version", "int"), ("topic", "text"), ("incarnation", "bigint")),
    *(("partition", "int"), ("record_offset", "bigint"), ("home_topic", "text"), ("home_partition", "int")),
    *(("event_id", "bytea"), ("payload_hash8", "bigint"), ("lane", "bytea"), ("alone", "boolean")),
    *(("holds", "boolean"), ("seq", "bigint"), ("state", "text"), ("due", "timestamptz"), ("duplicate_of", "bigint")),
    *(("reason", "text"), ("message", "text"), ("exception_type", "text"), ("stack_digest", "text")),
    *(("attempts", "bigint"), ("class_attempts", "bigint"), ("retrying_since", "timestamptz")),
    *(("effect_id", "bigint"), ("first_failed_at", "timestamptz"), ("last_failed_at", "timestamptz")),
    *(("id_text", "text"), ("type", "text"), ("tenant", "text"), ("brand", "text"), ("correlation_id", "text")),
    *(("operation_id", "text"), ("schema_id", "bigint"), ("key", "bytea"), ("value", "bytea"), ("headers", "bytea")),
    *(("timestamp_ms", "bigint"), ("timestamp_type", "int"), ("replay_count", "bigint")),
)
COLUMNS: Final = tuple(name for name, _ in TYPED)


def values_of(row: NewFailure, seq: int) -> tuple[Any, ...]:
    """A row's values in the order of `COLUMNS`."""
    return (
        *(row.origin, *row.position, *row.home, row.event_id, row.payload_hash8, row.lane, row.alone, row.holds),
        *(seq, row.state.value, row.due, row.duplicate_of, *row.verdict, row.attempts),
        *(row.class_attempts, row.retrying_since, row.effect_id, row.first_failed_at, row.last_failed_at, row.id_text),
        *(row.type, row.tenant, row.brand, row.correlation_id, row.operation_id, row.schema_id, row.key, row.value),
        *(headers_bytes(row), row.timestamp_ms, row.timestamp_type, row.replay_count),
    )


_INSERT: Final[LiteralString] = insert_text("{failure}", TYPED)

_PUT: Final[LiteralString] = f"""{_INSERT}
    ON CONFLICT (handler, version, topic, incarnation, partition, record_offset) WHERE origin = 'event' DO NOTHING
    RETURNING id, handler, version, topic, incarnation, partition, record_offset
"""

_ADOPT: Final[LiteralString] = f"{_INSERT} ON CONFLICT DO NOTHING RETURNING id, handler, version, event_id"


async def _ids_by_position(conn: AsyncConnection, t: Tables, rows: Sequence[NewFailure]) -> dict[tuple[Any, ...], int]:
    """In a statement of its own: the insert did not see what another transaction had just committed."""
    if not rows:
        return {}
    found = await conn.execute(
        t.sql("""
            SELECT f.id, f.handler, f.version, f.topic, f.incarnation, f.partition, f.record_offset
              FROM unnest(CAST(:handler AS bigint[]), CAST(:version AS int[]), CAST(:topic AS text[]),
                          CAST(:incarnation AS bigint[]), CAST(:partition AS int[]), CAST(:record_offset AS bigint[]))
                   u (handler, version, topic, incarnation, partition, record_offset)
              JOIN {failure} f USING (handler, version, topic, incarnation, partition, record_offset)
             WHERE f.origin = 'event'
        """),
        arrays(_POSITION, [row.position for row in rows]),
    )
    return {tuple(row[1:]): row[0] for row in found}


async def link(conn: AsyncConnection, t: Tables, rows: Sequence[NewFailure]) -> list[Put | None]:
    """Lock order 6: put rows made by `linked`; the originals cannot go before this transaction ends.

    None where the original is gone: it has a claim now, so this is a plain duplicate.
    """
    originals = await conn.execute(
        t.sql("SELECT id FROM {failure} WHERE id = ANY (CAST(:ids AS bigint[])) ORDER BY id FOR KEY SHARE"),
        {"ids": sorted({row.duplicate_of for row in rows if row.duplicate_of is not None})},
    )
    there = frozenset(originals.scalars())
    standing = [row for row in rows if row.duplicate_of in there]
    puts = iter(await put(conn, t, standing, {}))
    return [next(puts) if row.duplicate_of in there else None for row in rows]


# ---------------------------------------------------------------------------------------------------------------- acts


async def complete(
    conn: AsyncConnection, t: Tables, rows: Collection[Seen], locked: Locked | None = None
) -> frozenset[int]:
    """Lock order 2 and 6: these rows are done, their claims are written in this transaction; linked rows end with them.

    With the last row of its lane the key is free. A row that does not come back was changed or discarded meanwhile: its
    claim stands all the same, with an audit line.
    """
    taken = _sources(Act.COMPLETE) - {FailureState.LINKED.value}
    return await _act(conn, t, rows, locked, _DELETE, {"sources": sorted(taken)})


async def bury(
    conn: AsyncConnection,
    t: Tables,
    row: Seen,
    verdict: Verdict,
    *,
    attempts: int,
    now: datetime.datetime,
    holds: bool = False,
    locked: Locked | None = None,
) -> bool:
    """Lock order 2 and 6: a queued row is dead (again). False: it was changed meanwhile.

    `holds`: its lane waits until a person has decided; otherwise the next row of the lane may be taken up.
    """
    values = {**_failed(Act.FAIL, verdict, attempts, now), "holds": holds}
    return bool(await _act(conn, t, [row], locked, _BURY, values))


async def review(
    conn: AsyncConnection,
    t: Tables,
    row: Seen,
    verdict: Verdict,
    *,
    attempts: int,
    now: datetime.datetime,
    effect_id: int | None = None,
    locked: Locked | None = None,
) -> bool:
    """Lock order 2 and 6: a queued row's outcome is a person's to decide. False: it was changed meanwhile."""
    values = {**_failed(Act.REVIEW, verdict, attempts, now), "effect_id": effect_id}
    return bool(await _act(conn, t, [row], locked, _REVIEW, values))


async def postpone(
    conn: AsyncConnection,
    t: Tables,
    row: Seen,
    verdict: Verdict,
    *,
    due: datetime.datetime,
    attempts: int,
    now: datetime.datetime,
    class_attempts: int = 0,
    retrying_since: datetime.datetime | None = None,
    effect_id: int | None = None,
    locked: Locked | None = None,
) -> bool:
    """Lock order 2 and 6: a queued row is tried again, not before `due`. False: it was changed meanwhile.

    `class_attempts` of its `attempts` ended with one class of exception, the first of them at `retrying_since`.
    """
    values = {
        **_failed(Act.RETRY, verdict, attempts, now),
        "due": due,
        "class_attempts": class_attempts,
        "retrying_since": retrying_since,
        "effect_id": effect_id,
    }
    return bool(await _act(conn, t, [row], locked, _POSTPONE, values))


async def requeue(
    conn: AsyncConnection,
    t: Tables,
    rows: Collection[Seen],
    due: datetime.datetime,
    act: Act = Act.REPLAY,
    locked: Locked | None = None,
) -> frozenset[int]:
    """Lock order 2 and 6: put dead rows (`Act.RESOLVE`: unknown ones) back into the queue, at their old place.

    A row that does not come back was changed meanwhile. `replay_count` grows: the next letter of it has another id. The
    retries within their bounds start anew.
    """
    return await _act(conn, t, rows, locked, _REQUEUE, {"sources": sorted(_sources(act)), "due": due})


async def discard(
    conn: AsyncConnection, t: Tables, rows: Collection[Seen], locked: Locked | None = None
) -> frozenset[int]:
    """Lock order 2 and 6: these are never run again; they stay and answer probes like claims."""
    return await _act(conn, t, rows, locked, _DISCARD, {"sources": sorted(_sources(Act.DISCARD))})


async def send(conn: AsyncConnection, t: Tables, rows: Collection[Seen]) -> frozenset[int]:
    """Lock order 2 and 6: dead rows go, because their records go to the source topic in this transaction.

    Rows that are linked to them go too: whoever reads the record again learns of the event by its id.
    """
    return await _act(conn, t, rows, None, _DELETE, {"sources": sorted(_sources(Act.SEND))})


def _failed(act: Act, verdict: Verdict, attempts: int, now: datetime.datetime) -> dict[str, Any]:
    return {"sources": sorted(_sources(act)), **verdict.safe()._asdict(), "attempts": attempts, "now": now}


def _sources(act: Act) -> frozenset[str]:
    return frozenset(state.value for state in sources(act))


class _Change(NamedTuple):
    """What a statement does to rows, and whether they hold their lanes afterwards (None: as `holds` says)."""

    sets: LiteralString | None
    """None: the rows go."""
    waits: bool | None


_FAILED: Final = """
    reason = :reason, message = :message, exception_type = :exception_type, stack_digest = :stack_digest,
    attempts = :attempts, last_failed_at = greatest(f.first_failed_at, :now)
"""

_DELETE: Final = _Change(None, waits=False)
_BURY: Final = _Change("state = 'dead', due = NULL, holds = :holds, effect_id = NULL," + _FAILED, waits=None)
_REVIEW: Final = _Change("state = 'unknown', due = NULL, effect_id = :effect_id," + _FAILED, waits=True)
_POSTPONE: Final = _Change(
    "due = :due, class_attempts = :class_attempts, retrying_since = :retrying_since, effect_id = :effect_id," + _FAILED,
    waits=True,
)
_REQUEUE: Final = _Change(
    "state = 'queued', due = :due, holds = false, replay_count = f.replay_count + 1, class_attempts = 0,"
    " retrying_since = NULL",
    waits=True,
)
_DISCARD: Final = _Change("state = 'discarded', due = NULL, holds = false", waits=False)


def _statement(change: _Change) -> LiteralString:
    # One look-up by the key for each row, in the order of the ids, whatever the planner's statistics say of states: a
    # join might read the whole table for a thousand of its rows. What stands twice in it keeps its estimate at a row.
    # Once it is locked a row stays where it is, and is changed at its place, without a second look-up.
    mine = """
        WITH mine AS (
          SELECT f.at, f.waited FROM unnest(CAST(:ids AS bigint[]), CAST(:row_versions AS bigint[])) u (id, row_version)
           CROSS JOIN LATERAL (
                 SELECT ctid AS at, id, row_version, state IN ('queued', 'unknown') OR holds AS waited FROM {failure}
                  WHERE id = u.id AND row_version = u.row_version AND (state = ANY (CAST(:sources AS text[]))) IS TRUE
                  LIMIT 1 FOR UPDATE) f
           WHERE f.id = u.id AND f.row_version = u.row_version)
    """
    returned = "WHERE f.ctid = mine.at RETURNING f.id, f.alone, f.handler, f.topic, f.lane, f.seq, mine.waited)"
    changed = ", changed AS (UPDATE {failure} f SET row_version = f.row_version + 1,"
    if change.sets is None:
        return " ".join((mine, ", changed AS (DELETE FROM {failure} f USING mine", returned, _CHANGED))
    return " ".join((mine, changed, change.sets, "FROM mine", returned, _CHANGED))


# Rows that are alone come as one: they are many at once, and nothing is done to lanes for them.
_CHANGED: Final = """
    SELECT array_agg(id) AS ids, NULL::bigint AS handler, NULL::text AS topic, NULL::bytea AS lane, NULL::bigint AS seq,
           NULL::boolean AS waited FROM changed WHERE alone HAVING count(*) > 0
     UNION ALL SELECT ARRAY[id], handler, topic, lane, seq, waited FROM changed WHERE NOT alone
"""


async def _act(
    conn: AsyncConnection,
    t: Tables,
    rows: Collection[Seen],
    locked: Locked | None,
    change: _Change,
    values: Mapping[str, Any],
) -> frozenset[int]:
    """The lanes' locks, the change, and what it means for the lanes; the ids of the rows that were changed."""
    if not rows:
        return frozenset()
    if locked is None:
        locked = await lock_lanes(conn, t, rows)
    ordered = sorted(rows)
    numbers = {"ids": [seen[0] for seen in ordered], "row_versions": [seen[1] for seen in ordered]}
    changed = (await conn.execute(t.sql(_statement(change)), {**numbers, **values})).all()
    ids = frozenset(row_id for row in changed for row_id in row.ids)
    if change.sets is None:
        await _end_linked(conn, t, ids)
    waits = bool(values["holds"]) if change.waits is None else change.waits
    changes = [
        Change((row.handler, row.topic, row.lane), row.seq, row.waited, waits)
        for row in changed
        if row.handler is not None
    ]
    assert all(one.lane in locked for one in changes), "a row was changed whose lane is not locked"
    await keep(conn, t, changes)
    return ids


async def _end_linked(conn: AsyncConnection, t: Tables, gone: Collection[int]) -> None:
    """Rows that are linked to these go with them.

    A statement of its own: `link` holds the original until it commits, so whoever has deleted that sees the linked row
    in the next snapshot, and none can come after it. A foreign key would do the same with a query for each row.
    """
    linked = await conn.execute(
        t.sql("""
            SELECT f.id FROM unnest(CAST(:ids AS bigint[])) u (id)
             CROSS JOIN LATERAL (SELECT id FROM {failure} WHERE duplicate_of = u.id OFFSET 0) f
        """),
        {"ids": sorted(gone)},
    )
    if ids := sorted(linked.scalars()):
        await conn.execute(t.sql("DELETE FROM {failure} WHERE id = ANY (CAST(:ids AS bigint[]))"), {"ids": ids})
