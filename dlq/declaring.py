"""The operator's word on what the database cannot know by itself: a topic was made anew, a copy was put back.

Both change what is true for every tenant, so both need a grant without limits on tenants and brands. Each is one
transaction with its line in the audit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.errors import ConfigurationError
from ..inbox.event import Partition
from ..inbox.restored import declare_restored
from ..inbox.tables import Tables
from ..inbox.topics import raise_incarnation
from .permission import Gate
from .reach import Whole
from .verbs import Verb


class Raised(NamedTuple):
    """A topic's incarnation before and after; the same where nothing was to be done."""

    before: int
    after: int


@final
@dataclass(frozen=True, slots=True)
class Declaration:
    """What is said of one partition: Kafka's offset (None without one), the fence's, and the end as the bound."""

    partition: Partition
    kafka_offset: int | None
    fence_offset: int | None
    until_offset: int


async def reset_topic(gate: Gate, topic: str, topic_id: str | None, reason: str) -> Raised:
    """The name `topic` stands for another topic now: once for each `topic_id`, or at once where that is None.

    Raises:
        NotPermitted: the caller may not do this everywhere: several consumers may read the topic.
        ConfigurationError: the inbox knows no such topic.
    """
    async with gate.asked(Verb.RESET_TOPIC, reason, named=True) as asked:
        asked.require_whole(Whole())
        known = asked.t.topic
        before: int | None = await asked.conn.scalar(sa.select(known.c.incarnation).where(known.c.name == topic))
        if before is None:
            names = (await asked.conn.scalars(sa.select(known.c.name).order_by(known.c.name))).all()
            fix = f"name one of: {', '.join(names)}" if names else "no consumer has read a topic yet: nothing to reset"
            raise ConfigurationError.of("topic", f"the inbox knows no topic {topic!r}", fix)
        after = await raise_incarnation(asked.conn, asked.t, topic, topic_id)
        await asked.write(Whole().place, {"topic": topic, "incarnation_was": before, "incarnation": after})
        return Raised(before, after)


async def restored(gate: Gate, consumer: str, declarations: Sequence[Declaration], reason: str) -> None:
    """The database was put back: below these ends a missing row proves nothing, and Kafka's offsets are taken over.

    Raises:
        NotPermitted: the caller may not do this to the whole consumer.
    """
    async with gate.asked(Verb.RESTORED, reason, named=True) as asked:
        whole = Whole(consumer)
        asked.require_whole(whole)
        await _accept(asked.conn, asked.t, consumer, declarations)
        until = {d.partition: d.until_offset for d in declarations}
        await declare_restored(asked.conn, asked.t, consumer, until, gate.caller.actor)
        await asked.write(whole.place, {f"until {partition}": offset for partition, offset in until.items()})


async def ask_restored(gate: Gate, consumer: str) -> None:
    """Before anything is shown. Raises NotPermitted."""
    async with gate.asked(Verb.RESTORED, dry_run=True, named=True) as asked:
        asked.require_whole(Whole(consumer))


async def fences(gate: Gate, consumer: str, *, anyway: bool) -> Mapping[Partition, int | None]:
    """Kafka's offset as the database has it. Raises ConfigurationError for an unknown consumer, unless `anyway`."""
    async with gate.asked(Verb.RESTORED, dry_run=True, named=True) as asked:
        asked.require_whole(Whole(consumer))
        f = asked.t.fence.c
        rows = await asked.conn.execute(sa.select(f.topic, f.partition, f.kafka_offset).where(f.consumer == consumer))
        found = {Partition(row.topic, row.partition): row.kafka_offset for row in rows}
        if found or anyway:
            return found
        names = (await asked.conn.scalars(sa.select(f.consumer).distinct().order_by(f.consumer))).all()
    fix = f"name one of: {', '.join(names)}" if names else "nothing is known yet, so nothing can be missing: start it"
    raise ConfigurationError.of("--consumer", f"the database knows no consumer {consumer!r}", fix)


async def _accept(conn: AsyncConnection, t: Tables, consumer: str, declarations: Sequence[Declaration]) -> None:
    """A fence row that is behind Kafka is no alarm any more. It only ever goes forward; `epoch` and `wanted` stay."""
    ahead = [(d.partition, d.kafka_offset) for d in declarations if d.kafka_offset is not None]
    await conn.execute(
        t.sql("""
            INSERT INTO {fence} AS f (consumer, topic, partition, kafka_offset)
            SELECT :consumer, topic, partition, kafka_offset
              FROM unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:offsets AS bigint[]))
                   u (topic, partition, kafka_offset) ORDER BY topic, partition
            ON CONFLICT (consumer, topic, partition) DO UPDATE
               SET kafka_offset = greatest(f.kafka_offset, excluded.kafka_offset)
        """),
        {
            "consumer": consumer,
            "topics": [partition.topic for partition, _ in ahead],
            "partitions": [partition.number for partition, _ in ahead],
            "offsets": [offset for _, offset in ahead],
        },
    )
