"""Dead records that go to their source topic once more: only by a typed name, where Java's clients would send them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.running import PATIENCE_S, Sent, Stage, note, reader, table_of, unique
from tidegate.consumers import Event
from tidegate.dlq.permission import everybody
from tidegate.dlq.replay_journal import Run
from tidegate.dlq.replay_order import Order
from tidegate.dlq.replays import Replays
from tidegate.dlq.selection import Filter
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

JAVA = {b"order-1001": 8, b"a": 4}
"""Where Kafka's own client sends these keys, of ten partitions (its murmur2)."""


async def sent(stage: Stage, to_source: str, **more: Any) -> Run:
    """`tidegate dlq replay --all --to-source TOPIC --yes`."""
    database = Database(stage.url, member="tests", settings=DatabaseSettings(pool_max=1, tx_pool_max=1))
    order = Order(actor="ann", reason="all groups need it", filter=Filter(), to_source=to_source, **more)
    try:
        replays = Replays(Store(database, tables()), permit=everybody)
        return await replays.go_on((await replays.start(order)).id, "ann")
    finally:
        await database.close()


def _last(bootstrap: str, topic: str, number: int) -> tuple[bytes | None, bytes | None, dict[str, Any]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": unique("eye"), "log_level": 0})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_S)
    consumer.assign([TopicPartition(topic, number, end - 1)])
    try:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        return message.key(), message.value(), dict(message.headers() or ())
    finally:
        consumer.close()


async def test_a_record_that_is_sent_to_its_source_goes_where_its_key_belongs_and_loops_only_twice(
    stage: Stage, topic: Topic
) -> None:
    """The copies are in the partitions of murmur2 whatever partition they died in; their third replay is refused.

    Case: B37, B39
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/client/config.py's producer has no `partitioner`
    """
    name, ill, app = topic(partitions=10), [True], None
    app = reader(name)
    (consumer,) = app.consumers.values()

    @consumer.projection("rows", breaker=None)
    async def rows(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        if ill:
            raise ValueError("ill")
        await note(events, tx)

    worker = await stage.start(app)
    await table_of(stage)
    await stage.send(name, *[Sent(key.decode(), {"n": 1}, key=key, partition=0) for key in JAVA])

    async def dead(replays: int) -> None:
        async def holds() -> bool:
            return await stage.rows(
                "SELECT replay_count, count(*) FROM tidegate.failure WHERE state = 'dead' GROUP BY 1"
            ) == [(replays, len(JAVA))]

        await worker.until(holds)

    await dead(0)
    elsewhere = "it came from another topic than the one that was named (--to-source)"
    assert (await sent(stage, "payments")).causes == {elsewhere: 2}
    assert (await sent(stage, name)).replayed == 2
    await dead(1)
    for key, number in JAVA.items():
        found, value, headers = await asyncio.to_thread(_last, stage.bootstrap, name, number)
        assert (found, value, headers["id"], headers["tidegate-replay-count"]) == (key, b'{"n": 1}', key, b"1")
    assert (await sent(stage, name)).replayed == 2
    await dead(2)
    third = await sent(stage, name)
    assert (third.replayed, third.refused) == (0, 2)
    ill.clear()
    assert (await sent(stage, name, force=True)).replayed == 2
    await worker.until_counted("events", "rows", "completed", n=2)
    assert await stage.failures() == []
    assert sorted(await stage.rows("SELECT id FROM public.effect")) == [("a",), ("order-1001",)]
