"""Two statements by which a group of dead events is written whose keys go on: lock order 1, 2, 3, then 6, 7 and 8.

They do what `fence`, `lanes`, `claim`, `failure`, `outbox` and `checkpoint` do one by one for failed events of every
kind, with the locks in the same order, because each part waits for the count of the part before. What the second one
looks at, it sees behind all locks. A quarter of the statements takes a fourth of the time, and a worker may have an
event in a hundred that dies.

It writes what is as expected, all of it, and nothing that would need a second look: where a partition is not held, an
id may stand in the failure table, is claimed, or its position is there already, it raises `NotAsExpectedError` for the
transaction to be rolled back, and the long way finds out what it is. Rows that hold their lanes (queued, unknown, dead
until a person decides) are not for here: the lane has to be told of them in a third statement, which `lanes` explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

from .checkpoint import Move, moved_by
from .completions import HELD, MOVED, held_by
from .dead_packed import GIVEN, DeadRow, NotPackableError, packed
from .event import Partition
from .failing import READ, FailingIds
from .failure import seqs_of
from .failure_rows import NewFailure
from .lanes import Asked, Places
from .outbox import NewOutgoing
from .quick import Statements
from .tables import Tables

Dead = tuple[NewFailure, NewOutgoing]
"""A row and its letter."""


class NotAsExpectedError(Exception):
    """Something needs a second look: roll back, and go the long way."""


async def put(
    statements: Statements,
    t: Tables,
    consumer: str,
    epochs: Mapping[Partition, int],
    known: FailingIds,
    dead: Sequence[Dead],
    moves: Sequence[Move],
) -> bool:
    """Put rows of different events, with their letters, and move the checkpoints; whether each letter is a new one.

    Raises NotAsExpectedError.
    """
    rows = [row for row, _ in dead]
    places = await _lock(statements, t, consumer, epochs, known, rows)
    try:
        given = packed([DeadRow(*pair, seq) for pair, seq in zip(dead, seqs_of(rows, places), strict=True)])
    except NotPackableError:
        raise NotAsExpectedError from None
    ((put_n, sent_n, moved_n),) = await statements.fetch(
        t.sql(PUT),
        {**given, **moved_by(moves), "consumer": consumer, "asked": len(dead)},
    )
    if (put_n, moved_n) != (len(dead), len(moves)):
        raise NotAsExpectedError
    return sent_n == len(dead)


async def ready(statements: Statements, t: Tables) -> None:
    """Have both statements planned, by putting nothing for nobody."""
    await statements.fetch(t.sql(LOCK), _locking(t, "", {}, FailingIds(), []))
    await statements.fetch(t.sql(PUT), {**packed([]), **moved_by([]), "consumer": "", "asked": 0})


async def _lock(
    statements: Statements,
    t: Tables,
    consumer: str,
    epochs: Mapping[Partition, int],
    known: FailingIds,
    rows: Sequence[NewFailure],
) -> Places:
    """Steps 1 to 3, and a look for what was put since the filters were read."""
    asked, question = Asked.by(rows), known.question({row.handler for row in rows})
    parameters = {**_locking(t, consumer, epochs, known, rows), **question.parameters()}
    read = await statements.fetch(t.sql(LOCK), parameters)
    filters = known.take(question, [tuple(row)[_OURS:] for row in read])
    ours, handlers, topics, hashes, nexts = tuple(read[0])[:_OURS]
    if not ours:
        raise NotAsExpectedError
    for handler, found in filters.items():
        if found is None or found.suspects([row.event_id for row in rows if row.handler == handler]):
            raise NotAsExpectedError
    return asked.places(zip(handlers or (), topics or (), hashes or (), nexts or (), strict=True))


def _locking(
    t: Tables, consumer: str, epochs: Mapping[Partition, int], known: FailingIds, rows: Sequence[NewFailure]
) -> dict[str, object]:
    lanes = {f"lane_{name}": values for name, values in Asked.by(rows).parameters().items()}
    return {**held_by(consumer, epochs), **lanes, **known.question([]).parameters(), "key": t.generation_lock}


_OURS: Final = 5
"""Columns of `LOCK` before those of `READ`."""

LOCK: Final[LiteralString] = "".join(
    (
        "WITH",
        HELD,
        """,
    drawn AS (
      INSERT INTO {parked_key} AS p (handler, topic, key_hash, key, next_seq)
      SELECT u.handler, u.topic, u.key_hash, u.key, 1 + u.n
        FROM ours
       CROSS JOIN unnest(CAST(:lane_handlers AS bigint[]), CAST(:lane_topics AS text[]), CAST(:lane_hashes AS bytea[]),
                         CAST(:lane_keys AS bytea[]), CAST(:lane_counts AS bigint[]))
                  WITH ORDINALITY u (handler, topic, key_hash, key, n, nth)
       WHERE ours.ours ORDER BY u.nth
      ON CONFLICT (handler, topic, key_hash) DO UPDATE SET next_seq = p.next_seq + excluded.next_seq - 1
      RETURNING handler, topic, key_hash, next_seq),
    places AS MATERIALIZED (
      SELECT array_agg(handler) AS handlers, array_agg(topic) AS topics, array_agg(key_hash) AS hashes,
             array_agg(next_seq) AS nexts FROM drawn),
    first AS MATERIALIZED (SELECT places.*, pg_advisory_xact_lock_shared(:key) FROM places)
    SELECT (SELECT ours FROM ours), first.handlers, first.topics, first.hashes, first.nexts,
    """,
        READ,
    )
)

_ROW: Final[LiteralString] = """origin, handler, version, topic, incarnation, partition, record_offset, home_topic,
    home_partition, event_id, payload_hash8, lane, alone, seq, state, reason, message, exception_type, stack_digest,
    attempts, first_failed_at, last_failed_at, id_text, type, tenant, brand, correlation_id, operation_id, schema_id,
    key, value, headers, timestamp_ms, timestamp_type, replay_count"""
"""All but what only rows of other kinds have."""

_POSITION: Final[LiteralString] = "handler, version, topic, incarnation, partition, record_offset"

PUT: Final[LiteralString] = "".join(
    (
        "WITH",
        GIVEN,
        f""",
    free AS MATERIALIZED (
      SELECT NOT EXISTS (
             SELECT FROM given g
              CROSS JOIN LATERAL (SELECT true FROM {{claim_1}} c WHERE c.handler = g.handler AND c.version = g.version
                                                               AND c.event_id = g.event_id LIMIT 1) c) AS free),
    put AS (
      INSERT INTO {{failure}} ({_ROW})
      SELECT {_ROW} FROM free CROSS JOIN given WHERE free.free ORDER BY nth
      ON CONFLICT ({_POSITION}) WHERE origin = 'event' DO NOTHING
      RETURNING id, {_POSITION}),
    rows AS MATERIALIZED (SELECT count(*) AS n FROM put),
    sent AS (
      INSERT INTO {{outbox}} (id, kind, consumer, home_topic, home_partition, topic, key, payload, headers,
                              correlation_id, failure_id)
      SELECT g.letter_id, 'letter', :consumer, g.home_topic, g.home_partition, g.letter_topic, g.letter_key,
             g.letter_payload, g.letter_headers, g.correlation_id, put.id
        FROM rows CROSS JOIN given g JOIN put USING ({_POSITION})
       WHERE rows.n = CAST(:asked AS bigint) ORDER BY g.nth
      ON CONFLICT (id) DO NOTHING RETURNING 1),
    counted AS MATERIALIZED (SELECT rows.n, s.n AS sent FROM rows CROSS JOIN (SELECT count(*) AS n FROM sent) s),
    """,  # noqa: S608 - of the source, as the types say
        MOVED,
        """
    SELECT (SELECT n FROM counted), (SELECT sent FROM counted), (SELECT count(*) FROM moved)
    """,
    )
)
