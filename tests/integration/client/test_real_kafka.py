"""What only a real broker does to a client: markers, compaction, retention, zombies, topics that are not there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.services.topics import Topic
from tests.support.kafka_desk import Desk, PlainIntake
from tests.support.kafka_worlds import ClusterWorld, GroupProtocol
from tidegate.consumers.client.ports import CommitAnswer
from tidegate.inbox.event import Partition

ZOMBIE = Path(__file__).with_name("zombie.py")
ROOT = Path(__file__).parents[3]


@contextlib.asynccontextmanager
async def reading(
    bootstrap: str, name: str, protocol: GroupProtocol, count: int, desk: Desk | None = None, **kafka: Any
) -> AsyncGenerator[ClusterWorld]:
    """A member that owns all `count` partitions of the topic."""
    desk = desk or Desk()
    keys = {key.replace("_", "."): value for key, value in kafka.items()}
    world = ClusterWorld(desk, PlainIntake(), name, bootstrap, protocol, keys)
    world.port.start()
    try:
        await desk.until(lambda: len(desk.owned) == count, "the assignment")
        yield world
    finally:
        await world.port.stop(10)


def transactions(bootstrap: str, name: str, outcomes: list[bool]) -> None:
    """A transaction of two records for each outcome: committed or aborted."""
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{uuid.uuid4()}", "log_level": 0})
    writer.init_transactions(30)
    for number, commits in enumerate(outcomes):
        writer.begin_transaction()
        for part in range(2):
            writer.produce(name, b"%d-%d" % (number, part), partition=0)
        writer.flush(30)
        if commits:
            writer.commit_transaction(30)
        else:
            writer.abort_transaction(30)


async def compacted(bootstrap: str, world: ClusterWorld, here: Partition) -> None:
    """Until the broker's cleaner has made holes; each record more lets it close a segment."""
    for number in range(20, 100):
        world.write(here, b"%d" % number, key=b"k%d" % (number % 2))
        async with reading(bootstrap, here.topic, "consumer", 1) as reader:
            await reader.desk.until(lambda end=number + 1: reader.desk.next_offsets.get(here) == end, "the end")
            if reader.desk.count() < number:
                return
    raise AssertionError("the broker's cleaner does not run (log.cleaner.backoff.ms)")


async def test_a_transactional_topic_is_read_to_its_end(
    kafka_bootstrap: str, topic: Topic, protocol: GroupProtocol
) -> None:
    """Behind the last marker, not behind the last record: the end that is told is the end that Kafka names.

    Case: B53
    Parts: real (Kafka)
    Red when: feed.py's `_reach` takes only an end equal to the position
    """
    name = topic(partitions=1)
    here = Partition(name, 0)
    transactions(kafka_bootstrap, name, [True, False, True, False])
    async with reading(kafka_bootstrap, name, protocol, 1) as world:
        await world.desk.until(lambda: bool(world.desk.said("reached")))
        assert world.desk.offsets(here) == [0, 1, 6, 7]
        assert await world.port.watermarks([here]) == {here: (0, 12)}
        assert world.desk.said("reached")[-1].value == 12


async def test_an_open_transaction_is_the_end_for_now(
    kafka_bootstrap: str, topic: Topic, protocol: GroupProtocol
) -> None:
    name = topic(partitions=1)
    here = Partition(name, 0)
    transactions(kafka_bootstrap, name, [True])
    writer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": f"tx-{uuid.uuid4()}", "log_level": 0})
    await asyncio.to_thread(writer.init_transactions, 30)
    writer.begin_transaction()
    writer.produce(name, b"open", partition=0)
    writer.flush(30)
    async with reading(kafka_bootstrap, name, protocol, 1) as world:
        await world.desk.until(lambda: bool(world.desk.said("reached")))
        assert world.desk.said("reached")[-1].value == 3
        assert await world.port.watermarks([here]) == {here: (0, 3)}
        await asyncio.to_thread(writer.commit_transaction, 30)
        await world.desk.until(lambda: world.desk.offsets(here) == [0, 1, 3])
        await world.desk.until(lambda: world.desk.said("reached")[-1].value == 5, "the end behind the marker")


async def test_a_compacted_topic_is_read_to_its_end(
    kafka_bootstrap: str, topic: Topic, protocol: GroupProtocol
) -> None:
    """Holes are no reason to wait.

    Case: B53
    Parts: real (Kafka)
    Red when: feed.py's `_reach` takes only an end equal to the position
    """
    name = topic(partitions=1, config={"cleanup.policy": "compact", "segment.ms": "50", "max.compaction.lag.ms": "1"})
    here = Partition(name, 0)
    world = ClusterWorld(Desk(), PlainIntake(), name, kafka_bootstrap, protocol)
    for number in range(20):
        world.write(here, b"%d" % number, key=b"k%d" % (number % 2))
    await world.port.stop(1)
    await compacted(kafka_bootstrap, world, here)
    async with reading(kafka_bootstrap, name, protocol, 1) as reader:
        end = (await reader.port.watermarks([here]))[here][1]
        await reader.desk.until(lambda: reader.desk.next_offsets.get(here) == end, "the end")
        offsets = reader.desk.offsets(here)
        assert offsets == sorted(set(offsets))
        assert len(offsets) < end, "there are holes"


async def test_a_start_behind_what_retention_took_is_exact_from_the_first_record(
    kafka_bootstrap: str, topic: Topic, protocol: GroupProtocol
) -> None:
    """The placeholder of the assignment is out of range here: nobody hears of it, and the first seek is exact."""
    name = topic(partitions=4)
    world = ClusterWorld(Desk(), PlainIntake(), name, kafka_bootstrap, protocol)
    for number in range(4):
        for value in range(10):
            world.write(Partition(name, number), b"%d" % value)
    await world.port.stop(1)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    done = cast(dict[TopicPartition, Future[Any]], admin.delete_records([TopicPartition(name, n, 6) for n in range(4)]))
    for answer in done.values():
        answer.result(30)
    async with reading(kafka_bootstrap, name, protocol, 4, Desk(start_at=None)) as reader:
        desk = reader.desk
        for _ in range(30):  # the placeholder's fetch fails meanwhile
            await reader.port.committed([])
        for partition, epoch in desk.owned.items():
            reader.port.seek(partition, epoch, 7)
        await desk.until(lambda: desk.count() == 12)
        assert {tuple(desk.offsets(Partition(name, n))) for n in range(4)} == {(7, 8, 9)}
        assert not desk.said("offset_reset")
        below = Partition(name, 0)
        reader.port.seek(below, desk.owned[below], 2)
        await desk.until(lambda: bool(desk.said("offset_reset", below)), "the gap to be told")


async def test_a_missing_topic_is_latched_and_then_read_when_it_appears(
    kafka_bootstrap: str, topic: Topic, protocol: GroupProtocol
) -> None:
    """Not one warning and then silence: not ready, until it is there.

    Case: B12
    Parts: real (Kafka)
    Red when: topics.py's `seen` does not latch what metadata does not show
    """
    name = f"{topic(partitions=1)}.missing"
    desk = Desk()
    quick = {"topic.metadata.refresh.interval.ms": 1_000}
    world = ClusterWorld(desk, PlainIntake(), name, kafka_bootstrap, protocol, quick)
    world.port.start()
    try:
        await desk.until(lambda: bool(desk.said("topic_error")))
        assert desk.said("topic_error")[0].value[0] == name
        assert "UNKNOWN_TOPIC" in desk.said("topic_error")[0].value[1]
        topic(partitions=2, name=name)
        await desk.until(lambda: desk.said("topic_error")[-1].value == (name, None), "the latch to open")
        await desk.until(lambda: len(desk.owned) == 2, "the assignment")
        world.write(Partition(name, 1), b"v")
        await desk.until(lambda: desk.count() == 1)
    finally:
        await world.port.stop(10)


async def test_a_topic_that_is_made_anew_has_another_id(
    kafka_bootstrap: str, topic: Topic, protocol: GroupProtocol
) -> None:
    """The id tells incarnations apart while the client goes on asking.

    Case: B08
    Parts: real (Kafka)
    Red when: admin.py's `_facts` leaves the topic id out
    """
    name = topic(partitions=1)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    async with reading(kafka_bootstrap, name, protocol, 1) as world:
        before = await world.port.topic_ids([name])
        assert before[name]
        await asyncio.to_thread(admin.delete_topics([name])[name].result, 30)
        assert (await world.port.topic_ids([name]))[name] is None
        await asyncio.to_thread(admin.create_topics([NewTopic(name, 1, 1)])[name].result, 30)
        after = await world.port.topic_ids([name])
        assert after[name]
        assert after != before


async def test_a_blocked_event_loop_costs_no_membership(kafka_bootstrap: str, topic: Topic) -> None:
    """Handlers may block for longer than the poll interval: the client goes on polling, and nothing is lost.

    Case: B05, B16
    Parts: real (Kafka)
    Red when: thread.py's `_turn` returns before it reads while everything is paused
    """
    name = topic(partitions=2)
    interval_s = 1.0
    async with reading(kafka_bootstrap, name, "consumer", 2, max_poll_interval_ms=int(interval_s * 1000)) as world:
        world.port.pause(frozenset(world.desk.owned))
        time.sleep(interval_s * 3)  # a bad handler on the event loop
        assert time.monotonic() - world.port.polled_at() < interval_s
        assert not world.desk.said("lost")
        assert world.port.counts.poll_exceeded == 0
        here = Partition(name, 0)
        assert await world.port.commit({here: 0}) == {here: CommitAnswer.ACCEPTED}


async def test_a_zombies_commit_is_refused_although_it_still_lists_its_partition(
    kafka_bootstrap: str, topic: Topic
) -> None:
    """A member that froze beyond its session owns nothing, whatever it believes: only Kafka's answer counts."""
    name = topic(partitions=1)
    here = Partition(name, 0)
    group = f"g-{uuid.uuid4().hex[:8]}"
    zombie = await asyncio.create_subprocess_exec(
        sys.executable, str(ZOMBIE), kafka_bootstrap, group, name, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert zombie.stdout is not None
    assert zombie.stdin is not None
    assert (await zombie.stdout.readline()) == b"accepted\n"
    os.kill(zombie.pid, signal.SIGSTOP)
    heir = Desk()
    world = ClusterWorld(heir, PlainIntake(), name, kafka_bootstrap, "consumer", group=group)
    world.port.start()
    try:
        await heir.until(lambda: here in heir.owned, "Kafka to give the zombie's partition to its heir", 60)
        assert await world.port.commit({here: 5}) == {here: CommitAnswer.ACCEPTED}
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.stdin.write(b"commit\n")
        assert (await zombie.stdout.readline()) == b"refused, still listing 1\n"
        assert await world.port.committed([here]) == {here: 5}
    finally:
        await world.port.stop(10)
        with contextlib.suppress(ProcessLookupError):
            zombie.kill()
        await zombie.wait()


@pytest.mark.parametrize("size", [100_000])
async def test_a_backlog_is_not_drawn_into_memory(kafka_bootstrap: str, topic: Topic, size: int) -> None:
    """While everything is paused and polling goes on, what was prefetched stays within the budget.

    Case: B15
    Parts: real (Kafka)
    Red when: config.py leaves out `queued.max.messages.kbytes`
    """
    name = topic(partitions=4)
    budget = 16 << 20
    writer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0, "linger.ms": 20})
    for number in range(1_600):
        writer.produce(name, os.urandom(size), partition=number % 4)
        writer.poll(0)
        if number % 200 == 0:
            writer.flush(60)
    writer.flush(60)
    reader = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.client.backlog",
        kafka_bootstrap,
        name,
        str(budget),
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    out, _ = await reader.communicate()
    held, grown, total = (int(number) for number in out.split())
    assert held <= budget // 4, "one read"
    assert grown <= 2 * budget, f"{grown} bytes"
    assert total == 1_600
