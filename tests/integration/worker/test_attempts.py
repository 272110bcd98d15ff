"""What a command's handler may do wrong, and what it comes to: retried, dead, and never anybody else's trouble."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text

from tests.services.topics import Topic
from tests.support.desk import Desk, Do, at_desk, letters, write
from tests.support.losing_proxy import losing_proxy
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import (
    BlockingContext,
    CallNext,
    Context,
    Dead,
    Event,
    Handling,
    Reason,
    RecordError,
    RetryPolicy,
    Skipped,
    TransientError,
    Unknown,
)

QUICK = RetryPolicy(attempts_max=3, base_s=0.001, cap_s=0.002)


async def moved_to(stage: Stage, *offsets: int) -> Callable[[], Awaitable[bool]]:
    """A condition: the command's checkpoints stand there."""

    async def holds() -> bool:
        return await stage.checkpoints("do") == dict(enumerate(offsets))

    return holds


# ------------------------------------------------------------------------------------------- one transaction for all


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_what_is_written_claimed_and_published_lands_together_or_not_at_all(
    stage: Stage, topic: Topic, kind: str
) -> None:
    """The same contract for both kinds of handler: it raises after it wrote and published, then succeeds."""
    await table_of(stage)
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()
    attempts: list[tuple[str, int]] = []

    def fail(ctx: Context | BlockingContext, command: Do) -> None:
        attempts.append((command.id, ctx.attempt))
        if ctx.attempt < command.says["n"]:
            raise TransientError("not yet")

    async def do(command: Do, ctx: Context) -> None:
        await write(command, ctx)
        await ctx.publish(out, {"about": command.id}, key=command.id)
        assert await ctx.tx.scalar(text("SELECT count(*) FROM public.effect WHERE id = :id"), {"id": command.id}) == 1
        fail(ctx, command)

    def do_blocking(command: Do, ctx: BlockingContext) -> None:
        ctx.tx.execute(text("INSERT INTO public.effect VALUES (:id, 0)"), {"id": command.id})
        ctx.publish(out, {"about": command.id}, key=command.id)
        assert ctx.tx.scalar(text("SELECT count(*) FROM public.effect WHERE id = :id"), {"id": command.id}) == 1
        fail(ctx, command)

    @consumer.command("do", on="Thing", retry=QUICK)
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    app.handler(Do)(do if kind == "async def" else do_blocking)
    await stage.send(name, Sent("a", {"n": 3}), Sent("never", {"n": 9}), Sent("b", {"n": 1}))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "completed", n=2)
    await worker.until_counted("dead", "do", "exhausted", n=1)
    assert sorted(attempts) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("never", 1), ("never", 2), ("never", 3)]
    assert await stage.rows("SELECT id FROM public.effect ORDER BY id") == [("a",), ("b",)]
    assert [record.key for record in await stage.read(out, 2)] == [b"a", b"b"]
    assert await stage.value("SELECT count(*) FROM tidegate.outbox WHERE kind = 'publish'") == 2
    assert await stage.value("SELECT attempts FROM tidegate.failure") == 3
    claimed = await stage.rows("SELECT xmin::text FROM tidegate.claim_1 ORDER BY 1")
    assert claimed == await stage.rows("SELECT xmin::text FROM public.effect ORDER BY 1")


async def test_a_commit_whose_answer_is_lost_lands_once_and_its_records_keep_their_ids(
    stage: Stage, topic: Topic
) -> None:
    """The database did commit; the worker cannot know, handles the event again, and finds its claim."""
    await table_of(stage)
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async with losing_proxy(stage.url) as (url, proxy):

        async def act(command: Do, ctx: Context) -> None:
            await write(command, ctx)
            await ctx.publish(out, {"about": command.id}, key="k")
            if desk.calls[command.id] == 1:
                proxy.to_lose = 1

        desk = at_desk(app, act, retry=QUICK)
        worker = await stage.start(app, url=url)
        await worker.until_ready()
        await stage.send(name, Sent("a"))
        await worker.until(lambda: proxy.lost == 1)
        await worker.until(await moved_to(stage, 1))
        await worker.until_counted("outbox_published", "delivered", n=1)
        assert await stage.rows("SELECT id FROM public.effect") == [("a",)]
        assert await stage.value("SELECT count(*) FROM tidegate.outbox") == 1
        assert await stage.failures() == []
        assert await worker.stop() == 0


async def test_a_commit_that_the_database_refuses_leaves_nothing_and_is_dead(stage: Stage, topic: Topic) -> None:
    """A deferred constraint speaks at the commit: no write, no claim, no record; and the letter names no value."""
    await stage.execute(
        "CREATE TABLE public.parent (id int PRIMARY KEY)",
        "CREATE TABLE public.effect (id text, n int REFERENCES public.parent DEFERRABLE INITIALLY DEFERRED)",
    )
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        await write(command, ctx)
        await ctx.publish(out, {"about": command.id})

    at_desk(app, act, retry=QUICK)
    await stage.send(name, Sent("a", {"n": 4711}))
    worker = await stage.start(app)
    await worker.until_counted("dead", "do", "rejected", n=1)
    for table in ("public.effect", "tidegate.claim_1", "tidegate.outbox WHERE kind = 'publish'"):
        assert await stage.value(f"SELECT count(*) FROM {table}") == 0
    assert "4711" not in await stage.value("SELECT message FROM tidegate.failure")


async def test_handlers_that_hold_their_transactions_keep_nobody_from_finishing(stage: Stage, topic: Topic) -> None:
    """The pool of `ctx.tx` is empty and stays so: commands without it are claimed and committed all the same, and who
    waits for a place there is not failing.
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        if command.says.get("tx"):
            await write(command, ctx)
            await inner.serve(command.id)

    desk = at_desk(app, act, retry=QUICK)
    inner = Desk()
    held = [f"held{n}" for n in range(4)]
    inner.shut(*held)
    await stage.send(
        name,
        *(Sent(id_, {"tx": True}, key=id_.encode()) for id_ in held),
        *(Sent(f"free{n}", key=b"f") for n in range(9)),
    )
    worker = await stage.start(app, variables={"TIDEGATE_DATABASE_TX_POOL_MAX": "2", "TIDEGATE_DATABASE_POOL_MAX": "2"})
    await worker.until_counted("events", "do", "completed", n=9)
    assert len(inner.inside) == 2
    assert len(desk.came) == 13
    inner.open(*held)
    await worker.until_counted("events", "do", "completed", n=13)
    assert await stage.failures() == []


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_handler_that_ends_the_transaction_itself_is_told_so(stage: Stage, topic: Topic, end: str) -> None:
    """Its writes would stand or fall without the claim, and what it wrote after that without the fence."""
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        connection = await ctx.tx
        async with connection.begin_nested():
            await write(command, ctx)
        if command.id == "bad":
            await getattr(connection, end)()
            await write(command, ctx)

    at_desk(app, act, retry=QUICK)
    await stage.send(name, Sent("bad"), Sent("fine"))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "completed", n=1)
    await worker.until_counted("dead", "do", "rejected", n=1)
    assert "ended the transaction" in await stage.value("SELECT message FROM tidegate.failure")
    expected = [("bad",), ("fine",)] if end == "commit" else [("fine",)]
    assert await stage.rows("SELECT id FROM public.effect ORDER BY id") == expected


async def test_waiting_for_a_place_in_the_pool_of_transactions_is_no_attempt(stage: Stage, topic: Topic) -> None:
    """One connection, and who holds it takes longer than a checkout may: the other is not dead, and not retried."""
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    inner = Desk()
    inner.shut("holder")

    async def act(command: Do, ctx: Context) -> None:
        await write(command, ctx)
        await inner.serve(command.id)

    desk = at_desk(app, act, retry=RetryPolicy(attempts_max=1))
    worker = await stage.start(app, variables={"TIDEGATE_DATABASE_TX_POOL_MAX": "1"})
    await stage.send(name, Sent("holder", key=b"h"))
    await worker.until(lambda: "holder" in inner.inside)
    await stage.send(name, Sent("waiter", key=b"w"))
    await worker.until(lambda: desk.calls["waiter"] == 2)
    inner.open("holder")
    await worker.until_counted("events", "do", "completed", n=2)
    assert await stage.failures() == []
    assert worker.metrics.value("retries", "do") == 0


# --------------------------------------------------------------------------------------------------------- attempts


async def test_attempts_start_anew_when_the_trouble_is_another_one(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    troubles = [ConnectionResetError, ConnectionResetError, TransientError, TransientError]

    async def act(command: Do, ctx: Context) -> None:
        assert ctx.attempt == desk.calls[command.id]
        if troubles:
            raise troubles.pop(0)("not yet")

    desk = at_desk(app, act, retry=QUICK)
    await stage.send(name, Sent("a"))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "completed", n=1)
    assert (desk.calls["a"], worker.metrics.value("retries", "do")) == (5, 4)


async def test_past_its_deadline_it_is_tried_again_and_then_a_timeout(
    stage: Stage, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log says where it stood, the neighbours go on, and its transaction is undone."""
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        await write(command, ctx)
        if command.says.get("hang"):
            await where_it_hangs(ctx)

    async def where_it_hangs(ctx: Context) -> None:
        await ctx.tx.execute(text("SELECT pg_sleep(60)"))

    desk = at_desk(app, act, retry=QUICK, deadline_s=0.2)
    await stage.send(name, Sent("slow", {"hang": True}, key=b"s"), Sent("fine"))
    worker = await stage.start(app)
    await worker.until_counted("dead", "do", "timeout", n=1)
    assert desk.calls == {"slow": 3, "fine": 1}
    assert await stage.rows("SELECT id FROM public.effect") == [("fine",)]
    assert await stage.failures() == [("slow", "dead", "timeout")]
    assert await stage.value("SELECT attempts FROM tidegate.failure") == 3
    logged = capsys.readouterr().out
    assert "where_it_hangs" in logged
    assert "handler_past_deadline" in logged


async def test_a_blocking_handler_past_its_deadline_is_a_timeout_and_its_thread_can_do_no_harm(
    stage: Stage, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thread cannot be stopped: what it writes later goes nowhere, and the loop never waited for it."""
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()
    gate = threading.Event()
    late: list[BaseException] = []

    @app.handler(Do)
    def do(command: Do, ctx: BlockingContext) -> None:
        ctx.tx.execute(text("INSERT INTO public.effect VALUES (:id, 0)"), {"id": command.id})
        if command.says.get("sql"):
            ctx.tx.execute(text("SELECT pg_sleep(60)"))
        gate.wait(20)
        try:
            ctx.tx.execute(text("INSERT INTO public.effect VALUES ('late', 0)"))
        except BaseException as error:
            late.append(error)
            raise

    @consumer.command("do", on="Thing", retry=RetryPolicy(attempts_max=1), deadline_s=0.3)
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    await stage.send(name, Sent("a"), Sent("b", {"sql": True}, key=b"b"))
    worker = await stage.start(app)
    await worker.until_counted("dead", "do", "timeout", n=2)
    gate.set()
    await worker.until(lambda: len(late) == 1)
    assert await stage.value("SELECT count(*) FROM public.effect") == 0
    assert ":do < " in capsys.readouterr().out.replace(" do < ", ":do < ")
    assert await worker.stop() == 0


# ------------------------------------------------------------------------------------------------ whatever it raises


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Endless(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


class Foreign(BaseException):
    """Some library's own way out."""


def leave(_: Any) -> None:
    sys.exit(3)


def stop_it(_: Any) -> None:
    raise asyncio.CancelledError


def raising(error: BaseException) -> Callable[[Any], None]:
    def act(_: Any) -> None:
        raise error

    return act


WORSE: dict[str, Callable[[Any], None]] = {
    "wordless": raising(Wordless()),
    "endless": raising(Endless()),
    "exits": leave,
    "foreign": raising(Foreign("bye")),
    "interrupts": raising(KeyboardInterrupt()),
    "closes": raising(GeneratorExit()),
    "cancels": stop_it,
    "business": raising(ValueError("not for this customer")),
    "ours": raising(RecordError(Reason.NO_KEY, "which customer?")),
    "group": raising(BaseExceptionGroup("two", [ValueError("a"), SystemExit(1)])),
    "stops": raising(StopIteration(1)),
}


@pytest.mark.parametrize("kind", ["async def", "def", "trigger", "middleware"])
async def test_whatever_a_handler_raises_is_its_own_events_end_and_nobody_elses(
    stage: Stage, topic: Topic, kind: str
) -> None:
    """Also SystemExit: a library that calls `sys.exit` on bad input is that event's failure, not the process's end. The
    same goes for KeyboardInterrupt and GeneratorExit: a real Ctrl-C comes as a signal, and never through a handler.
    """
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()

    async def do(command: Do, ctx: Context) -> None:
        if kind == "async def":
            WORSE.get(command.id, bool)(None)

    def do_blocking(command: Do) -> None:
        WORSE.get(command.id, bool)(None)

    @consumer.command("do", on="Thing", retry=QUICK)
    def to_do(event: Event[dict[str, Any]]) -> Do:
        if kind == "trigger":
            WORSE.get(event.id_text, bool)(None)
        return Do("fine" if kind == "trigger" else event.id_text, event.value)

    async def around(ctx: Handling, call_next: CallNext) -> object:
        WORSE.get(ctx.event.id_text, bool)(None)
        return await call_next()

    if kind == "middleware":
        app.middleware(around)
    app.handler(Do)(do_blocking if kind == "def" else do)
    ids = [*WORSE, "fine"]
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in ids))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "failed", n=len(WORSE))
    await worker.until_counted("events", "do", "completed", n=1)
    found = {id_text: reason for id_text, _, reason in await stage.failures("do")}
    assert found == {id_: "no_key" if id_ == "ours" else "rejected" for id_ in WORSE}


async def test_a_handler_in_a_thread_says_how_its_event_ended_and_nonsense_is_no_success(
    stage: Stage, topic: Topic
) -> None:
    """None is done, an outcome is that outcome, and whatever else comes back is a dead letter that names the fix.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: dlq/outcomes.py's `case _` returns Handled()
    """
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()
    returned: dict[str, object] = {
        "done": None,
        "skipped": Skipped("nobody ordered it"),
        "dead": Dead(Reason.NO_KEY, "whose is it?"),
        "unknown": Unknown("the bank said neither yes nor no"),
        "number": 200,
        "class": Skipped,
    }

    def do(command: Do) -> object:
        return returned[command.id]

    @consumer.command("do", on="Thing", retry=QUICK)
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    app.handler(Do)(do)
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in returned))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "completed", n=1)
    await worker.until_counted("events", "do", "skipped", n=1)
    await worker.until_counted("events", "do", "failed", n=3)
    await worker.until_counted("events", "do", "unknown", n=1)
    found = {id_text: (state, reason) for id_text, state, reason in await stage.failures("do")}
    assert found == {
        "dead": ("dead", "no_key"),
        "unknown": ("unknown", "review"),
        "number": ("dead", "rejected"),
        "class": ("dead", "rejected"),
    }
    assert await stage.value("SELECT max(length(message)) FROM tidegate.failure") < 600
    assert await worker.stop() == 0


async def test_a_trigger_that_makes_what_nobody_handles_is_rejected(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()

    @consumer.command("do", on="Thing", retry=QUICK)
    def to_do(event: Event[dict[str, Any]]) -> Any:
        return 7

    await stage.send(name, Sent("a"))
    worker = await stage.start(app)
    await worker.until_counted("dead", "do", "rejected", n=1)
    assert "made a int" in await stage.value("SELECT message FROM tidegate.failure")


async def test_one_completion_that_cannot_be_stored_fails_alone(stage: Stage, topic: Topic) -> None:
    """Handlers come back together, and their completions are one transaction: the row that PostgreSQL refuses is dead,
    its neighbours are handled once.

    Case: B36
    Parts: real (Kafka, PostgreSQL)
    Red when: completing.py `_flush` leaves a group with bad data to `self.drop(members)` instead of `_split`
    """
    name, out = topic(partitions=1), topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        bad = command.id == "bad"
        await ctx.publish("no\x00topic" if bad else out, {"about": command.id}, key=command.id)

    desk = at_desk(app, act, retry=QUICK)
    ids = ["a", "b", "bad", "c", "d"]
    desk.shut(*ids)
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in ids))
    worker = await stage.start(app)
    await worker.until(lambda: len(desk.inside) == 5)
    desk.open(*ids)
    await worker.until_counted("events", "do", "completed", n=4)
    await worker.until_counted("dead", "do", "rejected", n=1)
    assert desk.calls == dict.fromkeys(ids, 1)
    assert sorted(record.key or b"" for record in await stage.read(out, 4)) == [b"a", b"b", b"c", b"d"]
    await worker.until(await moved_to(stage, 5))
