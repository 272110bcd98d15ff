"""The producer on a real broker: an answer for every record, and nobody waits for somebody else's trouble."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncGenerator

import pytest

from tests.services.topics import Topic
from tests.support.kafka_desk import Desk, PlainIntake
from tests.support.kafka_worlds import ClusterWorld
from tidegate.consumers.client.config import ClientOptions
from tidegate.consumers.client.ports import ClientStopped, Outgoing, SendAnswer
from tidegate.consumers.client.producer import KafkaProducer
from tidegate.inbox.event import Partition


@contextlib.asynccontextmanager
async def producing(bootstrap: str) -> AsyncGenerator[KafkaProducer]:
    producer = KafkaProducer(ClientOptions(bootstrap, "unused", ("unused",)))
    try:
        yield producer
    finally:
        await producer.stop(10)


async def test_records_land_as_they_were_given_in_order_within_their_key(kafka_bootstrap: str, topic: Topic) -> None:
    name = topic(partitions=4)
    headers = (("a", b"1"), ("a", None), ("b", b""))
    sent = [Outgoing(name, b"k%d" % (n % 7), b"%d" % n, headers) for n in range(200)]
    sent += [Outgoing(name, b"k1", None), Outgoing(name, b"", b"")]
    async with producing(kafka_bootstrap) as producer:
        results = await producer.send(sent)
    assert all(result.sent for result in results)
    desk = Desk()
    world = ClusterWorld(desk, PlainIntake(), name, kafka_bootstrap, "consumer")
    world.port.start()
    try:
        await desk.until(lambda: desk.count() == len(sent))
        for record, result in zip(sent, results, strict=True):
            found = desk.records[Partition(name, result.partition)][result.offset]
            assert (found.key, found.value, found.headers) == (record.key, record.value, record.headers)
        by_key = [result.offset for record, result in zip(sent, results, strict=True) if record.key == b"k3"]
        assert by_key == sorted(by_key)
    finally:
        await world.port.stop(10)


async def test_keys_go_where_kafkas_java_clients_send_them(kafka_bootstrap: str, topic: Topic) -> None:
    """Murmur2 of "21" is -973932308 (Kafka's own UtilsTest), so of ten partitions the sign-free remainder: 0."""
    name = topic(partitions=10)
    async with producing(kafka_bootstrap) as producer:
        (result,) = await producer.send([Outgoing(name, b"21", b"v")])
    assert result.partition == (-973932308 & 0x7FFFFFFF) % 10


async def test_a_record_that_cannot_go_stops_no_other(kafka_bootstrap: str, topic: Topic) -> None:
    name = topic(partitions=1)
    small = topic(partitions=1, config={"max.message.bytes": "2000"})
    async with producing(kafka_bootstrap) as producer:
        results = await producer.send(
            [
                Outgoing(name, None, b"first"),
                Outgoing(f"missing-{uuid.uuid4().hex}", None, b"v"),
                Outgoing(name, None, bytes(5_000_000)),
                Outgoing(small, None, os.urandom(8_000)),
                Outgoing(name, None, b"last"),
            ]
        )
        answers = [result.answer for result in results]
        assert answers[0] is answers[4] is SendAnswer.SENT
        assert answers[1] is SendAnswer.UNKNOWN_TOPIC
        assert answers[2:4] == [SendAnswer.TOO_LARGE, SendAnswer.TOO_LARGE]
        assert (await producer.send([Outgoing(name, None, b"after")]))[0].sent
        assert await producer.send([]) == []


async def test_after_a_stop_nothing_is_sent_and_nobody_waits() -> None:
    producer = KafkaProducer(ClientOptions("127.0.0.1:1", "unused", ("unused",), kafka={"log_level": 0}))
    waiting = asyncio.create_task(producer.send([Outgoing("t", None, b"v")]))
    await asyncio.sleep(0)
    await producer.stop(0.2)
    with pytest.raises(ClientStopped):
        await waiting
    with pytest.raises(ClientStopped):
        await producer.send([Outgoing("t", None, b"v")])
