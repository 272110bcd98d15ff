"""The tables of the replay journal: their columns, keys and rules. What they promise together is said in `tables`.
No IO.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from .columns import Int, Long, Text, Time, check, column, identity, key, nullable


def replay_table(m: sa.MetaData) -> sa.Table:
    """Each replay: what was asked for, how far it is, and what became of what it read, which adds up at every commit.

    `bound` and `position` are failure rows' numbers: the last one at the start, and the last one that was dealt with.
    A replay out of a topic has its bounds in `replay_part`. `causes` counts, for each cause, what was not replayed.
    """
    return sa.Table(
        "replay",
        m,
        identity("id"),
        column("source", Text),
        column("actor", Text),
        column("why", Text),
        column("wanted", postgresql.JSONB()),
        column("bound", Long, "0"),
        column("position", Long, "0"),
        column("read", Long, "0"),
        column("replayed", Long, "0"),
        column("skipped", Long, "0"),
        column("refused", Long, "0"),
        column("causes", postgresql.JSONB(), "'{}'"),
        column("started_at", Time, "clock_timestamp()"),
        column("touched_at", Time, "clock_timestamp()"),
        nullable("ended_at", Time),
        key("replay", "id"),
        check("replay", "source", "source IN ('inbox', 'topic')"),
        check("replay", "words", "actor <> '' AND why <> ''"),
        check("replay", "adds_up", "read = replayed + skipped + refused"),
        check("replay", "numbers", "bound >= 0 AND position >= 0 AND replayed >= 0 AND skipped >= 0 AND refused >= 0"),
    )


def replay_part_table(m: sa.MetaData) -> sa.Table:
    """A partition that a replay reads: from the next offset on, and no further than the end at its start."""
    return sa.Table(
        "replay_part",
        m,
        column("replay", Long),
        column("topic", Text),
        column("partition", Int),
        column("next_offset", Long),
        column("end_offset", Long),
        key("replay_part", "replay", "topic", "partition"),
        check("replay_part", "numbers", "partition >= 0 AND next_offset >= 0 AND end_offset >= 0"),
    )


def replay_letter_table(m: sa.MetaData) -> sa.Table:
    """A row that a replay put into the queue, and which replay of the row it was: both tell what became of it."""
    return sa.Table(
        "replay_letter",
        m,
        column("replay", Long),
        column("failure_id", Long),
        column("replay_count", Long),
        key("replay_letter", "replay", "failure_id"),
    )
