"""What may be taken up now: heads of lanes, and rows that are alone. A plain read, without locks.

The queue is read through its heads (`parked_key_due`), so that a look costs what is due and never what waits behind
it. Of each lane that is the row with the lowest place of all, taken only if its home is the reader's: after a topic
got more partitions, rows of one lane have different homes, and only the first one's counts. Two that read at once may
get the same row after its home changed hands; the fence of the completing transaction lets one of them write.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Partition
from .failure_rows import Failure
from .finding import COLUMNS, failures_of
from .tables import Tables

ANY_COUNT: Final = 2**31 - 1
"""More partitions than any topic has: modulo it, a home stays what it is."""

ANY_BYTES: Final = 2**62
"""More payload than any row of the table could have."""


SHARE_MIN: Final = 500
"""Rows that are looked at in each home, or as many as its share is: of ten homes ten times as many as may come back
would be looked at otherwise. Where one home has all that is due, so many come back and the rest with the next look."""


NO_ROOMS: Final[Mapping[int, int]] = MappingProxyType({})


async def pick(
    conn: AsyncConnection,
    t: Tables,
    handler_ids: Collection[int],
    homes: Collection[Partition],
    partition_counts: Mapping[str, int],
    now: datetime.datetime,
    limit: int,
    busy: Collection[int] = (),
    bytes_max: int = ANY_BYTES,
    taken: Collection[int] = (),
    rooms: Mapping[int, int] = NO_ROOMS,
) -> list[Failure]:
    """What may be taken up now: queued, due, at home in `homes`, and the first of its lane or alone.

    `handler_ids` are those that the app has: rows of others are left alone. `busy` are the rows that this process works
    on already: their lanes are left out, also where a replay has put an earlier row before the one in work.

    Where there are many, each home has its share of the `limit`, and `SHARE_MIN` at least: not the first due of all.
    Of a handler in `rooms` no more come back than stands there, however much of it is due: the others are not kept from
    their turn by one that is slow.

    `taken` are rows that are alone and in hand already: they are passed over, which costs less than to be `busy`.

    A home's partition is taken modulo the topic's present count, where that is given, so that no row is without an
    owner after a topic was made anew with fewer. At most `bytes_max` of payload come back, and the first row whatever
    it holds.
    """
    if not homes or not handler_ids:
        return []
    places, handlers = sorted(homes), sorted(set(handler_ids))
    most = [min(limit, rooms.get(handler, limit)) for handler in handlers]
    shares = [max(-(-n // len(places)), min(n, SHARE_MIN)) for n in most]
    rows = await conn.execute(
        t.sql(_PICK.replace("{columns}", COLUMNS)),
        {
            "topics": [home.topic for home in places],
            "partitions": [home.number for home in places],
            "counts": [max(1, partition_counts.get(home.topic, ANY_COUNT)) for home in places],
            "handlers": handlers,
            "room": most,
            "most": [n + len(busy) for n in most],
            "share": [n + len(busy) for n in shares],
            "busy": sorted(busy),
            "now": now,
            "limit": limit,
            "bytes_max": bytes_max,
            "taken": list(taken),
        },
    )
    return failures_of(rows)


# Each home is one range of the index, read in the order of due times and no further than the limit; the homes beyond
# the topic's present count are another, nearly always empty. What `asked` says of a handler spares an idle worker with
# many partitions a look at each of them: most handlers have nothing in the table. Of what all homes of a handler have,
# only as much is looked at as may come back (a busy lane keeps one row from it). Every look-up has its LIMIT, and an
# ORDER BY that the index has, so that the plan reads the index however the planner's statistics stand.
_PICK: Final = """
    WITH home AS MATERIALIZED (
           SELECT * FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:counts AS int[]))
                         u (topic, partition, n) WHERE partition < n),
         busy AS MATERIALIZED (
           SELECT f.handler, f.topic, f.lane FROM unnest(CAST(:busy AS bigint[])) u (id)
            CROSS JOIN LATERAL (SELECT * FROM {failure} f WHERE f.id = u.id LIMIT 1) f),
         handler AS MATERIALIZED (
           SELECT * FROM unnest(CAST(:handlers AS bigint[]), CAST(:room AS int[]), CAST(:most AS int[]),
                                CAST(:share AS int[])) u (handler, room, most, share)),
         asked AS MATERIALIZED (
           SELECT h.handler, h.share, u.topic,
                  (SELECT true FROM {parked_key} p
                    WHERE p.handler = h.handler AND p.head_home_topic = u.topic AND p.head_due IS NOT NULL
                    ORDER BY p.head_home_partition, p.head_due LIMIT 1) AS lanes,
                  (SELECT true FROM {parked_key} p
                    WHERE p.handler = h.handler AND p.head_home_topic = u.topic AND p.head_home_partition >= u.n
                      AND p.head_due IS NOT NULL ORDER BY p.head_home_partition, p.head_due LIMIT 1) AS lanes_beyond,
                  (SELECT true FROM {failure} f
                    WHERE f.handler = h.handler AND f.home_topic = u.topic AND f.state = 'queued' AND f.alone
                    ORDER BY f.home_partition, f.due LIMIT 1) AS alone,
                  (SELECT true FROM {failure} f
                    WHERE f.handler = h.handler AND f.home_topic = u.topic AND f.home_partition >= u.n
                      AND f.state = 'queued' AND f.alone ORDER BY f.home_partition, f.due LIMIT 1) AS alone_beyond
             FROM handler h CROSS JOIN (SELECT DISTINCT topic, n FROM home) u),
         head AS MATERIALIZED (
           SELECT p.* FROM handler h CROSS JOIN LATERAL (
                  SELECT p.* FROM asked a JOIN home USING (topic)
                   CROSS JOIN LATERAL (
                         (SELECT p.handler, p.topic, p.key_hash, p.head_seq, p.head_due FROM {parked_key} p
                           WHERE p.handler = a.handler AND p.head_home_topic = a.topic
                             AND p.head_home_partition = home.partition AND p.head_due <= :now
                           ORDER BY p.head_due LIMIT a.share)
                         UNION ALL
                         (SELECT p.handler, p.topic, p.key_hash, p.head_seq, p.head_due FROM {parked_key} p
                           WHERE a.lanes_beyond AND p.handler = a.handler AND p.head_home_topic = a.topic
                             AND p.head_home_partition >= home.n
                             AND p.head_home_partition % home.n = home.partition AND p.head_due <= :now
                           ORDER BY p.head_home_partition, p.head_due LIMIT a.share)) p
                   WHERE a.handler = h.handler AND a.lanes ORDER BY p.head_due LIMIT h.most) p),
         ready AS (
           SELECT head.handler, head.topic, head.key_hash AS lane, f.at, f.id, head.head_due AS due FROM head
            CROSS JOIN LATERAL (
                  SELECT ctid AS at, id FROM {failure} f
                   WHERE f.handler = head.handler AND f.topic = head.topic AND f.lane = head.key_hash
                     AND f.seq = head.head_seq AND NOT f.alone AND (f.state IN ('queued', 'unknown') OR f.holds)
                   ORDER BY f.handler, f.topic, f.lane, f.seq LIMIT 1) f
           UNION ALL
           SELECT a.handler, f.topic, f.lane, f.at, f.id, f.due FROM asked a JOIN home USING (topic)
            CROSS JOIN LATERAL (
                  (SELECT ctid AS at, id, due, topic, lane FROM {failure} f
                    WHERE f.handler = a.handler AND f.home_topic = a.topic AND f.home_partition = home.partition
                      AND f.state = 'queued' AND f.alone AND f.due <= :now
                      AND f.id <> ALL (CAST(:taken AS bigint[]))
                    ORDER BY f.due LIMIT a.share)
                  UNION ALL
                  (SELECT ctid AS at, id, due, topic, lane FROM {failure} f
                    WHERE a.alone_beyond AND f.handler = a.handler AND f.home_topic = a.topic
                      AND f.home_partition >= home.n AND f.home_partition % home.n = home.partition
                      AND f.state = 'queued' AND f.alone AND f.due <= :now
                      AND f.id <> ALL (CAST(:taken AS bigint[]))
                    ORDER BY f.home_partition, f.due LIMIT a.share)) f
            WHERE a.alone),
         first AS MATERIALIZED (
           SELECT r.* FROM handler h CROSS JOIN LATERAL (
                  SELECT at, id, due AS ready FROM ready
                   WHERE ready.handler = h.handler
                     AND NOT EXISTS (SELECT FROM busy b WHERE b.handler = ready.handler AND b.topic = ready.topic
                                                          AND b.lane = ready.lane)
                   ORDER BY due, id LIMIT h.room) r)
    SELECT {columns} FROM (
           SELECT f.*, ready, sum(octet_length(headers) + COALESCE(octet_length(value), 0)
                                  + COALESCE(octet_length(edited_value), 0)) OVER (ORDER BY ready, f.id
                                  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM first
            CROSS JOIN LATERAL (SELECT {columns} FROM {failure} f WHERE f.ctid = first.at LIMIT 1) f
            ORDER BY ready, f.id LIMIT CAST(:limit AS int)) r
     WHERE COALESCE(r.before, 0) < CAST(:bytes_max AS bigint)
     ORDER BY r.ready, r.id
"""
