"""The failure table: the queue of the slow way, of which each row is unique by its position.

Puts draw a place in the lane under the lock of its `parked_key` row, so that nothing overtakes. Whatever is done to a
row names the version that it was read at; a row that changed meanwhile does not come back.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .arrays import arrays, insert_arrays
from .event import Partition
from .failure_rows import Failure, NewFailure, Verdict, headers_bytes
from .finding import failure_of
from .outcome import FailureState
from .states import Act, sources
from .tables import Tables

Seen = tuple[int, int]
"""A row's id and the `row_version` that it was read at."""


class Put(NamedTuple):
    """A row that stands in the table; `created` is False where the same position was there before (a redelivery)."""

    id: int
    created: bool


Lane = tuple[int, str, bytes]
"""(handler id, topic, hash of the key)."""

Places = Mapping[Lane, int]
"""The first of the places that were drawn in each lane."""


async def draw_places(conn: AsyncConnection, t: Tables, rows: Sequence[NewFailure]) -> Places:
    """Lock order 2: lock the lanes of `rows` and draw a place for each row, before anything is claimed.

    A row without a key is in a lane of its own and needs none.
    """
    counts = Counter((row.handler, row.topic, row.lane) for row in rows if _needs_place(row))
    if not counts:
        return {}
    keys = {(row.handler, row.topic, row.lane): row.lane_key for row in rows}
    lanes = sorted(counts)
    drawn = await conn.execute(
        t.sql("""
            INSERT INTO {parked_key} AS p (handler, topic, key_hash, key, next_seq)
            SELECT handler, topic, key_hash, key, 1 + n
              FROM unnest(CAST(:handlers AS bigint[]), CAST(:topics AS text[]), CAST(:hashes AS bytea[]),
                          CAST(:keys AS bytea[]), CAST(:counts AS bigint[])) u (handler, topic, key_hash, key, n)
            ON CONFLICT (handler, topic, key_hash) DO UPDATE SET next_seq = p.next_seq + excluded.next_seq - 1
            RETURNING handler, topic, key_hash, next_seq
        """),
        {
            "handlers": [lane[0] for lane in lanes],
            "topics": [lane[1] for lane in lanes],
            "hashes": [lane[2] for lane in lanes],
            "keys": [keys[lane] for lane in lanes],
            "counts": [counts[lane] for lane in lanes],
        },
    )
    return {(row[0], row[1], row[2]): row[3] - counts[(row[0], row[1], row[2])] for row in drawn}


def _needs_place(row: NewFailure) -> bool:
    return row.lane_key is not None and row.state is not FailureState.LINKED


async def put(conn: AsyncConnection, t: Tables, rows: Sequence[NewFailure], places: Places | None = None) -> list[Put]:
    """Lock order 6: put `rows`; those of one lane come in its order. The answer is in the order of `rows`.

    Without `places` they are drawn here, which is lock order 2: right only where nothing was claimed before.
    """
    if not rows:
        return []
    if places is None:
        places = await draw_places(conn, t, rows)
    created = await conn.execute(
        _put(t), arrays(_COLUMNS, [_values(*pair) for pair in zip(rows, _seqs(rows, places), strict=True)])
    )
    ids = {tuple(row[1:]): row[0] for row in created}
    there = await _ids_by_position(conn, t, [row for row in rows if row.position not in ids])
    seen: set[tuple[Any, ...]] = set()
    answer: list[Put] = []
    for row in rows:
        created_now = row.position in ids and row.position not in seen
        answer.append(Put(ids[row.position] if row.position in ids else there[row.position], created_now))
        seen.add(row.position)
    return answer


def _seqs(rows: Sequence[NewFailure], places: Places) -> list[int]:
    following = dict(places)
    seqs: list[int] = []
    for row in rows:
        lane = (row.handler, row.topic, row.lane)
        seqs.append(following[lane] if _needs_place(row) else 1)
        if _needs_place(row):
            following[lane] += 1
    return seqs


ANY_COUNT: Final = 2**31 - 1
"""More partitions than any topic has: modulo it, a home stays what it is."""

_POSITION: Final = ("handler", "version", "topic", "incarnation", "partition", "record_offset")

_COLUMNS: Final = (
    *("origin", *_POSITION, "home_topic", "home_partition", "event_id", "payload_hash8", "lane", "seq", "state", "due"),
    *("duplicate_of", "reason", "message", "exception_type", "stack_digest", "attempts", "first_failed_at"),
    *("last_failed_at", "id_text", "type", "tenant", "brand", "correlation_id", "operation_id", "schema_id", "key"),
    *("value", "headers", "timestamp_ms", "timestamp_type"),
)


def _values(row: NewFailure, seq: int) -> tuple[Any, ...]:
    return (
        *("event", *row.position, *row.home, row.event_id, row.payload_hash8, row.lane, seq, row.state.value, row.due),
        *(row.duplicate_of, *row.verdict, row.attempts, row.first_failed_at),
        *(row.last_failed_at, row.id_text, row.type, row.tenant, row.brand, row.correlation_id, row.operation_id),
        *(row.schema_id, row.key, row.value, headers_bytes(row), row.timestamp_ms, row.timestamp_type),
    )


def _put(t: Tables) -> sa.Executable:
    table = t.failure
    return (
        insert_arrays(table, _COLUMNS)
        .on_conflict_do_nothing(
            index_elements=list(_POSITION), index_where=table.c.origin == sa.literal_column("'event'")
        )
        .returning(table.c.id, *[table.c[name] for name in _POSITION])
    )


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


async def pick(
    conn: AsyncConnection,
    t: Tables,
    handler_ids: Collection[int],
    homes: Collection[Partition],
    partition_counts: Mapping[str, int],
    now: datetime.datetime,
    limit: int,
    busy: Collection[int] = (),
) -> list[Failure]:
    """What may be taken up now, without a lock: queued, due, at home in `homes`, and the first queued of its lane.

    `handler_ids` are those that the app has; `busy` the rows that this process works on already. A home's partition is
    taken modulo the topic's present count, so that no row is without an owner after a topic was made anew with fewer.
    """
    if not homes:
        return []
    places = sorted(homes)
    rows = await conn.execute(
        t.sql("""
            SELECT f.* FROM {failure} f
              JOIN unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:counts AS int[]))
                   u (topic, partition, n) ON u.topic = f.home_topic AND u.partition = f.home_partition % u.n
             WHERE f.state = 'queued' AND f.due <= :now AND f.handler = ANY (CAST(:handlers AS bigint[]))
               AND NOT f.id = ANY (CAST(:busy AS bigint[]))
               AND NOT EXISTS (SELECT FROM {failure} e
                     WHERE e.state = 'queued' AND e.handler = f.handler AND e.version = f.version
                       AND e.topic = f.topic AND e.lane = f.lane AND e.seq < f.seq)
             ORDER BY f.due, f.id LIMIT :limit
        """),
        {
            "topics": [home.topic for home in places],
            "partitions": [home.number for home in places],
            "counts": [max(1, partition_counts.get(home.topic, ANY_COUNT)) for home in places],
            "handlers": sorted(handler_ids),
            "busy": sorted(busy),
            "now": now,
            "limit": limit,
        },
    )
    return [failure_of(row) for row in rows.mappings()]


async def complete(conn: AsyncConnection, t: Tables, rows: Collection[Seen]) -> frozenset[int]:
    """Lock order 6: these rows are done, their claims are written in this transaction; linked rows end with them.

    A row that does not come back was changed or discarded meanwhile: its claim stands all the same, with an audit line.
    """
    gone = await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT f.id FROM {failure} f
                JOIN unnest(CAST(:ids AS bigint[]), CAST(:row_versions AS bigint[])) u (id, row_version)
                  ON u.id = f.id AND u.row_version = f.row_version
               WHERE f.state = ANY (CAST(:sources AS text[])) ORDER BY f.id FOR UPDATE OF f)
            DELETE FROM {failure} f USING mine WHERE f.id = mine.id RETURNING f.id
        """),
        {**_seen(rows), "sources": _sources(Act.COMPLETE) - {FailureState.LINKED.value}},
    )
    return frozenset(gone.scalars())


async def bury(
    conn: AsyncConnection, t: Tables, row: Seen, verdict: Verdict, *, attempts: int, now: datetime.datetime
) -> bool:
    """Lock order 6: a queued row is dead (again). False: it was changed meanwhile."""
    return await _change(conn, t, Act.FAIL, row, verdict, attempts=attempts, now=now, state=FailureState.DEAD)


async def review(
    conn: AsyncConnection, t: Tables, row: Seen, verdict: Verdict, *, attempts: int, now: datetime.datetime
) -> bool:
    """Lock order 6: a queued row's outcome is a person's to decide. False: it was changed meanwhile."""
    return await _change(conn, t, Act.REVIEW, row, verdict, attempts=attempts, now=now, state=FailureState.UNKNOWN)


async def postpone(
    conn: AsyncConnection,
    t: Tables,
    row: Seen,
    verdict: Verdict,
    *,
    due: datetime.datetime,
    attempts: int,
    now: datetime.datetime,
) -> bool:
    """Lock order 6: a queued row is tried again, not before `due`. False: it was changed meanwhile."""
    return await _change(
        conn, t, Act.RETRY, row, verdict, attempts=attempts, now=now, state=FailureState.QUEUED, due=due
    )


async def _change(
    conn: AsyncConnection,
    t: Tables,
    act: Act,
    row: Seen,
    verdict: Verdict,
    *,
    attempts: int,
    now: datetime.datetime,
    state: FailureState,
    due: datetime.datetime | None = None,
) -> bool:
    c = t.failure.c
    changed = (
        sa.update(t.failure)
        .where(c.id == row[0], c.row_version == row[1], c.state.in_(sorted(_sources(act))))
        .values(
            state=state.value,
            due=due,
            **verdict.safe()._asdict(),
            attempts=attempts,
            last_failed_at=sa.func.greatest(c.first_failed_at, now),
            row_version=c.row_version + 1,
        )
        .returning(c.id)
    )
    return await conn.scalar(changed) is not None


async def requeue(
    conn: AsyncConnection, t: Tables, rows: Collection[Seen], due: datetime.datetime, act: Act = Act.REPLAY
) -> frozenset[int]:
    """Lock order 2 and 6: put dead rows (`Act.RESOLVE`: unknown ones) back into the queue, at their old place.

    A row that does not come back was changed meanwhile. `replay_count` grows: the next letter of it has another id.
    """
    await lock_lanes(conn, t, rows)
    changed = await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT f.id FROM {failure} f
                JOIN unnest(CAST(:ids AS bigint[]), CAST(:row_versions AS bigint[])) u (id, row_version)
                  ON u.id = f.id AND u.row_version = f.row_version
               WHERE f.state = ANY (CAST(:sources AS text[])) ORDER BY f.id FOR NO KEY UPDATE OF f)
            UPDATE {failure} f SET state = 'queued', due = :due, row_version = row_version + 1,
                   replay_count = replay_count + 1 FROM mine WHERE f.id = mine.id RETURNING f.id
        """),
        {**_seen(rows), "sources": _sources(act), "due": due},
    )
    return frozenset(changed.scalars())


async def discard(conn: AsyncConnection, t: Tables, rows: Collection[Seen]) -> frozenset[int]:
    """Lock order 2 and 6: these are never run again; they stay and answer probes like claims."""
    await lock_lanes(conn, t, rows)
    changed = await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT f.id FROM {failure} f
                JOIN unnest(CAST(:ids AS bigint[]), CAST(:row_versions AS bigint[])) u (id, row_version)
                  ON u.id = f.id AND u.row_version = f.row_version
               WHERE f.state = ANY (CAST(:sources AS text[])) ORDER BY f.id FOR NO KEY UPDATE OF f)
            UPDATE {failure} f SET state = 'discarded', due = NULL, row_version = row_version + 1
              FROM mine WHERE f.id = mine.id RETURNING f.id
        """),
        {**_seen(rows), "sources": _sources(Act.DISCARD)},
    )
    return frozenset(changed.scalars())


async def lock_lanes(conn: AsyncConnection, t: Tables, rows: Collection[Seen]) -> None:
    """Lock order 2: lock the lanes of `rows`, before anything is claimed."""
    await conn.execute(
        t.sql("""
            SELECT FROM {parked_key} p WHERE (p.handler, p.topic, p.key_hash) IN
                   (SELECT f.handler, f.topic, f.lane FROM {failure} f WHERE f.id = ANY (CAST(:ids AS bigint[])))
             ORDER BY p.handler, p.topic COLLATE "C", p.key_hash FOR UPDATE OF p
        """),
        {"ids": [seen[0] for seen in rows]},
    )


def _seen(rows: Collection[Seen]) -> dict[str, list[int]]:
    ordered = sorted(rows)
    return {"ids": [seen[0] for seen in ordered], "row_versions": [seen[1] for seen in ordered]}


def _sources(act: Act) -> set[str]:
    return {state.value for state in sources(act)}
