"""The checkpoint of a handler whose events are rare follows the others', whatever is under way meanwhile."""

from __future__ import annotations

import asyncio

import asyncpg
from confluent_kafka import Consumer, TopicPartition

from tests.services.topics import Topic
from tests.support.desk import at_desk, letters
from tests.support.running import Sent, Stage, note, reader, table_of

HOLD = (
    """CREATE FUNCTION public.hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF NEW.handler = (SELECT id FROM tidegate.handler WHERE name = 'do') THEN
           PERFORM pg_catalog.pg_advisory_xact_lock(1);
         END IF; RETURN NEW; END $$""",
    "CREATE TRIGGER hold BEFORE INSERT ON tidegate.claim_1 FOR EACH ROW EXECUTE FUNCTION public.hold()",
)
"""Commands become durable only while the test lets them."""


async def test_a_checkpoint_that_could_not_follow_at_once_follows_later_although_nothing_happens(
    stage: Stage, topic: Topic
) -> None:
    """Found here: Kafka was told the end while a group of commands was being written, which had the checkpoints. Nobody
    raised them afterwards, until a next event came; after a quiet week it would have looked like a gap.
    """
    name = topic(partitions=2)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()
    consumer.projection("note")(note)
    at_desk(app)
    await table_of(stage)
    await stage.execute(*HOLD)
    worker = await stage.ready(app)
    holder = await asyncpg.connect(stage.url)
    try:
        async with holder.transaction():
            await holder.execute("SELECT pg_advisory_xact_lock(1)")
            await stage.send(name, Sent("command", partition=0))

            async def held_up() -> bool:
                return bool(await stage.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))

            await worker.until(held_up)
            await stage.send(name, Sent("not for commands", type="Other", partition=1))

            async def told() -> bool:
                return await asyncio.to_thread(_committed, stage.bootstrap, worker.consumer, name, 1) == 1

            await worker.until(told)
            assert await stage.checkpoints("do") == {0: 0, 1: 0}
    finally:
        await holder.close()

    async def followed() -> bool:
        return await stage.checkpoints("do") == {0: 1, 1: 1}

    await worker.until(followed)


def _committed(bootstrap: str, group: str, topic: str, partition: int) -> int:
    asker = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return asker.committed([TopicPartition(topic, partition)], timeout=10)[0].offset
    finally:
        asker.close()
