"""Commands on real parts: concurrent across keys, in order within one, each event once, whatever comes twice."""

from __future__ import annotations

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import Context


async def test_keys_run_side_by_side_and_each_in_its_order_also_in_one_partition(stage: Stage, topic: Topic) -> None:
    """The first event of a key is held up: its followers wait, other keys of the partition go on, and the checkpoint
    stays below what is incomplete.

    Case: B11
    Parts: real (Kafka, PostgreSQL)
    Red when: lanes.py `deliver` takes every event for the first of its key (`elif True` for `elif key not in lanes`)
    """
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    desk = at_desk(app)
    desk.shut("a1")
    await stage.send(
        name,
        *(Sent(f"a{n}", key=b"a") for n in (1, 2, 3)),
        *(Sent(f"b{n}", key=b"b") for n in (1, 2, 3)),
        Sent("free", key=None),
    )
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "completed", n=4)
    assert desk.came[0] == "a1"
    assert [id_ for id_ in desk.went if id_.startswith("b")] == ["b1", "b2", "b3"]
    assert desk.calls["a2"] == 0
    assert await stage.checkpoints("do") == {0: 0}
    desk.open("a1")
    await worker.until_counted("events", "do", "completed", n=7)
    assert [id_ for id_ in desk.went if id_.startswith("a")] == ["a1", "a2", "a3"]

    async def moved() -> bool:
        return await stage.checkpoints("do") == {0: 7}

    await worker.until(moved)


async def test_no_more_run_at_once_than_the_handler_allows(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    desk = at_desk(app, concurrency=3)
    ids = [f"e{n}" for n in range(9)]
    desk.shut(*ids)
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in ids))
    worker = await stage.start(app)
    for done in range(9):
        await worker.until(lambda: len(desk.inside) == min(3, 9 - len(desk.went)))
        assert len(desk.came) == min(9, done + 3)
        desk.open(desk.came[done])
        await worker.until_counted("events", "do", "completed", n=done + 1)
    assert desk.most == 3


async def test_a_trigger_that_makes_nothing_is_a_claimed_skip(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    desk = at_desk(app)
    await stage.send(name, Sent("a", {"nothing": True}), Sent("b"))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "skipped", n=1)
    await worker.until_counted("events", "do", "completed", n=1)
    await stage.send(name, Sent("a", {"nothing": True}))
    await worker.until_counted("dedup_hits", "do", n=1)
    assert desk.came == ["b"]
    assert await stage.value("SELECT count(*) FROM tidegate.claim_1") == 2


async def test_a_repeat_in_flight_waits_until_the_first_one_is_durable_and_does_not_run(
    stage: Stage, topic: Topic
) -> None:
    """The same id on another partition, while the first one is being handled: one run, one effect."""
    await table_of(stage)
    name = topic(partitions=2)
    app = reader(name)
    letters(app, topic)
    desk = at_desk(app)
    desk.shut("a")
    await stage.send(name, Sent("a"), Sent("a", key=b"other", partition=1), Sent("b", key=b"b", partition=1))
    worker = await stage.start(app)
    await worker.until_counted("records_consumed", name, "1", n=2)
    await worker.until_counted("events", "do", "completed", n=1)
    assert (desk.came.count("a"), desk.went) == (1, ["b"])
    desk.open("a")
    await worker.until_counted("dedup_hits", "do", n=1)
    assert desk.calls == {"a": 1, "b": 1}
    await worker.until_counted("events", "do", "completed", n=2)
    assert await stage.failures() == []

    async def moved() -> bool:
        return await stage.checkpoints("do") == {0: 1, 1: 2}

    await worker.until(moved)


async def test_a_known_id_with_other_bytes_is_a_conflict(stage: Stage, topic: Topic) -> None:
    """In flight, after the claim, and through the handler's own transaction: each is dead, none a quiet duplicate."""
    await table_of(stage)
    name = topic(partitions=2)
    app = reader(name)
    letters(app, topic)
    desk = at_desk(app, write)
    desk.shut("a")
    await stage.send(name, Sent("a", {"n": 1}), Sent("a", {"n": 2}, key=b"other", partition=1))
    worker = await stage.start(app)
    await worker.until_counted("records_consumed", name, "1", n=1)
    desk.open("a")
    await worker.until_counted("dead", "do", "conflict", n=1)
    await stage.send(name, Sent("a", {"n": 3}), Sent("a", {"n": 1}))
    await worker.until_counted("dead", "do", "conflict", n=2)
    assert len(await stage.rows("SELECT id FROM public.effect")) == 1
    assert await stage.failures() == [("a", "dead", "conflict")] * 2
    await worker.until_counted("events", "do", "completed", n=1)


async def test_a_dead_id_with_other_bytes_is_a_conflict_too(stage: Stage, topic: Topic) -> None:
    """The event stands in the failure table, not among the claims: other bytes are another event all the same."""
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    at_desk(app, refuse)
    await stage.send(name, Sent("a", {"n": 1}))
    worker = await stage.start(app)
    await worker.until_counted("dead", "do", "rejected", n=1)
    await stage.send(name, Sent("a", {"n": 1}), Sent("a", {"n": 2}))
    await worker.until_counted("dead", "do", "conflict", n=1)
    assert await stage.failures() == [
        ("a", "dead", "rejected"),
        ("a", "linked", "duplicate"),
        ("a", "dead", "conflict"),
    ]


async def refuse(command: Do, ctx: Context) -> None:
    """A business failure."""
    raise ValueError("no")
