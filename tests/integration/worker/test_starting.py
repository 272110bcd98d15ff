"""Where partitions start: decided by the worker from the database, never by Kafka's own reset."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.services.topics import Topic
from tests.support.running import RunningWorker, Sent, Stage, committed, note, reader, table_of
from tidegate.consumers import App
from tidegate.inbox.errors import ConfigurationError, FatalError


def noting(*topics: str, handlers: Sequence[str] = ("effects",), version: int = 1, **options: Any) -> App:
    """A reader whose projections write rows of `public.effect`."""
    app = reader(*topics, **options)
    (consumer,) = app.consumers.values()
    for name in handlers:
        consumer.projection(name, version=version)(note)
    return app


def group_of(app: App) -> str:
    """The consumer's name, under which another app goes on where this one stopped."""
    return next(iter(app.consumers))


async def once(stage: Stage, app: App, n: int, handler: str = "effects") -> RunningWorker:
    """Run until `n` events are handled and committed, then stop."""
    worker = await stage.start(app)
    await worker.until_counted("events", handler, "completed", n=n)
    assert await worker.stop() == 0
    return worker


def sent(start: int, stop: int, partition: int = 0) -> list[Sent]:
    """Records with ids of their own."""
    return [Sent(f"p{partition}-{n}", {"n": n}, partition=partition) for n in range(start, stop)]


async def truncated(stage: Stage, topic: str, before: int) -> None:
    """Retention takes what is below an offset."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    deleting = cast("dict[TopicPartition, Future[object]]", admin.delete_records([TopicPartition(topic, 0, before)]))
    for answer in deleting.values():
        await asyncio.to_thread(answer.result, 20)


async def test_records_that_retention_took_are_told_and_stepped_over_only_by_policy(stage: Stage, topic: Topic) -> None:
    """Forty records are gone: the worker refuses to go on, unless the app declares that it may.

    Case: B07
    Parts: real (Kafka, PostgreSQL)
    Red when: engine/positions.py `_resume` takes `lost = 0`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name)
    await stage.send(name, *sent(0, 10))
    await once(stage, app, 10)
    await stage.send(name, *sent(10, 80))
    await truncated(stage, name, 50)
    refused = await stage.start(noting(name, consumer=group_of(app)))
    error = await refused.ends()
    assert isinstance(error, FatalError)
    assert f"40 records of {name}/0 that effects never saw" in str(error)
    assert "on_gap='earliest'" in str(error)
    assert await stage.checkpoints("effects") == {0: 10}
    worker = await stage.start(noting(name, consumer=group_of(app), on_gap="earliest"))
    await worker.until_counted("events", "effects", "completed", n=30)
    assert worker.metrics.value("gap_records", name, "0") == 40
    assert await stage.value("SELECT array_agg(n ORDER BY n) FROM public.effect") == [*range(10), *range(50, 80)]


async def test_a_new_partition_of_a_known_group_is_read_from_its_beginning(stage: Stage, topic: Topic) -> None:
    """What was produced into a new partition before it was noticed is handled, even where `start` is "latest".

    Case: B07
    Parts: real (Kafka, PostgreSQL)
    Red when: engine/positions.py `_never_seen` takes `first_start = True`
    """
    await table_of(stage)
    name = topic(partitions=2)
    app = noting(name, start="latest")
    worker = await stage.ready(app)
    await worker.until(committed(stage, 0, 1))
    await stage.send(name, *sent(0, 2), *sent(0, 1, partition=1))
    await worker.until_counted("events", "effects", "completed", n=3)
    assert await worker.stop() == 0
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    await asyncio.to_thread(admin.create_partitions([NewPartitions(name, 3)])[name].result, 20)
    await stage.send(name, *sent(0, 5, partition=2))
    worker = await stage.start(noting(name, start="latest", consumer=group_of(app)))
    await worker.until_counted("events", "effects", "completed", n=5)
    assert await stage.checkpoints("effects") == {0: 2, 1: 1, 2: 5}


async def test_a_group_whose_offsets_expired_goes_on_from_its_checkpoints(stage: Stage, topic: Topic) -> None:
    """Kafka forgot the group; the database did not: nothing is skipped, nothing is handled twice.

    Case: B07
    Parts: real (Kafka, PostgreSQL)
    Red when: engine/positions.py `_resume` begins with `return _never_seen(found, policy)`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name, start="latest")
    worker = await stage.ready(app)
    await worker.until(committed(stage, 0))
    await stage.send(name, *sent(0, 4))
    await worker.until_counted("events", "effects", "completed", n=4)
    assert await worker.stop() == 0
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    forgetting = cast("dict[str, Future[None]]", admin.delete_consumer_groups([group_of(app)]))
    await asyncio.to_thread(forgetting[group_of(app)].result, 20)
    await stage.send(name, *sent(4, 6))
    worker = await stage.start(noting(name, start="latest", consumer=group_of(app)))
    await worker.until_counted("events", "effects", "completed", n=2)
    assert worker.events("effects", "skipped_duplicate") == 0
    await worker.until(committed(stage, 6))

    async def known_to_kafka() -> bool:  # the fence row says so first
        return await offsets(stage, group_of(app), name, 1) == [6]

    await worker.until(known_to_kafka)


async def offsets(stage: Stage, group: str, topic: str, partitions: int) -> list[int]:
    """What Kafka holds for a group; -1001 where it holds nothing."""
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, n) for n in range(partitions)])
    answers = cast("dict[str, Future[ConsumerGroupTopicPartitions]]", admin.list_consumer_group_offsets([wanted]))
    found = await asyncio.to_thread(answers[group].result, 20)
    return [place.offset for place in found.topic_partitions or ()]


async def test_every_partition_has_a_committed_offset_from_its_first_assignment_on(stage: Stage, topic: Topic) -> None:
    """A new group on a topic with data in two of five partitions: Kafka holds an offset for all five.

    Case: B57
    Parts: real (Kafka, PostgreSQL)
    Red when: worker/ownership.py `_agree` returns `if committed is None`
    """
    await table_of(stage)
    name = topic(partitions=5)
    app = noting(name)
    await stage.send(name, *sent(0, 2, partition=1), *sent(0, 3, partition=3))
    worker = await stage.start(app, variables={"TIDEGATE_WORKER_COMMIT_INTERVAL_S": "600"})
    await worker.until_counted("events", "effects", "completed", n=5)

    async def all_there() -> bool:
        return min(await offsets(stage, group_of(app), name, 5)) >= 0

    await worker.until(all_there)


async def test_a_checkpoint_beyond_the_end_stops_and_names_the_way_out(stage: Stage, topic: Topic) -> None:
    """Somebody truncated the log, or made the topic anew where ids are not told: never waited for in silence.

    Case: B08
    Parts: real (Kafka, PostgreSQL)
    Red when: engine/positions.py `decide_start` leaves out its `beyond`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name)
    await stage.send(name, *sent(0, 2))
    await once(stage, app, 2)
    await stage.execute("UPDATE tidegate.checkpoint SET next_offset = 100")
    error = await (await stage.start(noting(name, consumer=group_of(app)))).ends()
    assert isinstance(error, FatalError)
    assert f"the checkpoint 100 of {name}/0 is beyond the log's end 2" in str(error)
    assert f"tidegate topic reset {name}" in str(error)


async def test_latest_counts_at_the_first_start_only(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name, start="latest")
    await stage.send(name, *sent(0, 3))
    worker = await stage.ready(app)
    await worker.until(committed(stage, 3))
    await stage.send(name, *sent(3, 4))
    await worker.until_counted("events", "effects", "completed", n=1)
    assert await worker.stop() == 0
    await stage.send(name, *sent(4, 6))
    await once(stage, noting(name, start="latest", consumer=group_of(app)), 2)
    assert await stage.value("SELECT array_agg(n ORDER BY n) FROM public.effect") == [3, 4, 5]


async def test_a_new_handler_begins_where_the_others_are(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name)
    await stage.send(name, *sent(0, 3))
    await once(stage, app, 3)
    await stage.send(name, *sent(3, 5))
    both = noting(name, consumer=group_of(app), handlers=("effects", "younger"))
    worker = await stage.start(both)
    await worker.until_counted("events", "effects", "completed", n=2)
    await worker.until_counted("events", "younger", "completed", n=2)
    assert await stage.checkpoints("younger") == await stage.checkpoints("effects") == {0: 5}


async def test_a_handler_that_is_gone_keeps_its_place_and_goes_on_there_when_it_is_back(
    stage: Stage, topic: Topic
) -> None:
    """A deploy without a handler, then a rollback: what came meanwhile is handled once."""
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name, handlers=("effects", "sometimes"))
    await stage.send(name, *sent(0, 2))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=2)
    await worker.until_counted("events", "sometimes", "completed", n=2)
    assert await worker.stop() == 0
    await stage.send(name, *sent(2, 5))
    worker = await once(stage, noting(name, consumer=group_of(app)), 3)
    assert await stage.checkpoints("sometimes") == {0: 2}
    worker = await stage.start(noting(name, consumer=group_of(app), handlers=("effects", "sometimes")))
    await worker.until_counted("events", "sometimes", "completed", n=3)
    assert worker.events("effects", "completed") == 0
    assert await stage.checkpoints("sometimes") == {0: 5}


async def test_a_changed_version_of_a_projection_is_refused(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = noting(name)
    await stage.send(name, *sent(0, 1))
    await once(stage, app, 1)
    error = await (await stage.start(noting(name, version=2, consumer=group_of(app)))).ends()
    assert isinstance(error, ConfigurationError)
    assert "its version is 2, but version 1 is live" in str(error)
    assert "declare version=1 again" in str(error)


@pytest.mark.parametrize(
    ("statements", "kind", "said"),
    [
        (("DROP SCHEMA tidegate CASCADE",), ConfigurationError, "tidegate migrate"),
        (("UPDATE tidegate.tidegate_version SET version_num = '9999'",), FatalError, "newer"),
        (("ALTER TABLE tidegate.claim_1 DROP CONSTRAINT claim_1_pkey",), ConfigurationError, "unique key"),
    ],
    ids=["missing", "newer", "without-its-key"],
)
async def test_a_schema_that_cannot_keep_the_promise_is_refused_with_the_fix(
    stage: Stage, topic: Topic, statements: tuple[str, ...], kind: type[Exception], said: str
) -> None:
    """No schema, one of a later release, one whose unique key somebody dropped: nothing starts.

    Case: B50
    Parts: real (Kafka, PostgreSQL)
    Red when: worker/registering.py `register` leaves out `check_schema`
    """
    name = topic(partitions=1)
    await stage.execute(*statements)
    error = await (await stage.start(noting(name))).ends()
    assert isinstance(error, kind)
    assert said in str(error)
