"""Queued rows of commands: each comes to an end of its own, and none keeps another handler's from its turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.worker.test_parking import LATER, effects, parking, until_states
from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import RunningWorker, Sent, Stage, reader, table_of
from tidegate.consumers import Context, Event, RetryPolicy, TransientError
from tidegate.consumers.worker import rested_rows


@dataclass(frozen=True)
class Slowly:
    """For a handler that is slow."""

    id: str


async def until_rows(stage: Stage, worker: RunningWorker, *wanted: tuple[str, str, str]) -> None:
    """(id, state, reason) of every failure row, sorted."""

    async def holds() -> bool:
        return sorted(await stage.failures()) == sorted(wanted)

    await worker.until(holds)


# ----------------------------------------------------------------------------------------------- others of its event id


async def test_a_queued_command_ends_well_although_a_repeat_of_it_is_linked_to_it(stage: Stage, topic: Topic) -> None:
    """The producer sends it twice, under two keys: what the handler writes lands, once, and the linked row ends too.

    Case: B36
    Parts: real (PostgreSQL, Kafka)
    Red when: concluding.py `_complete_in` probes the failure table also where there is a `finish`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app, _, doctor = parking(name, "a")
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", key=b"k"))
    await until_states(stage, worker, {"a": "queued"})
    await stage.send(name, Sent("a", key=b"another"))
    await until_rows(stage, worker, ("a", "queued", "retry"), ("a", "linked", "duplicate"))
    doctor.ill.clear()
    await until_rows(stage, worker)
    assert await effects(stage) == ["a"]
    await stage.send(name, Sent("a", key=b"third"))
    await worker.until(lambda: worker.events("do", "skipped_duplicate") >= 2)
    assert await effects(stage) == ["a"]


async def test_a_queued_command_ends_well_although_another_record_with_its_id_is_dead(
    stage: Stage, topic: Topic
) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app, _, doctor = parking(name, "a")
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", {"n": 1}, key=b"k"))
    await until_states(stage, worker, {"a": "queued"})
    await stage.send(name, Sent("a", {"n": 2}, key=b"another"))
    await until_rows(stage, worker, ("a", "queued", "retry"), ("a", "dead", "conflict"))
    doctor.ill.clear()
    await until_rows(stage, worker, ("a", "dead", "conflict"))
    assert await stage.rows("SELECT id, n FROM public.effect") == [("a", 1)]


async def test_of_two_records_with_one_id_that_are_both_replayed_the_claim_lets_one_write(
    stage: Stage, topic: Topic
) -> None:
    await table_of(stage)
    name, ill = topic(partitions=1), {"a"}
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        await write(command, ctx)
        if command.id in ill:
            raise ValueError("ill")

    at_desk(app, act)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", {"n": 1}, key=b"k"), Sent("a", {"n": 2}, key=b"another"))
    await until_rows(stage, worker, ("a", "dead", "rejected"), ("a", "dead", "conflict"))
    ill.clear()
    assert len((await stage.replay()).replayed) == 2
    await until_rows(stage, worker, ("a", "dead", "conflict"))
    assert await effects(stage) == ["a"]
    await stage.replay()
    await worker.until_counted("dead", "do", "conflict", n=3)
    await until_rows(stage, worker, ("a", "dead", "conflict"))
    assert await effects(stage) == ["a"]


# ----------------------------------------------------------------------------------------------- what cannot be written


async def test_a_queued_command_whose_completion_cannot_be_stored_is_dead(stage: Stage, topic: Topic) -> None:
    """As on the fast way: once, with the database's words, and what waits behind it goes on.

    Case: B36
    Parts: real (PostgreSQL, Kafka)
    Red when: slow_way.py `_command` does not catch what `_groups.end` raises
    """
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    calls: Counter[str] = Counter()

    async def act(command: Do, ctx: Context) -> None:
        calls[command.id] += 1
        if command.id == "bad" and calls["bad"] == 1:
            raise TransientError("later")
        await ctx.publish("no\x00topic" if command.id == "bad" else out, {"about": command.id}, key=command.id)

    at_desk(app, act, retry=LATER)
    worker = await stage.ready(app)
    await stage.send(name, Sent("bad"), Sent("behind"))
    await until_rows(stage, worker, ("bad", "dead", "rejected"))
    await worker.until_counted("events", "do", "completed", n=1)
    assert calls == {"bad": 2, "behind": 1}
    assert await stage.value("SELECT attempts FROM tidegate.failure") == 2
    assert [record.key for record in await stage.read(out, 1)] == [b"behind"]


async def test_a_queued_command_that_came_back_well_waits_for_a_database_that_is_away(
    stage: Stage, topic: Topic
) -> None:
    """Its handler does not run once more: only its end was not written."""
    name, ill = topic(partitions=1), {"a"}
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        if command.id in ill:
            ill.clear()
            raise TransientError("later")

    desk = at_desk(app, act, retry=LATER)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a"))
    await until_states(stage, worker, {"a": "queued"})
    desk.shut("a")
    await worker.until(lambda: "a" in desk.inside)
    await stage.close_database()
    desk.open("a")
    await worker.until(lambda: "postgresql" in str(worker.board.ready().body))
    await stage.open_database()
    await worker.until_counted("events", "do", "completed", n=1)
    assert desk.calls == {"a": 2}
    assert await stage.failures() == []


async def test_the_time_in_which_no_worker_ran_is_not_counted_among_the_age_of_a_retry(
    stage: Stage, topic: Topic
) -> None:
    """It was to be tried again three days ago, and nobody was there: it has the tries that it would have had then.

    Case: B34
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/taking_up.py's history_of asks what time it is now, not when the row was due
    """
    await table_of(stage)
    name = topic(partitions=1)
    far = RetryPolicy(attempts_max=9, base_s=600.0, cap_s=600.0, age_max_s=7_200.0, in_place_max_s=0.0)
    app, desk, _ = parking(name, "a", retry=far)
    letters(app, topic)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", key=b"k"))
    await until_states(stage, worker, {"a": "queued"})
    await worker.stop()
    await stage.execute(
        "UPDATE tidegate.failure SET first_failed_at = now() - interval '73 hours',"
        " retrying_since = now() - interval '73 hours', last_failed_at = now() - interval '73 hours',"
        " due = now() - interval '72 hours'",
        "UPDATE tidegate.parked_key SET head_due = clock_timestamp() - interval '72 hours'",
    )
    worker = await stage.ready(app)
    await worker.until(lambda: desk.calls["a"] == 2)
    await worker.until(lambda: worker.metrics.value("retries", "do") == 1)
    await worker.stop()
    assert await stage.failures("do") == [("a", "queued", "retry")]
    age = "SELECT extract(epoch FROM last_failed_at - retrying_since) FROM tidegate.failure"
    assert 3_600 <= await stage.value(age) < 7_200


async def test_a_queued_row_whose_end_the_database_refuses_rests_and_keeps_nobody(
    stage: Stage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its letter can be written. Each further row is taken up by a look of its own, and it by none of them.

    Case: B36
    Parts: real (PostgreSQL, Kafka)
    Red when: slow_way.py `_take_up` has no row rest
    """
    monkeypatch.setattr(rested_rows, "FIRST_REST_S", 3_600.0)
    monkeypatch.setattr(rested_rows, "REST_MAX_S", 3_600.0)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    calls: Counter[str] = Counter()

    async def act(command: Do, _: Context) -> None:
        calls[command.id] += 1
        if calls[command.id] == 1:
            raise TransientError("later")
        if command.id == "bad":
            raise ValueError("never")

    at_desk(app, act, retry=LATER)
    await stage.execute("ALTER TABLE tidegate.outbox ADD CHECK (topic NOT LIKE '%.dlq')")
    worker = await stage.ready(app)
    await stage.send(name, Sent("bad", key=b"bad"))
    await worker.until(lambda: calls["bad"] == 2)
    for n in range(1, 4):
        await stage.send(name, Sent(f"fine-{n}", key=b"%d" % n))
        await worker.until_counted("events", "do", "completed", n=n)
    assert calls == {"bad": 2, "fine-1": 2, "fine-2": 2, "fine-3": 2}
    assert await stage.failures() == [("bad", "queued", "retry")]


# ------------------------------------------------------------------------------------------------- other handlers' rows


async def test_a_slow_handler_with_many_queued_rows_keeps_no_other_handlers_from_their_turn(
    stage: Stage, topic: Topic
) -> None:
    """It stands still with the first of them until the other one's row, queued behind all of them, is done.

    Case: B37
    Parts: real (PostgreSQL, Kafka)
    Red when: slow_way.py `_pick` gives `failure.pick` no rooms, and ROWS_MAX as its limit
    """
    name, many = topic(partitions=1), 120
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()
    ill, gate, came = True, asyncio.Event(), list[str]()

    @app.handler(Slowly)
    async def slowly(command: Slowly, ctx: Context) -> None:
        if ill:
            raise ValueError("ill")
        came.append(command.id)
        await gate.wait()

    @app.handler(Do)
    async def do(command: Do, ctx: Context) -> None:
        if ill:
            raise ValueError("ill")

    @consumer.command("slow", on="Slow", concurrency=1, breaker=None)
    def to_slowly(event: Event[dict[str, Any]]) -> Slowly:
        return Slowly(event.id_text)

    @consumer.command("do", on="Thing")
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    worker = await stage.ready(app)
    await stage.send(name, *[Sent(f"s{n}", key=b"%d" % n, type="Slow") for n in range(many)], Sent("quick", key=b"q"))
    await worker.until_counted("dead", "slow", "rejected", n=many)
    await worker.until_counted("dead", "do", "rejected", n=1)
    ill = False
    rows = await stage.rows("SELECT id, id_text = 'quick' FROM tidegate.failure")
    await stage.replay(*[number for number, is_quick in rows if not is_quick])
    await worker.until(lambda: len(came) == 1)
    await stage.replay(*[number for number, is_quick in rows if is_quick])
    await worker.until_counted("events", "do", "completed", n=1)
    assert len(came) == 1
    gate.set()
    await worker.until_counted("events", "slow", "completed", n=many)
    assert len(came) == many
