"""The two statements by which a group of commands that all went well is written: lock order 1 and 3, then 4 and 8.

Each does at once what `fence`, `claim` and `checkpoint` do one by one; the order in which it takes its locks is the
same, because each part of it waits for the count of the one before. They are for the group that is as expected. Where
`Opened` or `claim_and_move` says that it is not, the caller rolls back and goes the long way, which tells what is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, LiteralString, NamedTuple

from .checkpoint import Move
from .claim import ClaimKey, Generations
from .event import Partition
from .failing import READ, FailingIds
from .quick import Statements
from .tables import Tables


class NewClaim(NamedTuple):
    """A claim to be made."""

    key: ClaimKey
    payload_hash: int


async def open_group(
    statements: Statements,
    t: Tables,
    consumer: str,
    epochs: Mapping[Partition, int],
    handler_ids: Collection[int],
    known: FailingIds,
) -> Generations | None:
    """Lock order 1 and 3. What of the handlers' events may have failure rows; None unless all partitions are held."""
    question = known.question(handler_ids)
    rows = await statements.fetch(
        t.sql(_OPEN),
        {
            "consumer": consumer,
            "topics": [partition.topic for partition in epochs],
            "partitions": [partition.number for partition in epochs],
            "epochs": list(epochs.values()),
            "key": t.generation_lock,
            **question.parameters(),
        },
    )
    filters = known.take(question, [tuple(row)[1:] for row in rows])
    return Generations(filters) if rows[0][0] == len(epochs) else None


_HOLD: Final[LiteralString] = """
    WITH held AS MATERIALIZED (
      SELECT f.partition
        FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:epochs AS bigint[]))
             u (topic, partition, epoch)
        JOIN {fence} f ON f.consumer = :consumer AND f.topic = u.topic AND f.partition = u.partition
                        AND f.epoch = u.epoch
       WHERE f.wanted IS NULL ORDER BY f.topic, f.partition FOR KEY SHARE OF f),
    counted AS MATERIALIZED (SELECT count(*) AS n FROM held),
    first AS MATERIALIZED (SELECT n AS held, pg_advisory_xact_lock_shared(:key) FROM counted)
    SELECT first.held,
"""

_OPEN: Final[LiteralString] = _HOLD + READ


async def claim_and_move(statements: Statements, t: Tables, claims: Sequence[NewClaim], moves: Sequence[Move]) -> bool:
    """Lock order 4 and 8. True: all of `claims`, in their order, are ours, and all of `moves`, in theirs, were made."""
    keys = [claim.key for claim in claims]
    rows = await statements.fetch(
        t.sql(_CLAIM_AND_MOVE),
        {
            "handlers": [key.handler_id for key in keys],
            "claim_versions": [key.version for key in keys],
            "ids": [key.event_id for key in keys],
            "hashes": [claim.payload_hash for claim in claims],
            "movers": [move.handler_id for move in moves],
            "versions": [move.version for move in moves],
            "topics": [move.topic for move in moves],
            "partitions": [move.partition for move in moves],
            "olds": [move.old for move in moves],
            "news": [move.new for move in moves],
        },
    )
    return tuple(rows[0]) == (len(claims), len(moves))


_CLAIM_AND_MOVE: Final[LiteralString] = """
    WITH claimed AS (
      INSERT INTO {claim_1} (handler, version, event_id, payload_hash8)
      SELECT * FROM unnest(CAST(:handlers AS bigint[]), CAST(:claim_versions AS int[]), CAST(:ids AS bytea[]),
                           CAST(:hashes AS bigint[]))
      ON CONFLICT DO NOTHING RETURNING 1),
    counted AS MATERIALIZED (SELECT count(*) AS n FROM claimed),
    mine AS MATERIALIZED (
      SELECT c.handler, c.version, c.topic, c.partition, m.new
        FROM counted
       CROSS JOIN unnest(CAST(:movers AS bigint[]), CAST(:versions AS int[]), CAST(:topics AS text[]),
                         CAST(:partitions AS int[]), CAST(:olds AS bigint[]), CAST(:news AS bigint[]))
                  m (handler, version, topic, partition, old, new)
        JOIN {checkpoint} c USING (handler, version, topic, partition)
       WHERE c.next_offset = m.old AND counted.n = cardinality(CAST(:ids AS bytea[]))
       ORDER BY handler, version, topic, partition FOR NO KEY UPDATE OF c),
    moved AS (
      UPDATE {checkpoint} c SET next_offset = m.new FROM mine m
       WHERE c.handler = m.handler AND c.version = m.version AND c.topic = m.topic AND c.partition = m.partition
      RETURNING 1)
    SELECT (SELECT n FROM counted), (SELECT count(*) FROM moved)
"""
