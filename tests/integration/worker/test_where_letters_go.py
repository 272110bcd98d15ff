"""Where a letter goes by its key, and what it says of its key's later events, on the real broker."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters
from tests.support.running import PATIENCE_S, Sent, Stage, letters_of, reader, unique
from tidegate.consumers import Context, RetryPolicy
from tidegate.dlq.letter import Letter, read_letter
from tidegate.inbox.event import Record

QUICK = RetryPolicy(attempts_max=2, base_s=0.001, cap_s=0.002)

AS_JAVA_DOES = {10: {b"order-1001": 8, b"a": 4, b"": 1}, 4: {b"order-1001": 2, b"": 1}}
"""Partitions of the topic -> key -> where Kafka's own clients send it. Librdkafka's own hash differs."""


async def refuse(command: Do, ctx: Context) -> None:
    """Every event."""
    raise ValueError("not now")


@pytest.mark.parametrize("partitions", AS_JAVA_DOES)
async def test_a_letter_goes_where_kafkas_own_clients_send_its_key(stage: Stage, topic: Topic, partitions: int) -> None:
    """The letters' topic has partitions of its own; a key's letters are together, and where any client looks for them.

    Case: B37
    Parts: real (Kafka, PostgreSQL)
    Red when: client/config.py's producer_config names another partitioner than murmur2_random
    """
    name = topic(partitions=1)
    app = reader(name)
    at_desk(app, refuse, retry=QUICK)
    topic(partitions=partitions, name=letters_of(name, app))
    keys = AS_JAVA_DOES[partitions]
    await stage.send(name, *[Sent(f"e{n}", key=key) for n, key in enumerate([*keys, *keys])])
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=2 * len(keys))
    places = await asyncio.to_thread(places_of, stage.bootstrap, letters_of(name, app), partitions, 2 * len(keys))
    assert sorted(places) == sorted([*keys.items()] * 2)


def places_of(bootstrap: str, topic: str, partitions: int, n: int) -> list[tuple[bytes, int]]:
    """Key and partition of `n` records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": unique("eye"), "log_level": 0})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    try:
        messages = [consumer.poll(PATIENCE_S) for _ in range(n)]
    finally:
        consumer.close()
    return [(m.key() or b"", m.partition() or 0) for m in messages if m is not None]


async def test_a_letter_says_whether_its_key_waits(stage: Stage, topic: Topic) -> None:
    """Under `after_dead="hold"` the key's later events wait for a person; a record without a key holds nobody up."""
    name = topic(partitions=1)
    app = reader(name)
    at_desk(app, refuse, retry=QUICK, after_dead="hold")
    dead = letters(app, topic)
    await stage.send(name, Sent("keyed", key=b"k"), Sent("unkeyed", key=None), Sent("behind", key=b"k"))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=2)
    first = {letter.event_id: letter for letter in await read(stage, dead, 2)}
    assert {id_: letter.disposition for id_, letter in first.items()} == {"keyed": "held", "unkeyed": "released"}
    await stage.replay(*[row[0] for row in await stage.rows("SELECT id FROM tidegate.failure WHERE state = 'dead'")])
    await worker.until_counted("outbox_published", "delivered", n=4)
    again = {letter.event_id: letter for letter in (await read(stage, dead, 4))[2:]}
    assert {id_: letter.disposition for id_, letter in again.items()} == {"keyed": "held", "unkeyed": "released"}
    assert {letter.replay_count for letter in again.values()} == {1}


async def test_a_letter_keeps_the_trace_that_its_record_came_in(stage: Stage, topic: Topic) -> None:
    """A `traceparent` that is one; what is none stays among the record's own headers only."""
    name = topic(partitions=1)
    app = reader(name)
    at_desk(app, refuse, retry=QUICK)
    dead = letters(app, topic)
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await stage.send(
        name,
        Sent("a", key=b"a", headers=(("traceparent", trace.encode()),)),
        Sent("b", key=b"b", headers=(("traceparent", b"\xff; DROP"),)),
    )
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=2)
    told = {letter.event_id: letter for letter in await read(stage, dead, 2)}
    assert (told["a"].traceparent, told["b"].traceparent) == (trace, None)
    assert ("traceparent", b"\xff; DROP") in told["b"].headers


async def test_an_unknown_outcome_has_no_letter_until_it_is_dead(stage: Stage, topic: Topic) -> None:
    """It waits in the inbox for a person: a letter would say that it is over."""
    name = topic(partitions=1)
    app = reader(name)
    at_desk(app, None, retry=QUICK, on_conflict="review")
    dead = letters(app, topic)
    await stage.send(name, Sent("a", {"n": 1}), Sent("a", {"n": 2}), Sent("b", b"\x00"))
    worker = await stage.start(app)

    async def is_unknown() -> bool:
        return [state for _, state, _ in await stage.failures("do")] == ["unknown"]

    await worker.until(is_unknown)
    await worker.until_counted("outbox_published", "delivered", n=1)
    (letter,) = await read(stage, dead, 1)
    assert letter.reason == "undecodable"
    assert letter.disposition == "released"


async def read(stage: Stage, topic: str, n: int) -> list[Letter]:
    records: list[Record] = await stage.read(topic, n)
    return [read_letter(record) for record in records]
