"""The second reader's contract, kept alike on librdkafka's mock cluster and on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.services.topics import Topic
from tests.support.mock_cluster import Mock
from tidegate.consumers.client.config import ClientOptions
from tidegate.consumers.client.ports import ClientStopped, Stretch
from tidegate.consumers.client.reader import KafkaReader
from tidegate.inbox.errors import TransientError
from tidegate.inbox.event import Headers, Partition


@dataclass
class World:
    """A topic of four partitions, and a reader beside a group."""

    bootstrap: str
    topic: str
    group: str
    reader: KafkaReader

    def write(self, number: int, *values: bytes | None, headers: Headers = ()) -> Partition:
        """Write records; they can be read when this returns."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0, "linger.ms": 0})
        for value in values:
            producer.produce(self.topic, value, b"k", number, headers=list(headers) or None)
        assert producer.flush(30) == 0
        return Partition(self.topic, number)


@pytest.fixture(params=["mock", "real"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A topic on one of the clusters."""
    if request.param == "mock":
        mock: Mock = request.getfixturevalue("mock_cluster")
        bootstrap, name = mock.bootstrap, mock.make_topic(f"t{abs(hash(request.node.name)) % 10**9}")
    else:
        topic: Topic = request.getfixturevalue("topic")
        bootstrap, name = request.getfixturevalue("kafka_bootstrap"), topic()
    group = f"g-{uuid.uuid4().hex[:8]}"
    reader = KafkaReader(ClientOptions(bootstrap, group, (name,)))
    yield World(bootstrap, name, group, reader)
    await reader.stop()


def values(stretch: Stretch) -> list[bytes | None]:
    return [record.value for record in stretch.records]


async def all_of(world: World, partition: Partition, offset: int, records_max: int) -> list[Stretch]:
    """Read on until the end."""
    stretches: list[Stretch] = []
    while not (stretches and stretches[-1].at_end):
        stretches.append(await world.reader.read(partition, offset, records_max))
        offset = stretches[-1].next_offset
    return stretches


async def test_records_come_in_order_and_byte_for_byte(world: World) -> None:
    """Key, value, headers and time are what was written: None stays None."""
    here = world.write(1, b"\xff\x00", None, b"", headers=(("a", b"1"), ("a", None)))
    stretches = await all_of(world, here, 0, 10)
    records = [record for stretch in stretches for record in stretch.records]
    assert [(r.offset, r.key, r.value, r.headers) for r in records] == [
        (0, b"k", b"\xff\x00", (("a", b"1"), ("a", None))),
        (1, b"k", None, (("a", b"1"), ("a", None))),
        (2, b"k", b"", (("a", b"1"), ("a", None))),
    ]
    assert all(record.timestamp is not None for record in records)
    assert stretches[-1].next_offset == 3


async def test_no_more_comes_at_once_than_was_asked_for_and_the_next_read_goes_on(world: World) -> None:
    here = world.write(0, *(b"%d" % n for n in range(5)))
    stretches = await all_of(world, here, 0, 2)
    assert all(len(stretch.records) <= 2 for stretch in stretches)
    assert [value for stretch in stretches for value in values(stretch)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_it_reads_wherever_it_is_told_to(world: World) -> None:
    """Back, forth, and in another partition: a read does not depend on the one before it."""
    here, there = world.write(0, *(b"%d" % n for n in range(5))), world.write(2, b"x")
    assert values(await world.reader.read(here, 3, 1)) == [b"3"]
    assert values(await world.reader.read(there, 0, 1)) == [b"x"]
    assert values(await world.reader.read(here, 1, 1)) == [b"1"]
    assert values(await world.reader.read(here, 1, 1)) == [b"1"]


async def test_the_end_is_told_each_time_and_what_comes_later_is_read(world: World) -> None:
    here = world.write(0, b"a")
    for _ in range(2):
        end = (await all_of(world, here, 1, 10))[-1]
        assert (values(end), end.next_offset, end.at_end) == ([], 1, True)
    world.write(0, b"b")
    assert values(await world.reader.read(here, 1, 10)) == [b"b"]


async def test_an_offset_that_is_not_in_the_log_is_said(world: World) -> None:
    """Neither the beginning nor the end is read in its place."""
    here = world.write(0, b"a")
    with pytest.raises(TransientError):
        await world.reader.read(here, 7, 1)
    assert values(await world.reader.read(here, 0, 1)) == [b"a"]


async def test_the_group_never_learns_of_it(world: World) -> None:
    """No offset is committed, and a member that has the partition keeps it."""
    here = world.write(0, b"a")
    await all_of(world, here, 0, 10)
    asker = Consumer({"bootstrap.servers": world.bootstrap, "group.id": world.group, "log_level": 0})
    try:
        (place,) = asker.committed([TopicPartition(world.topic, 0)], timeout=30)
    finally:
        asker.close()
    assert place.offset < 0


async def test_a_stop_ends_it(world: World) -> None:
    here = world.write(0, b"a")
    await world.reader.read(here, 0, 1)
    await world.reader.stop()
    with pytest.raises(ClientStopped):
        await world.reader.read(here, 0, 1)
