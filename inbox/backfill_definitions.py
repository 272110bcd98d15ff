"""The tables of the backfills' journal: their columns, keys and rules. What they promise together is said in `tables`.
No IO.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from .columns import Int, Long, Text, Time, check, column, identity, key, nullable


def backfill_table(m: sa.MetaData) -> sa.Table:
    """Each backfill: whose events it handles again, what was asked for, and what became of what it read.

    A projection's claims carry its number (`versions.run_version`). `cluster_id` is empty where the cluster does not
    tell. The counts add up at every commit; `causes` says for each cause how many.
    """
    return sa.Table(
        "backfill",
        m,
        identity("id"),
        column("consumer", Text),
        column("handler", Text),
        column("kind", Text),
        column("actor", Text),
        column("why", Text),
        column("wanted", postgresql.JSONB()),
        column("cluster_id", Text),
        column("read", Long, "0"),
        column("handled", Long, "0"),
        column("skipped", Long, "0"),
        column("refused", Long, "0"),
        column("failed", Long, "0"),
        column("causes", postgresql.JSONB(), "'{}'"),
        column("started_at", Time, "clock_timestamp()"),
        column("touched_at", Time, "clock_timestamp()"),
        nullable("ended_at", Time),
        nullable("abandoned_at", Time),
        key("backfill", "id"),
        check("backfill", "kind", "kind IN ('command', 'projection')"),
        check("backfill", "over", "ended_at IS NULL OR abandoned_at IS NULL"),
        check("backfill", "words", "consumer <> '' AND handler <> '' AND actor <> '' AND why <> ''"),
        check("backfill", "adds_up", "read = handled + skipped + refused + failed"),
        check("backfill", "numbers", "handled >= 0 AND skipped >= 0 AND refused >= 0 AND failed >= 0"),
    )


def backfill_part_table(m: sa.MetaData) -> sa.Table:
    """A partition's part of the window: everything below `next_offset` has come to its end.

    While records from there to `chunk_end` are in hand, `known` holds the offsets of those that the inbox knew before:
    whoever goes on after a kill tells by it what this backfill did from what was done before. `live_offset` is where
    the live version stood when it was held, NULL where it is not: below it events are applied again, from there on for
    the first time.
    """
    return sa.Table(
        "backfill_part",
        m,
        column("backfill", Long),
        column("topic", Text),
        column("partition", Int),
        column("incarnation", Long),
        column("start_offset", Long),
        column("next_offset", Long),
        column("end_offset", Long),
        nullable("chunk_end", Long),
        nullable("live_offset", Long),
        column("known", postgresql.ARRAY(sa.BigInteger()), "'{}'"),
        key("backfill_part", "backfill", "topic", "partition"),
        check("backfill_part", "numbers", "partition >= 0 AND incarnation >= 0 AND start_offset >= 0"
               " AND next_offset >= start_offset AND end_offset >= next_offset"),
        check("backfill_part", "live", "live_offset >= start_offset AND live_offset <= end_offset"),
        check("backfill_part", "chunk", "chunk_end > next_offset AND chunk_end <= end_offset"),
    )  # fmt: skip
