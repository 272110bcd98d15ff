"""Which effects are open, which events wait for a person, and how old they are. Reads only, without locks.

All of it is of one consumer: its calls, and the rows of its handlers; and of effects by name (`lone`), whose calls no
consumer made: jobs and web requests did.

An open call is one of unknown end, or an intent whose time is over (`due`): its process died, for all that we know.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from .lanes import Seen
from .tables import Tables


class Waiting(NamedTuple):
    """What nobody knows the end of: calls, and events that wait for a person; ages in seconds, 0 without any."""

    effects: int
    oldest_effect_s: float
    events: int
    oldest_event_s: float


class Due(NamedTuple):
    """An open call that may be asked about now. `consumer` is empty where none made it."""

    due: datetime.datetime
    id: int
    consumer: str


FIRST: Final = Due(datetime.datetime.min.replace(tzinfo=datetime.UTC), 0, "")
"""Before all of them."""


async def due_for_probe(
    conn: AsyncConnection,
    t: Tables,
    consumer: str,
    names: Collection[str],
    lone: Collection[str],
    behind: Due,
    limit: int,
) -> list[Due]:
    """Calls of `names`, and of `lone` those without a consumer, the longest due first, from behind `behind` on."""
    rows = await conn.execute(
        t.sql("""
            SELECT due, id, consumer FROM {effect}
             WHERE state IN ('intended', 'unknown') AND due <= clock_timestamp()
               AND (due, id) > (:behind_due, :behind_id)
               AND (consumer = :consumer AND name = ANY (CAST(:names AS text[]))
                    OR consumer = '' AND name = ANY (CAST(:lone AS text[])))
             ORDER BY due, id LIMIT :limit
        """),
        {
            "consumer": consumer,
            "names": sorted(names),
            "lone": sorted(lone),
            "behind_due": behind.due,
            "behind_id": behind.id,
            "limit": limit,
        },
    )
    return [Due(*row) for row in rows]


async def lone_names(conn: AsyncConnection, t: Tables, names: Collection[str]) -> list[str]:
    """Those of `names` of which there is an open call that no consumer made."""
    rows = await conn.execute(
        t.sql("""
            SELECT DISTINCT name FROM {effect}
             WHERE state IN ('intended', 'unknown') AND (state = 'unknown' OR due <= clock_timestamp())
               AND consumer = '' AND name = ANY (CAST(:names AS text[]))
        """),
        {"names": sorted(names)},
    )
    return sorted(rows.scalars())


async def behind_known(conn: AsyncConnection, t: Tables, consumer: str, limit: int) -> list[Seen]:
    """Rows of unknown outcome whose call is known by now: what came to be known while the row was written.

    An event that contradicts what is known of its call also waits with a known call: it did so from the start, so only
    rows count that are hardly younger than what is known, and only once more than they were tried already.
    """
    rows = await conn.execute(
        t.sql("""
            SELECT f.id, f.row_version FROM {failure} f
              JOIN {effect} e ON e.id = f.effect_id JOIN {handler} h ON h.id = f.handler
             WHERE f.effect_id IS NOT NULL AND f.state = 'unknown' AND h.consumer = :consumer
               AND e.state NOT IN ('intended', 'unknown') AND f.replay_count < 3
               AND e.ended_at > f.last_failed_at - interval '1 minute'
             ORDER BY f.id LIMIT :limit
        """),
        {"consumer": consumer, "limit": limit},
    )
    return [(row[0], row[1]) for row in rows]


async def rows_behind(conn: AsyncConnection, t: Tables, effect_id: int) -> list[Seen]:
    """Rows of unknown outcome that wait for this call."""
    rows = await conn.execute(
        t.sql("SELECT id, row_version FROM {failure} WHERE effect_id = :effect_id AND state = 'unknown' ORDER BY id"),
        {"effect_id": effect_id},
    )
    return [(row[0], row[1]) for row in rows]


async def waiting(
    conn: AsyncConnection, t: Tables, consumer: str, handler_ids: Collection[int], lone: Collection[str]
) -> Waiting:
    """What waits, for the figures."""
    rows = await conn.execute(
        t.sql("""
            SELECT e.n, coalesce(extract(epoch FROM clock_timestamp() - e.oldest), 0),
                   f.n, coalesce(extract(epoch FROM clock_timestamp() - f.oldest), 0)
              FROM (SELECT count(*) AS n, min(intended_at) AS oldest FROM {effect}
                     WHERE state IN ('intended', 'unknown') AND (state = 'unknown' OR due <= clock_timestamp())
                       AND (consumer = :consumer OR consumer = '' AND name = ANY (CAST(:lone AS text[])))) e
             CROSS JOIN (SELECT count(*) AS n, min(last_failed_at) AS oldest FROM {failure}
                          WHERE state = 'unknown' AND handler = ANY (CAST(:handlers AS bigint[]))) f
        """),
        {"consumer": consumer, "handlers": sorted(handler_ids), "lone": sorted(lone)},
    )
    row = rows.one()
    return Waiting(row[0], max(0.0, float(row[1])), row[2], max(0.0, float(row[3])))
