"""Lanes: the rows of one key for one handler, of which the first is worked and the others wait.

A lane has one `parked_key` row, made with its first failure and kept for ever, so that places in it only grow. While
rows hold the lane (`waiting > 0`) its key is parked: new events of the key queue up behind, whatever partition they
come from. Whatever is done to rows of a lane is done under the lock of that row (lock order 2), in three statements:

1. The lock. 2. The change of the rows (step 6). 3. `keep`: `waiting` by its difference, the head by one look-up.

Each sees what was committed before it. Were the third part of the second, it would see the lane as it was before the
change; were the lock part of the third, a row that was parked between them would get a place and never become the
head. Two that do something to one lane at once come one after the other, so "the last one leaves, the lane is free"
and "one more comes, it is not" are never decided from the same count. What stops between the statements is rolled back
whole.

A lane has no version: one version of a projection is live at a time (`versions.declare_live` refuses another), and rows
that a backfill's run left hold no lane. Before a second version is built beside the live one, the version belongs into
the key: rows of the first would hold back keys of the second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .failure_rows import NewFailure
from .outcome import FailureState
from .tables import Tables

Seen: TypeAlias = tuple[int, int]
"""A row's id and the `row_version` that it was read at."""

LaneKey: TypeAlias = tuple[int, str, bytes]
"""(handler id, topic, hash of the key)."""

Stream: TypeAlias = tuple[int, str]
"""(handler id, topic)."""

Places: TypeAlias = Mapping[LaneKey, int]
"""The first of the places that were drawn in each lane. The lanes in it are locked."""

Locked: TypeAlias = Collection[LaneKey]
"""Lanes that this transaction has locked."""

Told: TypeAlias = Mapping[int, Mapping[str, frozenset[bytes]] | None]
"""Handler id -> topic -> hashes of its parked keys; None where they are too many. Who has none is left out."""

TOLD_MAX: Final = 2_000
"""Parked keys of a handler that are read whole and compared in memory: 32 KB in half a millisecond, where each look-up
costs ten times as much as a key that is read. Of more those that are asked for are looked up: what is parked never has
to fit into memory."""


class Change(NamedTuple):
    """What was done to a row of a lane: whether it held the lane before and does now."""

    lane: LaneKey
    seq: int
    waited: bool
    waits: bool


async def draw_places(
    conn: AsyncConnection, t: Tables, rows: Sequence[NewFailure], seen: Collection[Seen] = ()
) -> Places:
    """Lock order 2: lock the lanes of `rows` and draw a place for each row, before anything is claimed.

    A row without a key is in a lane of its own and needs none. `seen` are stored rows whose lanes are locked along with
    them, because the transaction will also change these: all locks in one order.
    """
    asked = Asked.by(rows)
    for lane in await _lanes_of(conn, t, seen) if seen else ():
        asked.counts[lane] += 0
    if not asked.counts:
        return {}
    drawn = await conn.execute(
        t.sql("""
            INSERT INTO {parked_key} AS p (handler, topic, key_hash, key, next_seq)
            SELECT handler, topic, key_hash, key, 1 + n
              FROM unnest(CAST(:handlers AS bigint[]), CAST(:topics AS text[]), CAST(:hashes AS bytea[]),
                          CAST(:keys AS bytea[]), CAST(:counts AS bigint[])) u (handler, topic, key_hash, key, n)
            ON CONFLICT (handler, topic, key_hash) DO UPDATE SET next_seq = p.next_seq + excluded.next_seq - 1
            RETURNING handler, topic, key_hash, next_seq
        """),
        asked.parameters(),
    )
    return asked.places(drawn)


class Asked(NamedTuple):
    """How many places are to be drawn in each lane, and the keys of lanes that may be new."""

    counts: Counter[LaneKey]
    keys: Mapping[LaneKey, bytes]

    @classmethod
    def by(cls, rows: Sequence[NewFailure]) -> Asked:
        """One for each row that needs one."""
        keys = [(lane_of(row), row.lane_key or b"") for row in rows if needs_place(row)]
        return cls(Counter(lane for lane, _ in keys), dict(keys))

    def parameters(self) -> dict[str, list[int] | list[str] | list[bytes]]:
        """The lanes in the order in which they are locked."""
        lanes, counts, keys = sorted(self.counts), self.counts, self.keys
        return {
            **_lanes(lanes),
            "keys": [keys.get(lane, b"") for lane in lanes],
            "counts": [counts[lane] for lane in lanes],
        }

    def places(self, drawn: Iterable[Sequence[Any]]) -> Places:
        """The first place in each lane, of (handler, topic, hash, the next one to draw)."""
        ends = {(row[0], row[1], row[2]): row[3] for row in drawn}
        return {lane: end - self.counts[lane] for lane, end in ends.items()}


def lane_of(row: NewFailure) -> LaneKey:
    """The lane that the row stands in."""
    return (row.handler, row.topic, row.lane)


def needs_place(row: NewFailure) -> bool:
    """Whether the row stands in a lane with others."""
    return not row.alone and row.state is not FailureState.LINKED


async def lock_lanes(conn: AsyncConnection, t: Tables, rows: Collection[Seen]) -> Locked:
    """Lock order 2: lock the lanes of the stored `rows`, before anything is claimed. Again costs a look only."""
    if not rows:
        return frozenset()
    locked = await conn.execute(
        t.sql("""
            SELECT p.handler, p.topic, p.key_hash FROM {parked_key} p
             WHERE (p.handler, p.topic, p.key_hash) IN
                   (SELECT f.handler, f.topic, f.lane FROM {failure} f
                     WHERE f.id = ANY (CAST(:ids AS bigint[])) AND NOT f.alone)
             ORDER BY p.handler, p.topic COLLATE "C", p.key_hash FOR UPDATE OF p
        """),
        {"ids": [seen[0] for seen in rows]},
    )
    return frozenset((row[0], row[1], row[2]) for row in locked)


async def _lanes_of(conn: AsyncConnection, t: Tables, rows: Collection[Seen]) -> list[LaneKey]:
    """A row never changes its lane, so this may be read before the lock."""
    found = await conn.execute(
        sa.select(t.failure.c.handler, t.failure.c.topic, t.failure.c.lane)
        .where(t.failure.c.id.in_([seen[0] for seen in rows]), sa.not_(t.failure.c.alone))
        .distinct()
    )
    return [(row[0], row[1], row[2]) for row in found]


async def keep(conn: AsyncConnection, t: Tables, changes: Iterable[Change]) -> None:
    """Behind lock order 6: tell the lanes, which are locked, what was done to their rows.

    The first row is looked for from the old head on, or from the lowest place that came to hold the lane: what was
    completed before it, and is not vacuumed yet, is never passed again.
    """
    lowest: dict[LaneKey, int | None] = {}
    differences: Counter[LaneKey] = Counter()
    for lane, seq, waited, waits in changes:
        if waited or waits:
            differences[lane] += waits - waited
            places = [place for place in (lowest.get(lane), seq if waits else None) if place is not None]
            lowest[lane] = min(places, default=None)
    if not differences:
        return
    lanes = sorted(differences)
    await conn.execute(
        t.sql("""
            UPDATE {parked_key} p
               SET waiting = p.waiting + n, head_seq = seq, head_due = due,
                   head_home_topic = CASE WHEN due IS NOT NULL THEN home_topic END,
                   head_home_partition = CASE WHEN due IS NOT NULL THEN home_partition END
              FROM (SELECT q.handler, q.topic, q.key_hash, u.n, f.seq, f.due, f.home_topic, f.home_partition
                      FROM unnest(CAST(:handlers AS bigint[]), CAST(:topics AS text[]), CAST(:hashes AS bytea[]),
                                  CAST(:differences AS bigint[]), CAST(:lowest AS bigint[]))
                           u (handler, topic, key_hash, n, lowest)
                      JOIN {parked_key} q USING (handler, topic, key_hash)
                      LEFT JOIN LATERAL (
                           SELECT seq, due, home_topic, home_partition FROM {failure}
                            WHERE handler = q.handler AND topic = q.topic AND lane = q.key_hash AND NOT alone
                              AND (state IN ('queued', 'unknown') OR holds)
                              AND seq >= COALESCE(LEAST(q.head_seq, u.lowest), 0)
                            ORDER BY handler, topic, lane, seq LIMIT 1) f ON true) h
             WHERE p.handler = h.handler AND p.topic = h.topic AND p.key_hash = h.key_hash
        """),
        {
            **_lanes(lanes),
            "differences": [differences[lane] for lane in lanes],
            "lowest": [lowest[lane] for lane in lanes],
        },
    )


def _lanes(lanes: Sequence[LaneKey]) -> dict[str, list[int] | list[str] | list[bytes]]:
    return {
        "handlers": [lane[0] for lane in lanes],
        "topics": [lane[1] for lane in lanes],
        "hashes": [lane[2] for lane in lanes],
    }


# ------------------------------------------------------------------------------------------------------- plain reads


async def tell(conn: AsyncConnection, t: Tables, handler_ids: Collection[int]) -> Told:
    """What is parked, while it is little. One statement, and where nothing is parked no key has to be hashed."""
    rows = await conn.execute(
        t.sql("""
            SELECT h, p.topic, count(*), string_agg(p.key_hash, '')
              FROM unnest(CAST(:handlers AS bigint[])) h
             CROSS JOIN LATERAL (SELECT topic, key_hash FROM {parked_key} WHERE handler = h AND waiting > 0
                     ORDER BY topic, key_hash LIMIT CAST(:most AS int) + 1) p
             GROUP BY h, p.topic
        """),
        {"handlers": sorted(handler_ids), "most": TOLD_MAX},
    )
    told: dict[int, dict[str, frozenset[bytes]]] = {}
    counts: Counter[int] = Counter()
    for handler, topic, count, hashes in rows:
        counts[handler] += count
        told.setdefault(handler, {})[topic] = frozenset(hashes[i : i + 16] for i in range(0, len(hashes), 16))
    return {handler: topics if counts[handler] <= TOLD_MAX else None for handler, topics in told.items()}


async def parked(
    conn: AsyncConnection, t: Tables, keys: Collection[LaneKey], told: Told | None = None
) -> frozenset[LaneKey]:
    """Which of these lanes are parked: their new events must queue up. A plain read, without locks."""
    asked: dict[Stream, set[bytes]] = {}
    for handler, topic, key_hash in keys:
        asked.setdefault((handler, topic), set()).add(key_hash)
    if told is None:
        told = await tell(conn, t, {handler for handler, _ in asked})
    found = await parked_in(conn, t, told, asked)
    return frozenset((handler, topic, h) for (handler, topic), hashes in found.items() for h in hashes)


async def parked_in(
    conn: AsyncConnection, t: Tables, told: Told, asked: Mapping[Stream, Collection[bytes]]
) -> Mapping[Stream, Collection[bytes]]:
    """The same for hashes of keys by handler and topic, of which `told` tells. Streams without any may be left out."""
    found: dict[Stream, Collection[bytes]] = {}
    many: list[LaneKey] = []
    for (handler, topic), hashes in asked.items():
        topics = told.get(handler, _NOTHING)
        if topics is None:
            many += [(handler, topic, key_hash) for key_hash in hashes]
        elif parked := topics.get(topic):
            found[(handler, topic)] = parked.intersection(hashes)
    for handler, topic, key_hash in await waiting_in(conn, t, many):
        found[(handler, topic)] = [*found.get((handler, topic), ()), key_hash]
    return found


_NOTHING: Final[Mapping[str, frozenset[bytes]]] = {}


async def waiting_in(conn: AsyncConnection, t: Tables, keys: Collection[LaneKey]) -> Mapping[LaneKey, int]:
    """How many rows hold each of these lanes; lanes that are free are left out.

    Exact for lanes that this transaction has locked, advice for others.
    """
    if not keys:
        return {}
    # LATERAL with LIMIT keeps the plan at one index look-up for each key, however the planner's statistics stand.
    rows = await conn.execute(
        t.sql("""
            SELECT u.handler, u.topic, u.key_hash, p.waiting
              FROM unnest(CAST(:handlers AS bigint[]), CAST(:topics AS text[]), CAST(:hashes AS bytea[]))
                   u (handler, topic, key_hash)
             CROSS JOIN LATERAL (SELECT waiting FROM {parked_key} p WHERE p.handler = u.handler AND p.topic = u.topic
                     AND p.key_hash = u.key_hash AND waiting > 0 LIMIT 1) p
        """),
        _lanes(sorted(set(keys))),
    )
    return {(row[0], row[1], row[2]): row[3] for row in rows}


async def waiting(conn: AsyncConnection, t: Tables, handler_ids: Collection[int]) -> Mapping[int, int]:
    """How many rows of each handler wait, in lanes or alone: what `parked_max` bounds. Handlers with none are left out.

    Costs a look at each parked key and each row that waits alone, never at the rows of a lane: for every few seconds,
    not for every batch.
    """
    rows = await conn.execute(
        t.sql("""
            SELECT h, CAST(lanes.n + alone.n AS bigint) FROM unnest(CAST(:handlers AS bigint[])) h
             CROSS JOIN LATERAL
                   (SELECT COALESCE(sum(waiting), 0) AS n FROM {parked_key} WHERE handler = h AND waiting > 0) lanes
             CROSS JOIN LATERAL
                   (SELECT count(*) AS n FROM {failure} WHERE handler = h AND state = 'queued' AND alone) alone
             WHERE lanes.n + alone.n > 0
        """),
        {"handlers": sorted(set(handler_ids))},
    )
    return {row[0]: row[1] for row in rows}
