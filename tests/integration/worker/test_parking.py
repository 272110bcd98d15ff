"""A failed event's key waits with it: in order, across restarts and new partitions, and nobody else waits at all."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tests.services.topics import Topic
from tests.support.desk import Desk, Do, at_desk, letters, write
from tests.support.running import RunningWorker, Sent, Stage, reader, table_of
from tidegate.consumers import (
    App,
    Context,
    Dead,
    Event,
    Reason,
    RecordError,
    Retry,
    RetryPolicy,
    Skipped,
    TransientError,
    Unknown,
    fail_on,
    review_on,
    skip_on,
)

LATER = RetryPolicy(attempts_max=50, base_s=1.0, factor=1.0, cap_s=1.0, in_place_max_s=0.0)
"""Every retry goes through the queue."""


class Doctor:
    """Handlers of these ids are ill until they are healed."""

    def __init__(self, *ids: str) -> None:
        self.ill = set(ids)

    async def act(self, command: Do, ctx: Context) -> None:
        """Fail while ill, else write."""
        if command.id in self.ill:
            raise TransientError("ill")
        await write(command, ctx)


def parking(topic_name: str, *ill: str, consumer: str | None = None, **options: Any) -> tuple[App, Desk, Doctor]:
    app, doctor = reader(topic_name, consumer=consumer), Doctor(*ill)
    return app, at_desk(app, doctor.act, retry=options.pop("retry", LATER), **options), doctor


def grow(bootstrap: str, topic_name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic_name, partitions)])[topic_name].result(20)


async def states(stage: Stage) -> dict[str, str]:
    return {row[0]: row[1] for row in await stage.failures("do")}


async def until_states(stage: Stage, worker: RunningWorker, wanted: dict[str, str]) -> None:
    async def holds() -> bool:
        return await states(stage) == wanted

    await worker.until(holds)


async def effects(stage: Stage) -> list[str]:
    """In the order of their transactions: a table gives its rows by page, and each session fills a page of its own."""
    return [row[0] for row in await stage.rows("SELECT id FROM public.effect ORDER BY xmin::text::bigint")]


async def test_later_events_of_a_failed_events_key_wait_and_are_released_in_order(stage: Stage, topic: Topic) -> None:
    """The key is parked with its first failure; other keys go on; once it is healed, its events run in their order.

    Case: B35, B37
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/commands.py does not ask ParkedKeys before it runs an event
    """
    await table_of(stage)
    name = topic(partitions=1)
    app, desk, doctor = parking(name, "a1")
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, *[Sent(f"a{n}", key=b"a") for n in (1, 2, 3)], *[Sent(f"b{n}", key=b"b") for n in (1, 2)])
    await until_states(stage, worker, {"a1": "queued", "a2": "queued", "a3": "queued"})
    await worker.until_counted("events", "do", "completed", n=2)
    await stage.send(name, Sent("a4", key=b"a"))
    await until_states(stage, worker, {"a1": "queued", "a2": "queued", "a3": "queued", "a4": "queued"})
    assert set(desk.calls) == {"a1", "b1", "b2"}, "nothing of the key overtook"
    doctor.ill.clear()
    await worker.until_counted("events", "do", "completed", n=6)
    assert await states(stage) == {}
    assert [id_ for id_ in await effects(stage) if id_.startswith("a")] == ["a1", "a2", "a3", "a4"]
    assert await stage.rows("SELECT waiting, head_due FROM tidegate.parked_key") == [(0, None)]
    await stage.send(name, Sent("a5", key=b"a"))
    await worker.until_counted("events", "do", "completed", n=7)
    assert await states(stage) == {}, "a released key is on the fast way again"


async def test_a_parked_key_stays_parked_over_a_kill(stage: Stage, topic: Topic) -> None:
    """What another process parked is found by the look-up: nothing of it stands in memory."""
    await table_of(stage)
    name = topic(partitions=1)
    app, _, _ = parking(name, "a1")
    letters(app, topic)
    first = await stage.ready(app)
    await stage.send(name, Sent("a1", key=b"a"))
    await until_states(stage, first, {"a1": "queued"})
    await first.kill()
    await stage.send(name, Sent("a2", key=b"a"), Sent("b1", key=b"b"))
    (consumer,) = app.consumers
    again, desk, doctor = parking(name, "a1", consumer=consumer)
    second = await stage.ready(again)
    await until_states(stage, second, {"a1": "queued", "a2": "queued"})
    await second.until_counted("events", "do", "completed", n=1)
    assert "a2" not in desk.calls
    doctor.ill.clear()
    await second.until_counted("events", "do", "completed", n=3)
    assert sorted(await effects(stage)) == ["a1", "a2", "b1"]


async def test_keys_stay_parked_when_partitions_are_added(stage: Stage, topic: Topic) -> None:
    """With 8 partitions instead of 4 a parked key's new events come from elsewhere, and queue up behind it.

    Case: B37
    Parts: real (PostgreSQL, Kafka)
    Red when: inbox/lanes.py looks a lane up by partition
    """
    await table_of(stage)
    name = topic(partitions=4)
    keys = [f"k{n}" for n in range(100)]
    app, desk, doctor = parking(name, *[f"{key}.1" for key in keys])
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, *[Sent(f"{key}.1", key=key.encode(), partition=n % 4) for n, key in enumerate(keys)])
    await until_states(stage, worker, {f"{key}.1": "queued" for key in keys})
    await asyncio.to_thread(grow, stage.bootstrap, name, 8)
    await worker.until(lambda: worker.board.assigned == 8, patience_s=60)
    for number in (2, 3):
        await stage.send(
            name, *[Sent(f"{key}.{number}", key=key.encode(), partition=n % 8) for n, key in enumerate(keys)]
        )
    await until_states(stage, worker, {f"{key}.{number}": "queued" for key in keys for number in (1, 2, 3)})
    assert not any(id_.endswith((".2", ".3")) for id_ in desk.calls)
    doctor.ill.clear()
    await worker.until(lambda: worker.events("do", "completed") == 300, patience_s=60)
    order: defaultdict[str, list[str]] = defaultdict(list)
    for id_ in await effects(stage):
        key, _, number = id_.partition(".")
        order[key].append(number)
    assert order == {key: ["1", "2", "3"] for key in keys}


async def test_a_dead_event_releases_its_key_unless_it_is_to_hold_it(stage: Stage, topic: Topic) -> None:
    """`after_dead="hold"`: the key waits until a person has decided, by a replay here."""
    await table_of(stage)
    name = topic(partitions=1)
    app, doctor = reader(name), Doctor()
    letters(app, topic)
    bad = {"a1"}

    async def act(command: Do, ctx: Context) -> None:
        if command.id in bad:
            raise RecordError(Reason.REJECTED, "no")
        await doctor.act(command, ctx)

    desk = at_desk(app, act, after_dead="hold")
    worker = await stage.ready(app)
    await stage.send(name, Sent("a1", key=b"a"), Sent("a2", key=b"a"), Sent("b1", key=b"b"))
    await until_states(stage, worker, {"a1": "dead", "a2": "queued"})
    await worker.until_counted("events", "do", "completed", n=1)
    assert "a2" not in desk.calls
    bad.clear()
    assert len((await stage.replay()).replayed) == 1
    await worker.until_counted("events", "do", "completed", n=3)
    assert [id_ for id_ in await effects(stage) if id_ != "b1"] == ["a1", "a2"]


async def test_a_handler_that_continues_parks_nobody(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app, _, doctor = parking(name, "a1", on_failure="continue")
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, *[Sent(f"a{n}", key=b"a") for n in (1, 2, 3)])
    await worker.until_counted("events", "do", "completed", n=2)
    await until_states(stage, worker, {"a1": "queued"})
    doctor.ill.clear()
    await worker.until_counted("events", "do", "completed", n=3)
    assert await effects(stage) == ["a2", "a3", "a1"]


async def test_a_handler_that_stops_leaves_with_the_offset_where_it_was(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        if command.id == "a2":
            raise RecordError(Reason.REJECTED, "no")
        await write(command, ctx)

    at_desk(app, act, on_failure="stop")
    worker = await stage.ready(app)
    await stage.send(name, Sent("a1"), Sent("a2"), Sent("a3"))
    error = await worker.ends()
    assert "declares on_failure='stop'" in str(error)
    assert f"{name}/0@1" in str(error)
    assert await stage.failures() == []
    assert await effects(stage) == ["a1"]
    assert (await stage.checkpoints("do"))[0] <= 1


async def test_attempts_of_a_queued_event_end_at_their_bound(stage: Stage, topic: Topic) -> None:
    """Attempts stand in the row: a restart does not begin them anew."""
    name = topic(partitions=1)
    few = RetryPolicy(attempts_max=3, base_s=0.01, factor=1.0, cap_s=0.01, in_place_max_s=0.0)
    app, desk, _ = parking(name, "a1", retry=few)
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a1"))
    await worker.until_counted("dead", "do", "exhausted", n=1)
    assert desk.calls["a1"] == 3
    assert await stage.rows("SELECT state, attempts FROM tidegate.failure") == [("dead", 3)]


class Odd(Exception):
    """What rules are declared for."""


async def test_rules_decide_what_an_exception_leads_to(stage: Stage, topic: Topic) -> None:
    """Skip is a claim, review a row for a person that parks its key, fail a letter.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/attempts.py `until_settled` takes `()` for `subject.policy.rules`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        await write(command, ctx)
        if says := command.says.get("raise"):
            raise Odd(says)

    rules = [
        skip_on(Odd, when=lambda error: "twice" in str(error), because="it was sent before"),
        review_on(Odd, when=lambda error: "perhaps" in str(error), because="nobody knows"),
        fail_on(Odd, because="it is wrong"),
    ]
    at_desk(app, act, rules=rules)
    worker = await stage.ready(app)
    await stage.send(
        name,
        Sent("s", {"raise": "twice"}, key=b"s"),
        Sent("r", {"raise": "perhaps"}, key=b"r"),
        Sent("r2", key=b"r"),
        Sent("f", {"raise": "wrong"}, key=b"f"),
    )
    await until_states(stage, worker, {"r": "unknown", "r2": "queued", "f": "dead"})
    await worker.until_counted("events", "do", "skipped", n=1)
    await worker.until_counted("events", "do", "unknown", n=1)
    assert await stage.failures("do") == [
        ("r", "unknown", "review"),
        ("r2", "queued", "behind"),
        ("f", "dead", "rejected"),
    ]
    assert await effects(stage) == [], "what it wrote is undone"
    assert await stage.value("SELECT count(*) FROM tidegate.claim_1") == 1
    assert await stage.value("SELECT count(*) FROM tidegate.outbox WHERE kind = 'letter'") == 1


async def test_a_handler_may_say_by_what_it_returns(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()
    seen: list[tuple[str, int]] = []

    @app.handler(Do)
    async def do(command: Do, ctx: Context) -> object:
        await write(command, ctx)
        seen.append((command.id, ctx.attempt))
        match command.id:
            case "skip":
                return Skipped("there is nothing to do")
            case "again":
                return Retry("not yet", after_s=0.01) if ctx.attempt == 1 else None
            case "dead":
                return Dead(Reason.REJECTED, "no use")
            case "unknown":
                return Unknown("who knows")
            case "nonsense":
                return {"status": "ok"}
            case _:
                return None

    @consumer.command("do", on="Thing")
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    worker = await stage.ready(app)
    ids = ("skip", "again", "dead", "unknown", "nonsense", "plain")
    await stage.send(name, *[Sent(id_, key=id_.encode()) for id_ in ids])
    await until_states(stage, worker, {"dead": "dead", "unknown": "unknown", "nonsense": "dead"})
    await worker.until_counted("events", "do", "completed", n=2)
    await worker.until_counted("events", "do", "skipped", n=1)
    assert [attempt for id_, attempt in seen if id_ == "again"] == [1, 2]
    assert sorted(await effects(stage)) == ["again", "plain", "skip"]
    why = await stage.value("SELECT message FROM tidegate.failure WHERE id_text = 'nonsense'")
    assert "returned a dict" in why


async def test_a_conflict_waits_for_a_person_where_that_is_declared(stage: Stage, topic: Topic) -> None:
    """The same id with other bytes: `on_conflict="review"` sends no letter and parks the key."""
    await table_of(stage)
    name = topic(partitions=1)
    app, _, _ = parking(name, on_conflict="review")
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", {"n": 1}, key=b"a"))
    await worker.until_counted("events", "do", "completed", n=1)
    await stage.send(name, Sent("a", {"n": 2}, key=b"a"), Sent("b", {"n": 3}, key=b"a"))
    await until_states(stage, worker, {"a": "unknown", "b": "queued"})
    assert await stage.value("SELECT reason FROM tidegate.failure WHERE state = 'unknown'") == "conflict"
    assert await stage.value("SELECT count(*) FROM tidegate.outbox") == 0
