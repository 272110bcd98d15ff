"""What handlers publish: under an id that stays, in order, by the outbox, and one topic's trouble is its own."""

from __future__ import annotations

import secrets

import pytest

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters
from tests.support.running import Sent, Stage, reader
from tidegate.consumers import Context, RetryPolicy, TransientError
from tidegate.consumers.worker.relaying import ROWS_MAX
from tidegate.inbox.identity import outbox_id16

QUICK = RetryPolicy(attempts_max=3, base_s=0.001, cap_s=0.002)


async def test_records_go_out_in_order_with_ids_and_the_story_so_far(stage: Stage, topic: Topic) -> None:
    """The handler publishes, fails, and publishes again: each record goes out once, under the id of its place."""
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        for n in range(20):
            await ctx.publish(out, {"n": n}, key="k", headers={"mine": "x", "tidegate-message-id": "forged"})
        await ctx.publish(out, None, key="gone")
        operations.add(ctx.event.event_id.hex())
        if ctx.attempt == 1:
            raise TransientError("once")

    operations: set[str] = set()
    at_desk(app, act, retry=QUICK)
    await stage.send(name, Sent("e1", headers=(("correlation-id", b"story"),)))
    worker = await stage.start(app)
    await worker.until_counted("outbox_published", "delivered", n=21)
    read = await stage.read(out, 21)
    values = [record.value for record in read if record.key == b"k"]
    assert values == [b'{"n":%d}' % n for n in range(20)]
    assert [record.value for record in read if record.key == b"gone"] == [None]
    for record in read:
        headers = dict(record.headers)
        assert (headers["correlation-id"], headers["causation-id"]) == (b"story", b"e1")
        assert len(record.headers) == (4 if record.key == b"k" else 3)
    sent = {dict(record.headers)["tidegate-message-id"] or b"" for record in read}
    (operation,) = operations
    ids = [outbox_id16("do", operation, out, b"k", "", n) for n in range(20)]
    assert sent == {id_.hex().encode() for id_ in [*ids, outbox_id16("do", operation, out, b"gone", "", 0)]}


async def test_a_topic_that_is_not_there_stops_no_other(stage: Stage, topic: Topic) -> None:
    """Its records wait in the outbox, in their order, and go out once it is made."""
    name, out = topic(partitions=1), topic(partitions=1)
    missing = f"{out}.not-yet"
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        await ctx.publish(missing, {"about": command.id}, key="k")
        await ctx.publish(out, {"about": command.id}, key="k")

    at_desk(app, act, retry=QUICK)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a"))
    await worker.until_counted("outbox_published", "delivered", n=1)
    assert worker.metrics.value("outbox_published", "failed") == 0  # nobody waited for the broker's word on the other
    await stage.send(name, Sent("b"))
    await worker.until_counted("outbox_published", "delivered", n=2)
    topic(partitions=1, name=missing)
    await worker.until_counted("outbox_published", "delivered", n=4)
    assert [record.value for record in await stage.read(missing, 2)] == [b'{"about":"a"}', b'{"about":"b"}']


async def test_a_record_that_its_topic_does_not_take_holds_up_its_own_key_only(stage: Stage, topic: Topic) -> None:
    """The broker's limit is known to the broker alone; beyond what any record may have, the handling itself fails."""
    name, out = topic(partitions=1), topic(partitions=1, config={"max.message.bytes": "2000"})
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        await ctx.publish(out, {"x": secrets.token_hex(command.says.get("n", 0))}, key=command.id[0])

    at_desk(app, act, retry=QUICK)
    letters(app, topic)
    await stage.send(name, Sent("b1", {"n": 5_000}), Sent("b2"), Sent("c1"), Sent("d1", {"n": 600_000}, key=b"d"))
    worker = await stage.start(app)
    await worker.until_counted("dead", "do", "rejected", n=1)
    await worker.until(lambda: worker.metrics.value("outbox_published", "failed") >= 1)
    await stage.send(name, Sent("c2"))
    await worker.until_counted("outbox_published", "delivered", n=3)
    assert [record.key for record in await stage.read(out, 2)] == [b"c", b"c"]
    waiting = "SELECT convert_from(key, 'UTF8') FROM tidegate.outbox WHERE published_at IS NULL ORDER BY seq"
    assert await stage.rows(waiting) == [("b",), ("b",)]
    assert await stage.failures() == [("d1", "dead", "rejected")]


@pytest.mark.parametrize("key", ["each its own", None])
async def test_more_refused_records_than_a_look_reads_hold_up_nobody_else(
    stage: Stage, topic: Topic, key: str | None
) -> None:
    """Records of a thousand keys, or without any, that their topic never takes; behind them others of that topic."""
    name, out = topic(partitions=1), topic(partitions=1, config={"max.message.bytes": "2000"})
    app, large = reader(name), secrets.token_hex(2_000)

    async def act(command: Do, ctx: Context) -> None:
        if command.id == "many":
            for n in range(ROWS_MAX):
                await ctx.publish(out, {"x": large}, key=None if key is None else f"k{n}")
        else:
            await ctx.publish(out, {"about": command.id}, key=None if key is None else command.id)

    at_desk(app, act, retry=QUICK)
    worker = await stage.ready(app)
    await stage.send(name, Sent("many"))
    await worker.until_counted("outbox_published", "failed", n=ROWS_MAX)
    await stage.send(name, Sent("x"))
    await worker.until_counted("outbox_published", "delivered", n=1)
    assert [record.value for record in await stage.read(out, 1)] == [b'{"about":"x"}']
    assert await stage.value("SELECT count(*) FROM tidegate.outbox WHERE published_at IS NULL") == ROWS_MAX


async def test_a_value_that_cannot_be_encoded_fails_its_handling(stage: Stage, topic: Topic) -> None:
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        await ctx.publish(out, {"about": command.id})
        await ctx.publish(out, {"about": object()} if command.id == "bad" else {})

    at_desk(app, act, retry=QUICK)
    letters(app, topic)
    await stage.send(name, Sent("bad"), Sent("fine"))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "completed", n=1)
    await worker.until_counted("outbox_published", "delivered", n=3)
    assert await stage.failures() == [("bad", "dead", "rejected")]
    assert [record.value for record in await stage.read(out, 2)] == [b'{"about":"fine"}', b"{}"]


async def test_rows_of_a_partition_that_is_taken_over_go_out_by_its_new_owner(stage: Stage, topic: Topic) -> None:
    """The first owner sent them, and died before it could write that down: the same records go out again."""
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        await ctx.publish(out, {"about": command.id}, key="k")

    desk = at_desk(app, act, retry=QUICK)
    await stage.send(name, Sent("a"), Sent("b"))
    first = await stage.start(app)
    await first.until_counted("outbox_published", "delivered", n=2)
    await first.kill()
    await stage.execute("UPDATE tidegate.outbox SET published_at = NULL")
    second = await stage.start(app)
    await second.until_counted("outbox_published", "delivered", n=2)
    read = await stage.read(out, 4)
    assert [record.value for record in read] == [b'{"about":"a"}', b'{"about":"b"}'] * 2
    assert [record.headers for record in read[:2]] == [record.headers for record in read[2:]]
    assert desk.calls == {"a": 1, "b": 1}
