"""Dead-letter topics on the real broker are looked at before the first record, and made where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient

from tests.services.topics import Topic
from tests.support.running import letters_of, note, reader
from tidegate.consumers import App
from tidegate.consumers.cli.cluster import Cluster
from tidegate.consumers.cli.topics import check_letter_topics, ready_letter_topics
from tidegate.consumers.layers import load
from tidegate.consumers.settings import Settings
from tidegate.inbox.errors import ConfigurationError, TransientError

DAY_MS = 86_400_000


def settings(bootstrap: str, **more: str) -> Settings:
    return load({"TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap, **more}).settings


def projecting(topic: str) -> App:
    app = reader(topic)
    (consumer,) = app.consumers.values()
    consumer.projection("effects")(note)
    return app


def refused(bootstrap: str, app: App, **more: str) -> str:
    """What `run` refuses to start with, which is what `check` finds."""
    (consumer,) = app.consumers.values()
    chosen = settings(bootstrap, **more)
    with pytest.raises(ConfigurationError) as error:
        ready_letter_topics(chosen, consumer)
    problems, _ = check_letter_topics(chosen, Cluster(chosen), consumer)
    assert error.value.problems == tuple(problems)
    return str(error.value)


def test_a_missing_topic_is_refused_by_name_with_the_ways_to_have_it(kafka_bootstrap: str, topic: Topic) -> None:
    """No topic, and a broker that makes none: the start fails and names it, its key and the fix.

    Case: B31
    Parts: real (Kafka)
    Red when: cli/topics.py's check_letter_topics takes every broker for one that makes topics
    """
    name = topic(partitions=3)
    app = projecting(name)
    said = refused(kafka_bootstrap, app)
    assert f"topic {letters_of(name, app)}: it does not exist" in said
    assert "tidegate topic create" in said
    assert "3 partitions" in said
    assert "dlq.create_topics=true" in said


@pytest.mark.parametrize(
    ("config", "what", "fix"),
    [
        ({"cleanup.policy": "compact"}, "holds compact", "set cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "holds compact", "set cleanup.policy=delete"),
        ({"max.message.bytes": "20000"}, "max.message.bytes is 20000", "set max.message.bytes="),
        ({"retention.ms": "-1"}, "it keeps letters for ever", "set retention.ms=1209600000"),
        ({"retention.ms": str(30 * DAY_MS)}, "keeps letters for 2592000 s", "raise dlq.retention_s"),
    ],
)
def test_a_topic_that_would_lose_or_outlive_letters_is_refused(
    kafka_bootstrap: str, topic: Topic, config: dict[str, str], what: str, fix: str
) -> None:
    """Compaction, a size that fits no letter, and a retention beyond what the inbox answers for.

    Case: B31, B33
    Parts: real (Kafka)
    Red when: letter_topics.py's problems returns [] for `compact`
    """
    name = topic(partitions=1)
    app = projecting(name)
    topic(partitions=1, name=letters_of(name, app), config=config)
    said = refused(kafka_bootstrap, app)
    assert f"topic {letters_of(name, app)}: " in said
    assert what in said
    assert fix in said


def test_the_retention_that_the_inbox_answers_for_is_a_setting(kafka_bootstrap: str, topic: Topic) -> None:
    name = topic(partitions=1)
    app = projecting(name)
    (consumer,) = app.consumers.values()
    topic(partitions=1, name=letters_of(name, app), config={"retention.ms": str(30 * DAY_MS)})
    ready_letter_topics(settings(kafka_bootstrap, TIDEGATE_DLQ_RETENTION_S=str(30 * 86_400)), consumer)


def test_a_topic_that_takes_less_than_its_origin_is_a_warning(kafka_bootstrap: str, topic: Topic) -> None:
    """Letters of the largest records would be claim letters, which is sound: known, not refused."""
    name = topic(partitions=1)
    app = projecting(name)
    (consumer,) = app.consumers.values()
    topic(partitions=1, name=letters_of(name, app))
    (warning,) = ready_letter_topics(settings(kafka_bootstrap), consumer)
    assert "max.message.bytes is 1048588" in warning
    assert "stays in the inbox" in warning


def test_what_run_may_make_it_makes_with_rules_that_check_accepts(
    kafka_bootstrap: str, topic: Topic, made: list[str]
) -> None:
    """Once for any number of workers that start at once; `check` only asks whether it could be."""
    name = topic(partitions=3)
    app = projecting(name)
    (consumer,) = app.consumers.values()
    making = settings(kafka_bootstrap, TIDEGATE_DLQ_CREATE_TOPICS="true")
    cluster = Cluster(making)
    dead = letters_of(name, app)
    assert check_letter_topics(making, cluster, consumer) == ([], [])
    assert cluster.describe([dead])[dead].error is not None
    ready_letter_topics(making, consumer)
    made.append(dead)
    while cluster.describe([dead])[dead].error is not None:
        pass  # the answer to a creation is ahead of the brokers' metadata
    assert cluster.describe([dead])[dead].partitions == 3
    assert ready_letter_topics(making, consumer) == []
    rules = cluster.rules([dead])[dead]
    assert (rules.cleanup, rules.retention_ms, rules.may_write) == (frozenset({"delete"}), 14 * DAY_MS, True)
    assert rules.message_bytes_max > cluster.rules([name])[name].message_bytes_max


@pytest.fixture
def made(kafka_bootstrap: str) -> Iterator[list[str]]:
    """Topics that a test has others make; they are deleted behind it."""
    names: list[str] = []
    yield names
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for answer in cast("dict[str, Future[None]]", admin.delete_topics(names)).values():
        answer.result(20)


def test_a_cluster_that_is_away_is_not_a_verdict() -> None:
    app = projecting("orders")
    (consumer,) = app.consumers.values()
    with pytest.raises(TransientError):
        ready_letter_topics(settings("127.0.0.1:1"), consumer)
