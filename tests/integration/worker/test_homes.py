"""Rows whose home is gone: somebody else works them, and sends what they have to send."""

from __future__ import annotations

import pytest

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import RunningWorker, Sent, Stage, reader, table_of, unique
from tidegate.consumers import Context, RetryPolicy
from tidegate.consumers.worker import housekeeping

from .test_parking import LATER, Doctor, effects, states
from .test_topics import made_anew

ONCE = RetryPolicy(attempts_max=2, base_s=0.001, cap_s=0.002)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who owns which homes is looked at all the time."""
    monkeypatch.setattr(housekeeping, "HOMES_S", 0.2)


async def until_queue_is(stage: Stage, worker: RunningWorker, wanted: dict[str, str]) -> None:
    async def holds() -> bool:
        return await states(stage) == wanted

    await worker.until(holds)


async def test_what_is_queued_in_a_partition_that_is_gone_is_worked_in_its_order(stage: Stage, topic: Topic) -> None:
    """The topic was made anew with one partition of two: what its second one's owner had to do is the first one's."""
    await table_of(stage)
    name, who, doctor = topic(partitions=2), unique("reader"), Doctor("a1")
    app = reader(name, consumer=who, on_recreated="earliest")
    at_desk(app, doctor.act, retry=LATER)
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a1", key=b"a", partition=1))
    await until_queue_is(stage, worker, {"a1": "queued"})
    assert await worker.stop() == 0
    await made_anew(stage, name)
    again = reader(name, consumer=who, on_recreated="earliest")
    at_desk(again, write, retry=LATER)
    worker = await stage.ready(again)
    await stage.send(name, Sent("a2", key=b"a"), Sent("b1", key=b"b"))
    await until_queue_is(stage, worker, {})
    written = await effects(stage)
    assert sorted(written) == ["a1", "a2", "b1"]
    assert written.index("a1") < written.index("a2")


async def test_what_a_topic_left_that_is_not_read_any_more_is_worked_and_sent(stage: Stage, topic: Topic) -> None:
    """A release drops a topic: its queued event, a letter and what its handler published have an owner all the same."""
    await table_of(stage)
    kept, dropped = topic(partitions=1), topic(partitions=2)
    out, who = f"{dropped}.out", unique("reader")
    app, ill = reader(kept, dropped, consumer=who), Doctor("later")

    async def act(command: Do, ctx: Context) -> None:
        if command.id == "bad":
            raise ValueError("never")
        if command.id == "told":
            await ctx.publish(out, {"about": command.id}, key="k")
        await ill.act(command, ctx)

    at_desk(app, act, retry=LATER)
    worker = await stage.ready(app)
    await stage.send(dropped, *[Sent(id_, key=id_.encode(), partition=1) for id_ in ("later", "bad", "told")])
    await until_queue_is(stage, worker, {"later": "queued", "bad": "dead"})
    await worker.until_counted("outbox_published", "failed", n=2)
    assert await worker.stop() == 0
    assert await stage.value("SELECT count(*) FROM tidegate.outbox WHERE published_at IS NULL") == 2
    topic(partitions=1, name=out)
    dead = topic(partitions=1, name=f"{dropped}.{who}.dlq")
    again = reader(kept, consumer=who)
    at_desk(again, write, retry=LATER)
    worker = await stage.start(again)
    await until_queue_is(stage, worker, {"bad": "dead"})
    assert len(await stage.read(out, 1)) == len(await stage.read(dead, 1)) == 1
    assert await stage.rows("SELECT id FROM public.effect ORDER BY 1") == [("later",), ("told",)]


async def test_the_keeper_of_such_rows_is_one_member_and_another_when_that_one_ends(stage: Stage, topic: Topic) -> None:
    """Two members share the first topic: whoever holds its first partition works them."""
    await table_of(stage)
    kept, dropped, who = topic(partitions=2), topic(partitions=1), unique("reader")
    app, ill = reader(kept, dropped, consumer=who), Doctor("x")
    at_desk(app, ill.act, retry=LATER)
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(dropped, Sent("x", key=b"x"))
    await until_queue_is(stage, worker, {"x": "queued"})
    assert await worker.stop() == 0
    both = [reader(kept, consumer=who) for _ in range(2)]
    desks = [at_desk(one, ill.act, retry=LATER) for one in both]
    members = [await stage.ready(one) for one in both]
    await members[0].until(lambda: sorted(m.board.assigned or 0 for m in members) == [1, 1])
    tried = [len(desk.came) for desk in desks]
    first = await _who_tries(members[0], [desk.came for desk in desks], tried)
    assert await members[first].stop() == 0
    ill.ill.clear()
    await until_queue_is(stage, members[1 - first], {})
    assert "x" in desks[1 - first].went


async def _who_tries(worker: RunningWorker, came: list[list[str]], before: list[int]) -> int:
    """The first that is seen to try once more."""
    await worker.until(lambda: any(len(ids) > n for ids, n in zip(came, before, strict=True)))
    return next(k for k, (ids, n) in enumerate(zip(came, before, strict=True)) if len(ids) > n)
