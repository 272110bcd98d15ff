"""Records that are not plain events: tombstones, broken frames, odd timestamps, text and numbers that do not fit."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.avro import body, record_schema, save
from tests.support.running import ID, Sent, Stage, committed, letters_of, note, reader, table_of
from tidegate.consumers import App, Avro, Event, Json, Raw
from tidegate.inbox.outcome import Reason

ITEM = record_schema("Item", {"n": "int"})


def framed(n: int, schema_id: int = 1) -> bytes:
    """An Item in Confluent framing."""
    return b"\0" + schema_id.to_bytes(4, "big") + body(ITEM, {"n": n})


def avro_reader(topic: str, schemas: Path, **options: Any) -> App:
    """A reader of Items with one projection that tells tombstones from events."""
    save(schemas, {1: ITEM})
    app = reader(topic, codec=Avro(str(schemas)), **options)
    (consumer,) = app.consumers.values()

    @consumer.projection("items")
    async def items(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        for event in events:
            if event.is_tombstone:
                await tx.execute(text("DELETE FROM public.item WHERE key = :key"), {"key": event.key})
            else:
                values = {"key": event.key, "n": event.value["n"]}
                await tx.execute(text("INSERT INTO public.item VALUES (:key, :n)"), values)

    return app


async def test_a_tombstone_an_empty_value_and_a_missing_key_are_three_things(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """Delete, framing error, no key, and the empty key, which is a key.

    Case: B17
    Parts: real (Kafka, PostgreSQL)
    Red when: consumers/intake.py `_decode` takes `if record.value` for `if record.value is not None`
    """
    await stage.execute("CREATE TABLE public.item (key bytea, n int)")
    name = topic(partitions=1)
    app = avro_reader(name, tmp_path, require_key=True)
    letters = topic(partitions=1, name=letters_of(name, app))
    await stage.send(name, Sent("a", framed(1), key=b"gone"))
    worker = await stage.start(app)
    await worker.until_counted("events", "items", "completed", n=1)
    await stage.send(
        name,
        Sent("b", None, key=b"gone"),
        Sent("c", b"", key=b"k"),
        Sent("d", framed(2), key=None),
        Sent("e", framed(3), key=b""),
    )
    await worker.until_counted("events", "items", "completed", n=3)
    await worker.until_counted("outbox_published", "delivered", n=2)
    assert await stage.rows("SELECT key, n FROM public.item") == [(b"", 3)]
    broken, keyless = await stage.read(letters, 2)
    assert (broken.key, broken.value, broken.header(ID)) == (b"k", b"", b"c")
    assert (keyless.key, keyless.value, keyless.header(ID)) == (None, framed(2), b"d")
    assert [row[1:] for row in await stage.failures("")] == [("dead", "undecodable"), ("dead", "no_key")]


async def test_a_dead_tombstone_is_a_tombstone_again_after_its_replay(stage: Stage, topic: Topic) -> None:
    """The letter and the replayed event keep "no value" apart from an empty one.

    Case: B17
    Parts: real (Kafka, PostgreSQL)
    Red when: inbox/failure_rows.py `_of_event` takes `value=record.value or b""`
    """
    name = topic(partitions=1)
    app = reader(name)
    letters = topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()
    seen: list[bool] = []
    broken: list[bool] = [True]

    @consumer.projection("items")
    async def items(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        seen.extend(event.is_tombstone for event in events)
        if broken:
            raise ValueError("not today")

    await stage.send(name, Sent("a", None))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=1)
    (letter,) = await stage.read(letters, 1)
    assert letter.value is None
    broken.clear()
    assert len((await stage.replay()).replayed) == 1
    await worker.until_counted("events", "items", "completed", n=1)
    assert set(seen) == {True}


async def test_what_cannot_be_decoded_is_a_letter_once_however_often_it_is_delivered(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    await stage.execute("CREATE TABLE public.item (key bytea, n int)")
    name = topic(partitions=1)
    app = avro_reader(name, tmp_path)
    letters = topic(partitions=1, name=letters_of(name, app))
    odd = (("twice", b"1"), ("twice", b"2"), ("null", None), ("raw", b"\xff\x00"))
    await stage.send(name, Sent("a", framed(1)), Sent("b", b"hello", key=b"\xfe", headers=odd), Sent("c", framed(3)))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=1)
    await worker.until(committed(stage, 3))
    assert await worker.stop() == 0
    await stage.execute("UPDATE tidegate.checkpoint SET next_offset = 0")
    worker = await stage.start(app)
    await worker.until_counted("dedup_hits", "items", n=2)
    await worker.until(committed(stage, 3))
    assert await stage.value("SELECT count(*) FROM tidegate.failure") == 1
    assert await stage.value("SELECT count(*) FROM tidegate.outbox") == 1
    assert worker.events("", "failed") == 0
    (letter,) = await stage.read(letters, 1)
    assert (letter.key, letter.value) == (b"\xfe", b"hello")
    assert letter.headers[:6] == ((ID, b"b"), ("type", b"Thing"), *odd)
    assert letter.header("tidegate-reason") == b"undecodable"


async def test_a_repaired_record_is_handled_once_by_every_handler_and_its_id_is_claimed(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """The missing schema appears, the letter is replayed: one effect; the same event elsewhere is a repeat."""
    await stage.execute("CREATE TABLE public.item (key bytea, n int)")
    await table_of(stage)
    name = topic(partitions=1)
    app = avro_reader(name, tmp_path)
    topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()
    consumer.projection("effects")(note)
    early = Sent("a", framed(7, schema_id=2))
    await stage.send(name, early, Sent("b", framed(1)))
    worker = await stage.start(app)
    await worker.until_counted("dead", "", "unknown_schema", n=1)
    await worker.until_counted("outbox_published", "delivered", n=1)
    await worker.until_counted("events", "items", "completed", n=1)
    (failure_id,) = (await stage.rows("SELECT id FROM tidegate.failure"))[0]
    assert await worker.stop() == 0  # a running one may remember for a second that the schema is missing
    save(tmp_path, {2: ITEM})
    assert len((await stage.replay(failure_id)).replayed) == 1
    worker = await stage.start(app)
    await worker.until_counted("events", "items", "completed", n=1)
    await worker.until_counted("events", "effects", "completed", n=1)
    assert [refusal.cause for refusal in (await stage.replay(failure_id)).refused] == [
        "no letter is known under this id"
    ]
    await stage.send(name, early)
    await worker.until_counted("dedup_hits", "items", n=1)
    await worker.until_counted("dedup_hits", "effects", n=1)
    assert await stage.rows("SELECT n FROM public.item ORDER BY n") == [(1,), (7,)]
    assert await stage.rows("SELECT id FROM public.effect ORDER BY id") == [("a",), ("b",)]
    assert await stage.failures() == []
    assert await worker.stop() == 0
    await stage.execute("UPDATE tidegate.checkpoint SET next_offset = 0")
    worker = await stage.start(app)
    await worker.until_counted("dedup_hits", "items", n=3)
    assert await stage.failures() == []


async def test_a_letter_that_is_replayed_in_vain_is_another_letter(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    app = reader(name)
    letters = topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()

    @consumer.projection("items")
    async def items(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        raise ValueError("never")

    await stage.send(name, Sent("a"))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=1)
    for n in (2, 3):
        assert len((await stage.replay()).replayed) == 1
        await worker.until_counted("outbox_published", "delivered", n=n)
    assert next(refusal.cause for refusal in (await stage.replay()).refused).startswith(
        "it was replayed 2 times already"
    )
    ids = {letter.header("tidegate-dead-letter-id") for letter in await stage.read(letters, 3)}
    assert len(ids) == 3
    assert await stage.failures() == [("a", "dead", "rejected")]


async def test_odd_timestamps_are_no_reason_to_stop(stage: Stage, topic: Topic) -> None:
    """Before 1970, in the year 5138, in microseconds: all are handled, and a letter keeps the number as it was.

    Case: B19
    Parts: real (Kafka, PostgreSQL)
    Red when: inbox/event.py `timestamp` lets OverflowError out
    """
    await table_of(stage)
    far = str(2**63 - 1)
    config = {"message.timestamp.before.max.ms": far, "message.timestamp.after.max.ms": far, "retention.ms": "-1"}
    name = topic(partitions=1, config=config)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()
    ages: list[float | None] = []

    @consumer.projection("effects")
    async def effects(events: Sequence[Event[dict[str, int]]], tx: AsyncConnection) -> None:
        for event in events:
            ages.append(event.record.age_s(datetime.datetime.now(datetime.UTC)))
            assert event.timestamp is None or event.timestamp.tzinfo is not None
            if event.value.get("bad"):
                raise ValueError("refused")
        await note(events, tx)

    stamps = (-5, 1, 99999999999999, 1755933141855875)
    await stage.send(name, *(Sent(str(stamp), {"n": n}, timestamp_ms=stamp) for n, stamp in enumerate(stamps)))
    await stage.send(name, Sent("bad", {"bad": 1}, timestamp_ms=1755933141855875))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=4)
    await worker.until_counted("dead", "effects", "rejected", n=1)
    assert all(age is None or age >= 0 for age in ages)
    assert await stage.value("SELECT timestamp_ms FROM tidegate.failure") == 1755933141855875
    await worker.until_counted("outbox_published", "delivered", n=1)


TEXTS = {
    "nul": '{"v": "a\\u0000b"}',
    "nul-in-key": '{"v": "", "k\\u0000": 1}',
    "lone-surrogate": '{"v": "\\ud800"}',
    "pair": '{"v": "\\ud83d\\ude00"}',
    "six-characters": '{"v": "\\\\u0000"}',
    "nan": '{"v": "", "n": NaN}',
    "infinity": '{"v": "", "n": Infinity}',
    "huge": '{"v": "", "n": 1' + "0" * 400 + "}",
}
GOOD = {"pair", "six-characters", "huge"}


@pytest.mark.parametrize("codec", [Raw(), Json(type="text")], ids=["the-database-refuses", "the-codec-refuses"])
async def test_text_that_postgresql_cannot_hold_is_dead_and_the_rest_is_stored_intact(
    stage: Stage, topic: Topic, codec: Any
) -> None:
    """Five of eight strings cannot be stored; their failure rows can, whatever id and message hold.

    Case: B43
    Parts: real (Kafka, PostgreSQL)
    Red when: inbox/safe_text.py `safe_text` returns its text as it is
    """
    await stage.execute("CREATE TABLE public.stored (v text, doc jsonb)")
    name = topic(partitions=1)
    app = reader(name, codec=codec)
    topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()

    @consumer.projection("stored")
    async def stored(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        for event in events:
            doc = json.loads(event.value) if isinstance(event.value, bytes) else event.value
            if "poison" in doc:
                raise ValueError("a\0b \ud800")
            values = {"v": doc["v"], "doc": json.dumps(doc)}
            await tx.execute(text("INSERT INTO public.stored VALUES (:v, CAST(:doc AS jsonb))"), values)

    await stage.send(name, *(Sent(f"{what}\0".encode(), value.encode()) for what, value in TEXTS.items()))
    await stage.send(name, Sent("message\0", {"poison": 1}))
    worker = await stage.start(app)
    await worker.until_counted("events", "stored", "completed", n=3)
    await worker.until(lambda: worker.events("stored", "failed") + worker.events("", "failed") == 6)
    failures = await stage.failures()
    assert len(failures) == 6
    await worker.until_counted("outbox_published", "delivered", n=6)
    assert not any("\0" in row[0] for row in failures)
    kept = await stage.rows("SELECT v, doc->>'v', doc->>'n' FROM public.stored ORDER BY v")
    assert kept == [("", "", "1" + "0" * 400), ("\\u0000", "\\u0000", None), ("😀", "😀", None)]
    assert await stage.value("SELECT message FROM tidegate.failure WHERE message LIKE 'a%'") == "a b \ufffd"


async def test_values_that_do_not_fit_are_dead_and_the_next_record_is_handled(stage: Stage, topic: Topic) -> None:
    """Ids of thousands of characters are deduplicated; an int beyond int4 and a date beyond all zones are dead.

    Case: B45
    Parts: real (Kafka, PostgreSQL)
    Red when: inbox/faults.py maps the SQLSTATE class 22 to Fault.TRANSIENT
    """
    await stage.execute("CREATE TABLE public.fit (n int4, at timestamptz)")
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()
    zone = datetime.timezone(datetime.timedelta(hours=-5))

    @consumer.projection("fit")
    async def fit(events: Sequence[Event[dict[str, int]]], tx: AsyncConnection) -> None:
        for event in events:
            at = datetime.datetime.max if event.value.get("max") else datetime.datetime(2026, 1, 1)  # noqa: DTZ001, DTZ901 - its zone comes next
            values = {"n": event.value["n"], "at": at.replace(tzinfo=zone)}
            await tx.execute(text("INSERT INTO public.fit VALUES (:n, :at)"), values)

    incompressible = random.Random(45).randbytes(3000).hex()
    long_ids = [Sent(incompressible, {"n": 1}), Sent("k" * 3000, {"n": 2})]
    await stage.send(
        name,
        *long_ids,
        Sent("int4", {"n": 2147483648}),
        Sent("max", {"n": 3, "max": 1}),
        *long_ids,
        Sent("d", {"n": 4}),
    )
    worker = await stage.start(app)
    await worker.until_counted("events", "fit", "completed", n=3)
    await worker.until_counted("dedup_hits", "fit", n=2)
    await worker.until_counted("dead", "fit", Reason.REJECTED, n=2)
    assert await stage.rows("SELECT n FROM public.fit ORDER BY n") == [(1,), (2,), (4,)]
    assert [row[0] for row in await stage.failures()] == ["int4", "max"]
    messages = await stage.rows("SELECT message FROM tidegate.failure")
    assert all("value out of range" in message for (message,) in messages), messages
    await stage.send(name, Sent(incompressible, {"n": 5}))
    await worker.until_counted("dead", "fit", Reason.CONFLICT, n=1)
    await worker.until_counted("outbox_published", "delivered", n=3)
