"""Dead letters that their topic does not take, on the real broker: too large, or not at all. Nothing else waits."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from structlog.testing import capture_logs

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters
from tests.support.running import RunningWorker, Sent, Stage, reader, table_of
from tidegate.consumers import App, Context, RetryPolicy
from tidegate.dlq.letter import Letter, read_letter

QUICK = RetryPolicy(attempts_max=2, base_s=0.001, cap_s=0.002)
SMALL = 100_000


async def refuse(command: Do, ctx: Context) -> None:
    """At length."""
    raise ValueError("no " * 10_000)


def refusing(topic: str, **options: Any) -> App:
    app = reader(topic)
    at_desk(app, refuse, retry=QUICK, **options)
    return app


def padded(id_: str, size: int, key: bytes | None = b"k") -> Sent:
    """A record whose value has exactly this size, and does not become smaller by compression."""
    pad = random.Random(size).randbytes(size).hex()[: size - len(json.dumps({"pad": ""}))]
    return Sent(id_, json.dumps({"pad": pad}).encode(), key=key)


async def read(stage: Stage, topic: str, n: int) -> list[Letter]:
    return [read_letter(record) for record in await stage.read(topic, n)]


async def limit(bootstrap: str, topic: str, size: int) -> None:
    """What the topic takes from now on."""
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type["TOPIC"], topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    answers = cast("dict[object, Future[None]]", admin.incremental_alter_configs([resource]))
    for answer in answers.values():
        await asyncio.to_thread(answer.result, 20)


async def test_a_record_that_only_just_fitted_goes_as_a_claim_and_the_next_go_on(stage: Stage, topic: Topic) -> None:
    """999,000 bytes under a limit of 1,000,000, and a long message: the hash goes out, the payload stays, work goes on.

    Case: B31
    Parts: real (Kafka, PostgreSQL)
    Red when: dlq/letter.py's _without keeps letter.value
    """
    name = topic(partitions=1, config={"max.message.bytes": "1000000"})
    app = refusing(name)
    dead = letters(app, topic)
    await limit(stage.bootstrap, dead, 1_000_000)
    large = padded("large", 999_000)
    await stage.send(name, large, Sent("small"))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=2)
    claim, whole = await read(stage, dead, 2)
    assert (claim.value, claim.left_out, claim.claim_bytes) == (None, ("value",), 999_000)
    assert claim.claim == hashlib.sha256(large.bytes_ or b"").hexdigest()
    assert (whole.event_id, whole.value, whole.claim) == ("small", b"{}", None)
    assert await stage.value("SELECT value FROM tidegate.failure WHERE id_text = 'large'") == large.bytes_
    assert await stage.checkpoints("do") == {0: 2}


async def test_what_a_topic_does_not_take_is_known_before_it_is_sent(stage: Stage, topic: Topic) -> None:
    """The limit of each dead-letter topic is asked for at start: nothing is refused, and no key waits.

    Case: B31
    Parts: real (Kafka, PostgreSQL)
    Red when: run.py's letter_limits returns {}
    """
    name = topic(partitions=1)
    app = refusing(name)
    dead = letters(app, topic)
    await limit(stage.bootstrap, dead, SMALL)
    await stage.send(name, padded("large", 2 * SMALL), Sent("small"))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=2)
    saved = await stage.value("SELECT max(octet_length(payload)) FROM tidegate.outbox")
    assert saved == len(b"{}")
    assert [letter.left_out for letter in await read(stage, dead, 2)] == [("value",), None]


@pytest.mark.parametrize(("size", "left_out"), [(SMALL, ("value",)), (8_000, ("value", "headers"))])
async def test_a_topic_that_takes_less_than_it_did_gets_a_smaller_letter(
    stage: Stage, topic: Topic, size: int, left_out: tuple[str, ...]
) -> None:
    """The broker refuses the letter; the same one goes with less in it, at once, and its outbox row is done.

    Case: B31
    Parts: real (Kafka, PostgreSQL)
    Red when: relaying.py's _smaller returns None
    """
    name = topic(partitions=1)
    app = refusing(name)
    dead = letters(app, topic)
    worker = await stage.ready(app)
    await limit(stage.bootstrap, dead, size)
    large = Sent("large", padded("", 2 * SMALL).value, headers=(("own", random.Random(1).randbytes(20_000)),))
    await stage.send(name, large, Sent("small", key=b"other"))
    await worker.until_counted("outbox_published", "delivered", n=2)
    by_id = {letter.event_id: letter for letter in await read(stage, dead, 2)}
    assert by_id["large"].left_out == left_out
    assert by_id["large"].claim == hashlib.sha256(large.bytes_ or b"").hexdigest()
    assert by_id["small"].left_out is None
    assert worker.metrics.value("outbox_published", "failed") == 0


async def test_a_topic_that_takes_no_letter_pauses_consumption_until_it_does(stage: Stage, topic: Topic) -> None:
    """Letters that wait are bounded: beyond the bound nothing more is read, and health says why.

    Case: B31
    Parts: real (Kafka, PostgreSQL)
    Red when: housekeeping.py's _press takes `too_much = False`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = refusing(name)
    await stage.send(name, *[Sent(f"e{n}", key=b"%d" % n) for n in range(4)])
    worker = await stage.start(app, variables={"TIDEGATE_DLQ_WAITING_MAX": "3"})
    await worker.until(lambda: "outbox" in str(worker.board.ready().body))
    await stage.send(name, Sent("later", key=b"l"))
    await is_paused(worker)
    assert await stage.value("SELECT count(*) FROM tidegate.failure") == 4
    letters(app, topic)
    await worker.until_counted("outbox_published", "delivered", n=5)
    await worker.until(lambda: worker.board.ready().ok)


async def is_paused(worker: RunningWorker) -> None:
    """A whole round of figures, taken while it was paused."""
    await worker.until(lambda: worker.metrics.value("partitions_paused", "dependency") == 1)
    await worker.until(
        lambda: worker.metrics.value("lag_records", next(iter(worker.app.consumers.values())).topics[0], "0") == 1
    )


async def test_letters_that_wait_too_long_pause_consumption_too(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    app = refusing(name)
    await stage.send(name, Sent("e"))
    worker = await stage.start(app, variables={"TIDEGATE_DLQ_WAITING_AGE_MAX_S": "0.5"})
    await worker.until(lambda: "outbox" in str(worker.board.ready().body))
    letters(app, topic)
    await worker.until(lambda: worker.board.ready().ok)


async def test_a_topic_that_is_not_there_is_told_of_once_and_not_for_each_of_its_letters(
    stage: Stage, topic: Topic
) -> None:
    """A line for each of a million letters, every ten seconds, would fill the disk."""
    name = topic(partitions=1)
    await stage.send(name, *[Sent(f"e{number}", key=b"%d" % number) for number in range(30)])
    with capture_logs() as lines:
        worker = await stage.start(refusing(name))
        await worker.until(lambda: worker.metrics.value("outbox_published", "failed") >= 30)
    told = [line["why"] for line in lines if line["event"] == "outbox_topic_blocked"]
    assert 1 <= len(told) <= 3, "once for each time that it was tried"
    assert all(why.startswith("unknown_topic") for why in told)
