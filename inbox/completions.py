"""One statement by which a group of commands that all went well is written: lock order 1, 3, 4 and 8 at once.

It does what `fence`, `claim` and `checkpoint` do one by one, and takes its locks in the same order, because each part
of it waits for the count of the part before. Being alone it is its own transaction: one way to the server and back
where the long way has seven. It writes what is as expected, and nothing that would need a second look:

* Not every partition is held, or one of the ids got a failure row since the filter was read: nothing at all.
* Some ids were claimed before: the others, and no checkpoint. If the process stops there, the events are read again,
  and their claims answer. Where all were taken for new (`optimism`) nothing at all, and an error.

What is left over goes the long way, which finds out what it is.

It sees the tables as they were when it began, which is before it has its locks; the long way looks behind them. Rows
that it locks are judged as they are by then (fence, checkpoints), and claims meet in their unique index. That is enough
while there is one generation of claims: with several it must not look for older claims here, nor claim in a generation
that was the newest before the generation lock was had.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, LiteralString, NamedTuple

from .checkpoint import Move, moved_by
from .claim import ClaimKey
from .event import Partition
from .failing import ReadUpTo
from .quick import Statements
from .tables import Tables

NEWS_MAX: Final = 200
"""Failure rows that are looked through before the filter has to be read again: some microseconds each. A group of
failed events reads it, and is hardly ever larger."""


class NewClaim(NamedTuple):
    """A claim to be made."""

    key: ClaimKey
    payload_hash: int


class Written(NamedTuple):
    """What of a group was written. `new`: the claims that are ours, None meaning all; `moved`: the checkpoints too."""

    new: frozenset[ClaimKey] | None
    moved: bool


async def complete(
    statements: Statements,
    t: Tables,
    consumer: str,
    epochs: Mapping[Partition, int],
    failing: Sequence[ReadUpTo],
    claims: Sequence[NewClaim],
    moves: Sequence[Move],
    *,
    optimistic: bool = False,
) -> Written:
    """Claim and move for the partitions of `epochs`. `failing` tells of each handler from where on rows are news.

    `optimistic`: an id that was claimed before is a unique violation, and nothing is written (`optimism`).
    """
    (row,) = await statements.fetch(
        t.sql(COMPLETE_NEW if optimistic else COMPLETE),
        {
            **held_by(consumer, epochs),
            "key": t.generation_lock,
            "news_of": [one.handler_id for one in failing],
            "xids": [one.xid for one in failing],
            "rows": [one.row for one in failing],
            "servers": [one.server for one in failing],
            "open": sorted(frozenset[int]().union(*[one.open for one in failing])),
            "most": NEWS_MAX,
            **_packed(claims),
            **moved_by(moves),
        },
    )
    claimed, moved, handlers, versions, ids = row
    if claimed == len(claims):
        return Written(None, moved == len(moves))
    return Written(frozenset(map(ClaimKey, handlers or (), versions or (), ids or ())), moved=False)


def held_by(consumer: str, epochs: Mapping[Partition, int]) -> dict[str, object]:
    """The parameters of `HELD`."""
    return {
        "consumer": consumer,
        "fence_topics": [partition.topic for partition in epochs],
        "fence_partitions": [partition.number for partition in epochs],
        "epochs": list(epochs.values()),
    }


def _packed(claims: Sequence[NewClaim]) -> dict[str, object]:
    """Claims by their handlers, one string of ids and hashes for each: the driver looks at each member of an array."""
    runs: dict[tuple[int, int], list[bytes]] = {}
    for (handler_id, version, event_id), payload_hash in claims:
        run = runs.setdefault((handler_id, version), [])
        run.append(event_id)
        run.append(_HASH.pack(payload_hash))
    return {
        "handlers": [handler_id for handler_id, _ in runs],
        "claim_versions": [version for _, version in runs],
        "packed": [b"".join(run) for run in runs.values()],
        "asked": len(claims),
    }


_HASH: Final = struct.Struct(">q")

HELD: Final[LiteralString] = """
    held AS MATERIALIZED (
      SELECT u.partition
        FROM (SELECT * FROM unnest(CAST(:fence_topics AS text[]), CAST(:fence_partitions AS int[]),
                                   CAST(:epochs AS bigint[])) w (topic, partition, epoch)
               ORDER BY topic, partition OFFSET 0) u
       CROSS JOIN LATERAL
             (SELECT true FROM {fence} f
               WHERE f.consumer = :consumer AND f.topic = u.topic AND f.partition = u.partition AND f.epoch = u.epoch
                 AND f.wanted IS NULL LIMIT 1 FOR KEY SHARE) f),
    ours AS MATERIALIZED (SELECT count(*) = cardinality(CAST(:epochs AS bigint[])) AS ours FROM held)
"""
"""Lock order 1, in a longer statement: whether all partitions of `epochs` are `ours`.

One look-up for each, in their order, whatever the planner thinks of the table: as a plain join it might be planned as
a scan of all that a consumer has, once and for all (`quick.PLANS`).
"""

MOVED: Final[LiteralString] = """
    mine AS MATERIALIZED (
      SELECT c.place, m.new
        FROM counted
       CROSS JOIN (SELECT * FROM unnest(CAST(:movers AS bigint[]), CAST(:versions AS int[]), CAST(:topics AS text[]),
                                        CAST(:partitions AS int[]), CAST(:olds AS bigint[]), CAST(:news AS bigint[]))
                                 w (handler, version, topic, partition, old, new)
                    ORDER BY handler, version, topic, partition OFFSET 0) m
       CROSS JOIN LATERAL
             (SELECT c.ctid AS place FROM {checkpoint} c
               WHERE counted.n = CAST(:asked AS bigint) AND c.handler = m.handler AND c.version = m.version
                 AND c.topic = m.topic AND c.partition = m.partition AND c.next_offset = m.old AND c.held IS NULL
               LIMIT 1 FOR NO KEY UPDATE) c),
    moved AS (
      UPDATE {checkpoint} c SET next_offset = (SELECT m.new FROM mine m WHERE m.place = c.ctid)
       WHERE c.ctid = ANY (ARRAY (SELECT m.place FROM mine m))
      RETURNING 1)
"""
"""Lock order 8, in a longer statement: the moves, where what stands before `counted` as many as were `asked`. Looked up
as in `HELD`; the count stands inside of the look-up, so that nothing is locked before it is known. What is locked stays
where it is: the row's own place is what the update goes by. A row that somebody changed since the statement began is
not seen there, and not moved.
"""

# Of the transactions that were open at the read, those from its cursor on are behind it too: a group that read the
# filter and then put rows would have each of them looked through twice, and half as many would be too many.
_COMPLETE: Final[LiteralString] = "".join(
    (
        """
    WITH given AS MATERIALIZED (
      SELECT g.handler, g.version, substring(g.packed FROM 24 * i + 1 FOR 16) AS event_id,
             CAST(CAST('x' || encode(substring(g.packed FROM 24 * i + 17 FOR 8), 'hex') AS bit(64)) AS bigint)
               AS payload_hash8
        FROM unnest(CAST(:handlers AS bigint[]), CAST(:claim_versions AS int[]), CAST(:packed AS bytea[]))
             g (handler, version, packed)
       CROSS JOIN LATERAL generate_series(0, length(g.packed) / 24 - 1) i),
    """,
        HELD,
        """,
    locked AS MATERIALIZED (SELECT ours, pg_advisory_xact_lock_shared(:key) FROM ours),
    seen AS MATERIALIZED (
      SELECT count(f.event_id) AS n, coalesce(bool_or(f.event_id IN (SELECT event_id FROM given)), false) AS hit,
             bool_and(h.server = pg_postmaster_start_time()) AS known
        FROM locked
       CROSS JOIN (SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) AS next) s
       CROSS JOIN unnest(CAST(:news_of AS bigint[]), CAST(:xids AS bigint[]), CAST(:rows AS bigint[]),
                         CAST(:servers AS timestamptz[])) h (handler, xid, row, server)
        LEFT JOIN LATERAL
             (SELECT true AS there FROM {failure} WHERE handler = h.handler AND (put_xid, id) > (h.xid, h.row)
                                                    AND put_xid < s.next
               ORDER BY handler, put_xid, id LIMIT 1) new ON true
        LEFT JOIN LATERAL
             ((SELECT event_id FROM {failure}
                WHERE new.there AND handler = h.handler AND (put_xid, id) > (h.xid, h.row) AND put_xid < s.next
                ORDER BY handler, put_xid, id LIMIT CAST(:most AS int))
               UNION ALL
              (SELECT those.event_id FROM unnest(CAST(:open AS bigint[])) o (xid)
                CROSS JOIN LATERAL
                      (SELECT true AS there FROM {failure}
                        WHERE o.xid < h.xid AND handler = h.handler AND put_xid = o.xid
                        ORDER BY handler, put_xid, id LIMIT 1) one
                CROSS JOIN LATERAL
                      (SELECT event_id FROM {failure} WHERE one.there AND handler = h.handler AND put_xid = o.xid
                        ORDER BY handler, put_xid, id LIMIT CAST(:most AS int)) those)) f ON true),
    free AS MATERIALIZED (
      SELECT locked.ours AND seen.known AND NOT seen.hit AND seen.n < CAST(:most AS int) AS free FROM locked, seen),
    claimed AS (
      INSERT INTO {claim_1} (handler, version, event_id, payload_hash8)
      SELECT c.handler, c.version, c.event_id, c.payload_hash8
        FROM free CROSS JOIN given c
       WHERE free.free ORDER BY c.handler, c.version, c.event_id
      <known> RETURNING handler, version, event_id),
    counted AS MATERIALIZED (SELECT count(*) AS n FROM claimed),
    """,
        MOVED,
        """,
    partly AS (
      SELECT array_agg(handler) AS handlers, array_agg(version) AS versions, array_agg(event_id) AS ids
        FROM claimed WHERE (SELECT n FROM counted) < CAST(:asked AS bigint))
    SELECT (SELECT n FROM counted), (SELECT count(*) FROM moved), partly.handlers, partly.versions, partly.ids
      FROM partly
""",
    )
)

COMPLETE: Final[LiteralString] = _COMPLETE.replace("<known>", "ON CONFLICT DO NOTHING")
COMPLETE_NEW: Final[LiteralString] = _COMPLETE.replace("<known>", "")
