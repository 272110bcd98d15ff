"""Batches of projections: applied once, with their claims and checkpoints, in one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.running import ID, Sent, Stage, committed, letters_of, note, reader, table_of
from tidegate.consumers import App, BlockingTx, Context, Event, RetryPolicy, TransientError


@dataclass
class Trouble:
    """What a projection does for each event before it writes, and what it saw."""

    calls: Counter[str] = field(default_factory=Counter[str])
    batches: list[list[str]] = field(default_factory=list[list[str]])

    def meet(self, event: Event[dict[str, Any]]) -> None:
        """Raise as often as the event says."""
        self.calls[event.id_text] += 1
        if event.value.get("permanent"):
            raise ValueError("refused")
        if self.calls[event.id_text] <= event.value.get("transient", 0):
            raise TransientError("not now")


def troubled(app: App, name: str = "effects", **options: Any) -> Trouble:
    """Declare a projection that meets its trouble."""
    trouble = Trouble()
    (consumer,) = app.consumers.values()

    @consumer.projection(name, **options)
    async def project(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        trouble.batches.append([event.id_text for event in events])
        for event in events:
            trouble.meet(event)
        await note(events, tx)

    return trouble


async def test_a_batch_its_claims_and_its_checkpoint_are_one_transaction(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    troubled(app)
    await stage.send(name, *(Sent(f"e{n}", {"n": n}) for n in range(5)))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=5)
    ids = [
        await stage.value(f"SELECT DISTINCT xmin::text FROM {table}") for table in ("public.effect", "tidegate.claim_1")
    ]
    ids.append(await stage.value("SELECT xmin::text FROM tidegate.checkpoint"))
    assert len(set(ids)) == 1
    assert await stage.checkpoints("effects") == {0: 5}
    await stage.send(name, Sent("e1", {"n": 1}), Sent("e5", {"n": 5}), Sent("e5", {"n": 5}))
    await worker.until_counted("dedup_hits", "effects", n=2)
    assert await stage.rows("SELECT id, n FROM public.effect ORDER BY n") == [(f"e{n}", n) for n in range(6)]
    assert await stage.checkpoints("effects") == {0: 8}
    assert await stage.failures() == []
    assert await worker.stop() == 0


async def test_a_known_id_with_other_bytes_is_a_dead_letter_not_a_quiet_duplicate(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    troubled(app)
    await stage.send(name, Sent("a", {"n": 1}), Sent("a", {"n": 2}))
    worker = await stage.start(app)
    await worker.until_counted("conflicts", "effects", n=1)
    await stage.send(name, Sent("a", {"n": 3}), Sent("b", {"n": 4}), Sent("a", {"n": 1}), Sent("a", {"n": 3}))
    await worker.until_counted("events", "effects", "completed", n=2)
    await worker.until_counted("conflicts", "effects", n=3)
    assert await stage.rows("SELECT id, n FROM public.effect ORDER BY n") == [("a", 1), ("b", 4)]
    assert await stage.failures() == [("a", "dead", "conflict")] * 3
    await worker.until_counted("outbox_published", "delivered", n=3)
    assert await stage.checkpoints("effects") == {0: 6}


async def test_a_projection_that_fails_leaves_the_batch_to_the_others(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    await table_of(stage, "other")
    name = topic(partitions=1)
    app = reader(name)
    troubled(app)
    (consumer,) = app.consumers.values()
    gate = asyncio.Event()

    @consumer.projection("others")
    async def others(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        await tx.execute(text("INSERT INTO public.other SELECT 'x', 1 FROM pg_sleep(0)"))
        if not gate.is_set():
            raise TransientError("not yet")

    await stage.send(name, Sent("a", {"n": 1}))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=1)
    await worker.until(lambda: worker.metrics.value("retries", "others") >= 1)
    assert await stage.checkpoints("effects") == {0: 1}
    assert await stage.checkpoints("others") == {0: 0}
    gate.set()
    await worker.until_counted("events", "others", "completed", n=1)
    assert await stage.value("SELECT count(*) FROM public.other") == 1
    assert await stage.checkpoints("others") == {0: 1}
    assert worker.events("effects", "completed") == 1


async def test_one_bad_event_in_a_batch_is_dead_and_only_it(stage: Stage, topic: Topic) -> None:
    """Ten events of which the fourth fails for good and the seventh once: nine effects, one letter, commit 10.

    Case: B36
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/search.py `_end` leaves out `self._found = True`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters = topic(partitions=1, name=letters_of(name, app))
    troubled(app)
    special = {4: {"permanent": True}, 7: {"transient": 1}}
    await stage.send(name, *(Sent(f"e{n}", {"n": n, **special.get(n, {})}) for n in range(1, 11)))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=9)
    await worker.until_counted("dead", "effects", "rejected", n=1)
    await worker.until_counted("outbox_published", "delivered", n=1)
    (letter,) = await stage.read(letters, 1)
    assert (letter.value, letter.header(ID)) == (Sent("e4", {"n": 4, **special[4]}).bytes_, b"e4")
    expected = [(f"e{n}",) for n in range(1, 11) if n != 4]
    assert await stage.rows("SELECT id FROM public.effect ORDER BY n") == expected
    assert await stage.failures() == [("e4", "dead", "rejected")]
    assert await stage.checkpoints("effects") == {0: 10}
    await worker.until(committed(stage, 10))


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_projection_that_raises_what_ends_a_process_ends_its_event(
    stage: Stage, topic: Topic, kind: str, error: BaseException
) -> None:
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()

    def meet(events: Sequence[Event[dict[str, Any]]]) -> None:
        if any(event.id_text == "bad" for event in events):
            raise error

    def project_blocking(events: Sequence[Event[dict[str, Any]]], tx: BlockingTx) -> None:
        meet(events)

    async def project(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        meet(events)

    consumer.projection("effects")(project if kind == "async def" else project_blocking)
    await stage.send(name, Sent("a"), Sent("bad"), Sent("b"))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=2)
    await worker.until_counted("dead", "effects", "rejected", n=1)
    assert await stage.failures() == [("bad", "dead", "rejected")]
    assert await worker.stop() == 0


async def test_what_time_heals_gets_its_tries_also_beside_a_poison_event(stage: Stage, topic: Topic) -> None:
    """A transient event in a batch with a permanent one is retried by the policy, not buried by the bisection.

    Case: B36
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/search.py `_try_again` takes every `delay_s` for None
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    trouble = troubled(app)
    await stage.send(name, Sent("bad", {"permanent": True}), Sent("late", {"transient": 3}))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=1)
    assert await stage.failures() == [("bad", "dead", "rejected")]
    assert trouble.calls["late"] == 4


async def test_an_event_that_stays_transient_is_dead_as_exhausted(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    trouble = troubled(app, retry=RetryPolicy(in_place_max_s=30.0))
    await stage.send(name, Sent("never", {"transient": 1000}), Sent("fine", {"n": 1}))
    worker = await stage.start(app)
    await worker.until_counted("dead", "effects", "exhausted", n=1)
    await worker.until_counted("events", "effects", "completed", n=1)
    assert await stage.failures() == [("never", "dead", "exhausted")]
    assert worker.metrics.value("retries", "effects") == 4
    assert await stage.value("SELECT attempts FROM tidegate.failure") == 5
    assert trouble.calls["never"] < 10


async def test_a_batch_that_fails_only_as_a_whole_is_applied_in_pieces(stage: Stage, topic: Topic) -> None:
    """One statement that meets a key twice is PostgreSQL's error 21000, and no event's fault: halves go well."""
    await stage.execute("CREATE TABLE public.latest (key text PRIMARY KEY, n int)")
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()

    @consumer.projection("latest")
    async def latest(events: Sequence[Event[dict[str, int]]], tx: AsyncConnection) -> None:
        await tx.execute(
            text("""
                INSERT INTO public.latest SELECT 'k', u FROM unnest(CAST(:ns AS int[])) u
                ON CONFLICT (key) DO UPDATE SET n = excluded.n
            """),
            {"ns": [event.value["n"] for event in events]},
        )

    await stage.send(name, *(Sent(f"e{n}", {"n": n}) for n in range(4)))
    worker = await stage.start(app)
    await worker.until_counted("events", "latest", "completed", n=4)
    assert await stage.value("SELECT n FROM public.latest") == 3
    assert await stage.failures() == []


async def test_an_event_that_breaks_a_deferred_constraint_is_dead_and_only_it(stage: Stage, topic: Topic) -> None:
    """The database refuses the commit, when no function runs any more: the bad event is found all the same.

    Case: B36
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/batch.py `run` leaves out `_check_constraints`
    """
    await stage.execute("CREATE TABLE public.effect (id text, n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    troubled(app)
    await stage.send(name, Sent("a", {"n": 1}), Sent("b", {"n": 1}), Sent("c", {"n": 2}))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=2)
    assert await stage.failures() == [("b", "dead", "rejected")]
    assert await stage.rows("SELECT id FROM public.effect ORDER BY id") == [("a",), ("c",)]
    await worker.until_counted("outbox_published", "delivered", n=1)


async def test_a_projection_past_its_deadline_is_tried_again_and_the_others_go_on(stage: Stage, topic: Topic) -> None:
    """A statement that is cut off takes its connection along: the other projection's batch stands all the same."""
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    troubled(app)
    (consumer,) = app.consumers.values()
    runs: list[list[str]] = []

    @consumer.projection("a-slow-one", deadline_s=0.3)
    async def slow(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        runs.append([event.id_text for event in events])
        if any(event.value.get("slow") for event in events):
            await tx.execute(text("SELECT pg_sleep(60)"))
        await tx.execute(text("INSERT INTO public.effect VALUES ('slow', 0)"))

    await stage.send(name, Sent("a", {"n": 1}), Sent("b", {"n": 2, "slow": True}), Sent("c", {"n": 3}))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=3)
    await worker.until_counted("dead", "a-slow-one", "timeout", n=1)
    await worker.until_counted("events", "a-slow-one", "completed", n=2)
    assert await stage.failures() == [("b", "dead", "timeout")]
    assert await stage.checkpoints("a-slow-one") == await stage.checkpoints("effects") == {0: 3}
    assert await stage.value("SELECT count(*) FROM public.effect WHERE id <> 'slow'") == 3


async def test_a_repeat_of_a_dead_event_is_linked_to_it_and_not_run(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    trouble = troubled(app)
    bad = Sent("bad", {"permanent": True})
    await stage.send(name, bad, bad, Sent("fine", {"n": 1}))
    worker = await stage.start(app)
    await worker.until_counted("dead", "effects", "rejected", n=1)
    await worker.until_counted("events", "effects", "completed", n=1)
    calls = trouble.calls["bad"]
    await stage.send(name, bad, Sent("bad", {"permanent": True, "other": "bytes"}))
    await worker.until_counted("dead", "effects", "conflict", n=1)
    assert trouble.calls["bad"] == calls
    linked = ("bad", "linked", "duplicate")
    assert await stage.failures() == [("bad", "dead", "rejected"), linked, linked, ("bad", "dead", "conflict")]
    originals = await stage.rows("SELECT DISTINCT duplicate_of FROM tidegate.failure WHERE state = 'linked'")
    assert originals == await stage.rows("SELECT min(id) FROM tidegate.failure")


async def test_a_projection_publishes_and_what_it_publishes_commits_with_its_batch(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()
    runs: list[int] = []

    @consumer.projection("announcing")
    async def announce(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection, ctx: Context) -> None:
        runs.append(len(events))
        await note(events, tx)
        for event in events:
            await ctx.publish(out, {"about": event.id_text}, key=event.id_text)
        if len(runs) == 1:
            raise TransientError("once")

    await stage.send(name, Sent("a"), Sent("b"))
    worker = await stage.start(app)
    await worker.until_counted("events", "announcing", "completed", n=2)
    await worker.until_counted("outbox_published", "delivered", n=2)
    assert [(r.key, r.value) for r in await stage.read(out, 2)] == [(b"a", b'{"about":"a"}'), (b"b", b'{"about":"b"}')]
    assert runs == [2, 2]
    headers = [dict(r.headers) for r in await stage.read(out, 2)]
    assert len({h["tidegate-message-id"] for h in headers}) == 2


async def test_a_plain_function_projects_from_a_thread_with_a_blocking_transaction(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()

    @consumer.projection("blocking")
    def blocking(events: Sequence[Event[dict[str, Any]]], tx: BlockingTx) -> None:
        for event in events:
            tx.execute(text("INSERT INTO public.effect VALUES (:id, 1)"), {"id": event.id_text})
        assert tx.scalar(text("SELECT count(*) FROM public.effect")) == len(events)

    await stage.send(name, Sent("a"), Sent("b"))
    worker = await stage.start(app)
    await worker.until_counted("events", "blocking", "completed", n=2)
    assert await stage.value("SELECT count(*) FROM public.effect") == 2
    assert await stage.checkpoints("blocking") == {0: 2}


async def test_a_projection_gets_the_types_that_it_takes_and_no_others(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    placed = troubled(app, "placed", on="Placed")
    everything = troubled(app, "everything", on=("Placed", "Paid"))
    await stage.send(name, Sent("a", type="Placed"), Sent("b", type="Paid"), Sent("c", type="Lost"))
    worker = await stage.start(app)
    await worker.until_counted("events", "everything", "completed", n=2)
    await worker.until_counted("unmatched", name, "Lost", n=1)
    assert (set(placed.calls), set(everything.calls)) == ({"a"}, {"a", "b"})
    assert await stage.failures() == []
    await worker.until(committed(stage, 3))


async def test_events_that_no_handler_takes_are_dead_where_that_is_declared(stage: Stage, topic: Topic) -> None:
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name, unmatched="dead")
    topic(partitions=1, name=letters_of(name, app))
    troubled(app, on="Placed")
    await stage.send(name, Sent("a", type="Placed"), Sent("b", type="Lost"))
    worker = await stage.start(app)
    await worker.until_counted("dead", "", "unmatched", n=1)
    await worker.until_counted("events", "effects", "completed", n=1)
    assert [row[1:] for row in await stage.failures("")] == [("dead", "unmatched")]


async def test_a_database_that_goes_away_under_a_handler_pauses_and_buries_nothing(stage: Stage, topic: Topic) -> None:
    """The batch waits in memory for as long as it takes, costs no attempt, and goes on.

    Case: B35
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/settling.py `_decision` leaves out `if not await self._ping(...)`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()
    entered, gate = asyncio.Event(), asyncio.Event()

    @consumer.projection("effects")
    async def effects(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        entered.set()
        await gate.wait()
        await note(events, tx)

    await stage.send(name, Sent("a"), Sent("b"))
    worker = await stage.start(app)
    await worker.until(entered.is_set)
    await stage.close_database()
    gate.set()
    await worker.until(lambda: "postgresql" in worker.board.dependencies_away)
    assert not worker.board.ready().ok
    await worker.until(lambda: worker.metrics.value("partitions_paused", "dependency") == 1)
    await stage.open_database()
    await worker.until_counted("events", "effects", "completed", n=2)
    assert await stage.failures() == []
    assert worker.metrics.value("retries", "effects") == 0
    await worker.until(lambda: worker.board.ready().ok)
