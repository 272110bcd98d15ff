"""Topics whose logs have no record at their end, and topics that are not what they were."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.services.topics import Topic
from tests.support.running import (
    PATIENCE_S,
    RunningWorker,
    Sent,
    Stage,
    committed,
    note,
    reader,
    table_of,
    unique,
)
from tidegate.consumers import App, position
from tidegate.inbox.errors import FatalError

PROTOCOLS: Mapping[str, Mapping[str, str]] = {
    "consumer": {},
    "classic": {"TIDEGATE_KAFKA_GROUP_PROTOCOL": "classic"},
}

pytestmark = pytest.mark.parametrize("protocol", PROTOCOLS)


def noting(*topics: str, **options: str) -> App:
    """A reader with one projection into `public.effect`."""
    app = reader(*topics, **options)
    (consumer,) = app.consumers.values()
    consumer.projection("effects")(note)
    return app


def transactions(bootstrap: str, topic: str, outcomes: Mapping[str, bool]) -> None:
    """A transaction of one record for each id, committed or aborted."""
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("tx"), "log_level": 0})
    writer.init_transactions(PATIENCE_S)
    for event_id, commits in outcomes.items():
        writer.begin_transaction()
        sent = Sent(event_id)
        writer.produce(topic, sent.bytes_, key=sent.key, partition=0, headers=sent.all_headers)
        writer.flush(PATIENCE_S)
        (writer.commit_transaction if commits else writer.abort_transaction)(PATIENCE_S)


def end_of(bootstrap: str, topic: str) -> int:
    """The log's end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": unique("eye"), "log_level": 0})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)[1]
    finally:
        consumer.close()


async def lag_is_told(worker: RunningWorker, topic: str) -> float:
    """The lag figure behind the next look."""
    worker.metrics.set("lag_records", -1, topic, "0")
    await worker.until(lambda: worker.metrics.value("lag_records", topic, "0") >= 0)
    return worker.metrics.value("lag_records", topic, "0")


async def test_a_transactional_topic_is_consumed_to_its_end(stage: Stage, topic: Topic, protocol: str) -> None:
    """Markers and aborted records at the end: the client's position is committed, the lag is zero.

    Case: B53
    Parts: real (Kafka, PostgreSQL)
    Red when: engine/engine.py does nothing about `Reached`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name)
    await asyncio.to_thread(
        transactions, stage.bootstrap, name, {"a": True, "b": False, "c": True, "d": False, "e": False}
    )
    worker = await stage.start(app, variables=PROTOCOLS[protocol])
    await worker.until_counted("events", "effects", "completed", n=2)
    assert await asyncio.to_thread(end_of, stage.bootstrap, name) == 10
    await worker.until(committed(stage, 10))
    assert await lag_is_told(worker, name) == 0
    await asyncio.to_thread(transactions, stage.bootstrap, name, {"f": True})
    await worker.until_counted("events", "effects", "completed", n=3)
    await worker.until(committed(stage, 12))

    async def raised() -> bool:
        return await stage.checkpoints("effects") == {0: 12}

    await worker.until(raised)


async def test_a_compacted_topic_is_consumed_to_its_end(stage: Stage, topic: Topic, protocol: str) -> None:
    """Most records are gone, and the end is a marker: the rest is handled, the lag is zero.

    Case: B53
    Parts: real (Kafka, PostgreSQL)
    Red when: engine/engine.py does nothing about `Reached`
    """
    await table_of(stage)
    compacting = {"cleanup.policy": "compact", "segment.ms": "50", "max.compaction.lag.ms": "1"}
    name = topic(partitions=1, config=compacting)
    app = noting(name)
    produced = await compacted(stage, name)
    await asyncio.to_thread(transactions, stage.bootstrap, name, {"undone": False})
    worker = await stage.start(app, variables=PROTOCOLS[protocol])
    await worker.until(committed(stage, produced + 2))
    assert 0 < worker.events("effects", "completed") < produced
    assert await lag_is_told(worker, name) == 0


async def compacted(stage: Stage, topic: str) -> int:
    """Produce two keys until the broker's cleaner has made holes; gives the log's end."""
    for n in range(10):
        await stage.send(topic, Sent(f"e{n}", key=b"k%d" % (n % 2)))
    deadline_s = time.monotonic() + PATIENCE_S
    for n in itertools.count(10):
        assert time.monotonic() < deadline_s, "the broker's cleaner does not run (log.cleaner.backoff.ms)"
        await stage.send(topic, Sent(f"e{n}", key=b"k%d" % (n % 2)))
        if await asyncio.to_thread(_records, stage.bootstrap, topic, n + 1) < n + 1:
            return n + 1
    raise AssertionError("counting ended")


def _records(bootstrap: str, topic: str, end: int) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": unique("eye"), "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = 0
    try:
        while (message := consumer.poll(PATIENCE_S)) is not None:
            seen += 1
            if message.offset() == end - 1:
                return seen
    finally:
        consumer.close()
    raise AssertionError("the end was not reached")


async def made_anew(stage: Stage, topic: str) -> None:
    """Delete a topic and make it again under its name."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap, "log_level": 0})
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, PATIENCE_S)
    await asyncio.to_thread(_make, admin, topic)


def _make(admin: AdminClient, topic: str) -> None:
    while True:
        try:
            admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])[topic].result(PATIENCE_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            continue  # its deletion is under way
        return


async def test_a_topic_that_is_made_anew_under_a_running_worker_is_noticed(
    stage: Stage, topic: Topic, protocol: str
) -> None:
    """Its offsets mean other records: the worker leaves, and says what to do.

    Case: B08
    Parts: real (Kafka, PostgreSQL)
    Red when: worker/topics.py `identity` leaves out the call of `_recreated`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name)
    await stage.send(name, *(Sent(f"e{n}") for n in range(3)))
    worker = await stage.start(app, variables=PROTOCOLS[protocol])
    await worker.until_counted("events", "effects", "completed", n=3)
    await worker.until(committed(stage, 3))
    await made_anew(stage, name)
    await stage.send(name, Sent("new"))
    error = await worker.ends(60)
    assert isinstance(error, FatalError)
    assert "was deleted and made anew" in str(error)
    assert f"tidegate topic reset {name}" in str(error)
    assert await stage.value("SELECT count(*) FROM public.effect") == 3


async def test_a_topic_that_is_made_anew_is_read_from_its_beginning_where_that_is_declared(
    stage: Stage, topic: Topic, protocol: str
) -> None:
    """Events known by their position: the new records are handled, and not taken for repeats of the old.

    Case: B08
    Parts: real (Kafka, PostgreSQL)
    Red when: inbox/topics.py `raise_incarnation` leaves the incarnation where it was
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name, on_recreated="earliest", event_id=position())
    (consumer,) = app.consumers.values()
    consumer.projection("effects")(note)
    await stage.send(name, *(Sent(None, {"n": n}) for n in range(10)))
    worker = await stage.start(app, variables=PROTOCOLS[protocol])
    await worker.until_counted("events", "effects", "completed", n=10)
    await worker.until(committed(stage, 10))
    await made_anew(stage, name)
    await stage.send(name, *(Sent(None, {"n": n}) for n in range(10, 15)))
    await worker.until(lambda: worker.events("effects", "completed") == 15, 60)
    assert await stage.value("SELECT array_agg(n ORDER BY n) FROM public.effect") == list(range(15))
    assert worker.events("effects", "skipped_duplicate") == 0
    assert await stage.checkpoints("effects") == {0: 5}
    await worker.until(committed(stage, 5))
