"""migrate, check, lag, topic and restored against a real broker and a real PostgreSQL, each as a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.services import database
from tests.services.topics import Topic
from tests.support.cli import Ended, tidegate

APP = """
from collections.abc import Sequence
from sqlalchemy.ext.asyncio import AsyncConnection
from tidegate.consumers.app import App
from tidegate.consumers.codecs.json import Json
from tidegate.inbox.event import Event
from tidegate.inbox.scope import position

app = App("shop", owner="shop-team")
orders = app.consumer({consumer!r}, topics=[{topic!r}], codec=Json(), event_id=position())

@orders.projection("revenue", version={version})
async def revenue(events: Sequence[Event[dict]], tx: AsyncConnection) -> None: ...
"""

Run = Callable[..., Ended]


class Shop:
    """An app on disk, and its command line."""

    def __init__(self, folder: Path, bootstrap: str, url: str, topic: str, consumer: str) -> None:
        self.folder, self.topic, self.consumer, self.url = folder, topic, consumer, url
        self.variables = {
            "TIDEGATE_APP": "shop:app",
            "TIDEGATE_DATABASE_URL": url,
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        }
        self.declare()

    def declare(self, version: int = 1, topic: str | None = None) -> None:
        text = APP.format(consumer=self.consumer, topic=topic or self.topic, version=version)
        (self.folder / "shop.py").write_text(text)

    def tidegate(self, *arguments: str, **variables: str) -> Ended:
        return tidegate(*arguments, cwd=self.folder, variables={**self.variables, **variables})

    def sql(self, *statements: str) -> None:
        database.execute(self.url, *statements)


@pytest.fixture
def shop(tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic) -> Shop:
    name = topic(partitions=2)
    return Shop(tmp_path, kafka_bootstrap, database_url, name, f"c-{name}"[:90])


def produce(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(count):
        producer.produce(topic, b'{"n": %d}' % n, partition=partition)
    assert producer.flush(20) == 0


def commit(bootstrap: str, group: str, topic: str, partition: int, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def knows(shop: Shop, next_offset: int, kafka_offset: int, version: int = 1) -> None:
    """What a worker would have left behind in partition 0."""
    shop.sql(
        f"INSERT INTO tidegate.topic (name, topic_id) VALUES ('{shop.topic}', 'an-old-id')",
        f"INSERT INTO tidegate.handler (consumer, name) VALUES ('{shop.consumer}', 'revenue')",
        f"INSERT INTO tidegate.version (projection, version, state) SELECT id, {version}, 'live' FROM tidegate.handler",
        "INSERT INTO tidegate.checkpoint (handler, version, topic, partition, next_offset)"
        f" SELECT id, {version}, '{shop.topic}', 0, {next_offset} FROM tidegate.handler",
        "INSERT INTO tidegate.fence (consumer, topic, partition, kafka_offset)"
        f" VALUES ('{shop.consumer}', '{shop.topic}', 0, {kafka_offset})",
    )


def test_migrate_makes_the_tables_once_and_says_so(shop: Shop) -> None:
    first, second = shop.tidegate("migrate"), shop.tidegate("migrate")
    assert (first.code, second.code) == (0, 0)
    assert "made new" in first.out
    assert "up to date" in second.out


def test_a_database_that_is_away_is_one_clear_line(shop: Shop) -> None:
    ended = shop.tidegate("migrate", TIDEGATE_DATABASE_URL="postgresql://u:hidden@127.0.0.1:1/d")
    assert ended.code == 70
    assert "database.url" in ended.err
    assert "hidden" not in ended.err
    assert "Traceback" not in ended.err


def test_check_finds_everything_that_is_missing_at_once_and_then_nothing(shop: Shop) -> None:
    before = shop.tidegate("check")
    assert before.code == 78
    assert "tidegate migrate" in before.err
    assert f"topic {shop.topic}.{shop.consumer}.dlq" in before.err
    assert "warning" in before.err  # position-made ids do not catch a producer's duplicates
    assert shop.tidegate("migrate").code == 0
    assert "made " in shop.tidegate("topic", "create").out
    assert "every dead-letter topic is there" in shop.tidegate("topic", "create").out
    after = shop.tidegate("check")
    assert (after.code, after.out.strip()) == (0, "no problems found")


def test_check_names_a_topic_that_does_not_exist(shop: Shop) -> None:
    shop.tidegate("migrate")
    shop.declare(topic="nowhere.at.all")
    ended = shop.tidegate("check")
    assert ended.code == 78
    assert "topic nowhere.at.all: " in ended.err
    assert "UNKNOWN_TOPIC" in ended.err


def test_check_says_which_of_database_and_broker_is_away(shop: Shop) -> None:
    ended = shop.tidegate(
        "check",
        TIDEGATE_DATABASE_URL="postgresql://u@127.0.0.1:1/d",
        TIDEGATE_KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1",
    )
    assert ended.code == 78
    assert "database.url: " in ended.err
    assert "kafka.bootstrap_servers: " in ended.err


def test_check_refuses_a_changed_projection_version_and_a_handler_that_is_gone(shop: Shop) -> None:
    shop.tidegate("migrate")
    shop.tidegate("topic", "create")
    knows(shop, next_offset=0, kafka_offset=0)
    shop.sql(f"INSERT INTO tidegate.handler (consumer, name) VALUES ('{shop.consumer}', 'send-invoice')")
    shop.declare(version=2)
    ended = shop.tidegate("check")
    assert ended.code == 78
    assert "version=1" in ended.err
    assert "handler 'send-invoice'" in ended.err


def test_check_refuses_a_schema_of_a_newer_release(shop: Shop) -> None:
    shop.tidegate("migrate")
    shop.sql("UPDATE tidegate.tidegate_version SET version_num = '9999'")
    ended = shop.tidegate("check")
    assert ended.code == 78
    assert "newer" in ended.err


def test_lag_is_right_without_any_worker(shop: Shop, kafka_bootstrap: str) -> None:
    shop.tidegate("migrate")
    assert "no consumer has started yet" in shop.tidegate("lag").out
    produce(kafka_bootstrap, shop.topic, 0, 10)
    produce(kafka_bootstrap, shop.topic, 1, 4)
    knows(shop, next_offset=7, kafka_offset=5)
    lines = {line["partition"]: line for line in json.loads(shop.tidegate("lag", "--json").out)}
    assert (lines[0]["next_offset"], lines[0]["end"], lines[0]["lag"], lines[0]["kafka_offset"]) == (7, 10, 3, 5)
    assert (lines[1]["next_offset"], lines[1]["end"], lines[1]["lag"]) == (None, 4, 4)
    assert "7 events behind" in shop.tidegate("lag", "--consumer", shop.consumer).out


def test_a_topic_is_reset_once_for_each_id_and_by_hand_each_time(shop: Shop) -> None:
    """An operator's word that a topic is another one under its old name raises its incarnation.

    Case: B08
    Parts: real (Kafka, PostgreSQL)
    Red when: topics.py `reset` passes None for the broker's topic id
    """
    shop.tidegate("migrate")
    assert shop.tidegate("topic", "reset", "--reason", "made anew", shop.topic).code == 78  # nobody has read it yet
    knows(shop, next_offset=7, kafka_offset=7)
    assert "incarnation 0 -> 1" in shop.tidegate("topic", "reset", "--reason", "made anew", shop.topic).out
    assert "nothing to do" in shop.tidegate("topic", "reset", "--reason", "made anew", shop.topic).out
    assert "incarnation 1 -> 2" in shop.tidegate("topic", "reset", "--reason", "made anew", shop.topic, "--by-hand").out


def test_a_restored_database_is_declared_with_bounds_and_an_audit_line(shop: Shop, kafka_bootstrap: str) -> None:
    shop.tidegate("migrate")
    produce(kafka_bootstrap, shop.topic, 0, 10)
    knows(shop, next_offset=3, kafka_offset=3)
    commit(kafka_bootstrap, shop.consumer, shop.topic, 0, 8)
    assert shop.tidegate("restored", "--reason", "back to Monday", "--consumer", "unheard-of", "--yes").code == 78
    asked = shop.tidegate("restored", "--reason", "back to Monday", "--consumer", shop.consumer)
    assert asked.code != 0  # nobody said yes
    done = shop.tidegate("restored", "--reason", "back to Monday", "--consumer", shop.consumer, "--yes")
    assert done.code == 0
    assert "declared" in done.out
    shop.sql(
        "DO $$ BEGIN"
        "  ASSERT (SELECT kafka_offset FROM tidegate.fence WHERE partition = 0) = 8;"
        "  ASSERT (SELECT until_offset FROM tidegate.restored WHERE partition = 0) = 10;"
        "  ASSERT (SELECT next_offset FROM tidegate.checkpoint) = 3;"
        "  ASSERT (SELECT count(*) FROM tidegate.audit WHERE act = 'restored' AND actor <> '') = 1;"
        "END $$"
    )
