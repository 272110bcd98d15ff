"""Middleware wraps every handling, inside its claim and its deadline; rates hold beginnings apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import (
    App,
    BlockingContext,
    BlockingTx,
    CallNext,
    Dead,
    Event,
    Handling,
    Reason,
    Retry,
    Skipped,
    Unknown,
)


@dataclass
class Flags:
    """Whose handling is turned off."""

    off: frozenset[str]


async def test_the_first_declared_is_outermost_and_what_it_writes_counts_with_the_handling(
    stage: Stage, topic: Topic
) -> None:
    name = topic()
    app = reader(name)
    await table_of(stage)
    seen: list[str] = []

    @app.middleware
    async def outer(ctx: Handling, call_next: CallNext) -> object:
        seen.append(f"outer of {ctx.handler}, {len(ctx.events)}")
        returned = await call_next()
        await ctx.tx.execute(text("INSERT INTO public.effect VALUES (:id, 100)"), {"id": ctx.event.id_text})
        seen.append("outer is back")
        return returned

    @app.middleware
    async def inner(ctx: Handling, call_next: CallNext) -> object:
        seen.append("inner")
        return await call_next()

    desk = at_desk(app, write)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", {"n": 1}))
    await worker.until(lambda: worker.events("do", "completed") == 1)
    assert seen == ["outer of do, 1", "inner", "outer is back"]
    assert sorted(await stage.rows("SELECT id, n FROM public.effect")) == [("a", 1), ("a", 100)]
    assert desk.calls["a"] == 1


async def test_a_projections_batch_is_wrapped_as_one_and_def_handlers_are_too(stage: Stage, topic: Topic) -> None:
    """What a middleware binds for the log is bound where the function runs, in its thread too."""
    name = topic()
    app = reader(name)
    (consumer,) = app.consumers.values()
    await table_of(stage)
    bound: list[tuple[str, Any]] = []

    @app.middleware
    async def shop(ctx: Handling, call_next: CallNext) -> object:
        with structlog.contextvars.bound_contextvars(shop=f"{ctx.handler} {len(ctx.events)}"):
            return await call_next()

    def seen() -> Any:
        return structlog.contextvars.get_contextvars().get("shop")

    @consumer.projection("async", batch_wait_ms=300)
    async def in_loop(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        bound.append(("async", seen()))
        await note(events, tx)

    @consumer.projection("def", batch_wait_ms=300)
    def in_thread(events: Sequence[Event[dict[str, Any]]], tx: BlockingTx) -> None:
        bound.append(("def", seen()))

    @app.handler(Do)
    def do(command: Do, ctx: BlockingContext) -> None:
        bound.append(("command", seen()))

    @consumer.command("command", on="Thing")
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    worker = await stage.ready(app)
    await stage.send(name, Sent("a"), Sent("b"))
    await worker.until(lambda: worker.events("async", "completed") == worker.events("def", "completed") == 2)
    await worker.until(lambda: worker.events("command", "completed") == 2)
    assert {kind: value.split()[0] for kind, value in bound} == {"async": "async", "def": "def", "command": "command"}
    for kind in ("async", "def", "command"):
        assert sum(int(value.split()[1]) for at, value in bound if at == kind) == 2


async def test_it_may_answer_in_the_handlers_place_or_fail_the_event(stage: Stage, topic: Topic) -> None:
    """An outcome that it returns is the event's; what it raises is the event's failure, and undoes what it wrote."""
    name = topic()
    app = reader(name)
    letters(app, topic)
    await table_of(stage)

    @app.lifespan
    async def flags() -> AsyncIterator[object]:
        yield Flags(frozenset({"skipped"}))

    @app.middleware
    async def gate(ctx: Handling, call_next: CallNext, flags: Flags) -> object:
        if ctx.event.id_text in flags.off:
            return Skipped("turned off")
        await ctx.tx.execute(text("INSERT INTO public.effect VALUES (:id, 0)"), {"id": ctx.event.id_text})
        if ctx.event.id_text == "raised":
            raise ValueError("not this one")
        returned = await call_next()
        if ctx.event.id_text == "twice":
            await call_next()
        return returned

    desk = at_desk(app)
    worker = await stage.ready(app)
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in ("skipped", "raised", "twice", "fine")))
    await worker.until(lambda: worker.events("do", "failed") == 2 and worker.events("do", "completed") == 1)
    assert worker.events("do", "skipped") == 1
    assert sorted(desk.came) == ["fine", "twice"]
    assert await stage.rows("SELECT id FROM public.effect") == [("fine",)]
    assert {row[0]: row[2] for row in await stage.failures("do")} == {"raised": "rejected", "twice": "rejected"}
    said = await stage.value("SELECT message FROM tidegate.failure WHERE id_text = 'twice'")
    assert "call_next is called once" in said


async def test_what_it_returns_for_a_projections_batch_is_found_event_by_event(stage: Stage, topic: Topic) -> None:
    """An outcome for many is searched for whose it is, as a failure is: the others of the batch are applied.

    Case: B37
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/batch.py's _stale takes an outcome for nonsense
    """
    name = topic()
    app = reader(name)
    (consumer,) = app.consumers.values()
    letters(app, topic)
    await table_of(stage)
    outcomes: dict[str, list[object]] = {
        "skipped": [Skipped("turned off")] * 100,
        "dead": [Dead(Reason.REJECTED, "not this one")] * 100,
        "later": [Retry("once more", after_s=0.01)],
        "unknown": [Unknown("nobody knows")] * 100,
    }

    @app.middleware
    async def gate(ctx: Handling, call_next: CallNext) -> object:
        for event in ctx.events:
            said = outcomes.get(event.id_text, [])
            if said and (len(ctx.events) == 1 or not isinstance(said[0], Retry)):
                return said.pop()
        return await call_next()

    @consumer.projection("noted", batch_wait_ms=300)
    async def noted(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        await note(events, tx)

    worker = await stage.ready(app)
    ids = ("a", "skipped", "b", "dead", "later", "unknown", "c")
    await stage.send(name, *(Sent(id_, {"n": 1}, key=id_.encode()) for id_ in ids))
    await worker.until(lambda: worker.events("noted", "completed") == 4)
    await worker.until(lambda: worker.events("noted", "failed") == 1 and worker.events("noted", "unknown") == 1)
    assert worker.events("noted", "skipped") == 1
    assert sorted(await stage.rows("SELECT id FROM public.effect")) == [("a",), ("b",), ("c",), ("later",)]
    rows = "SELECT id_text, state, reason, message, exception_type FROM tidegate.failure ORDER BY id_text"
    assert await stage.rows(rows) == [
        ("dead", "dead", "rejected", "not this one", ""),
        ("unknown", "unknown", "review", "nobody knows", ""),
    ]


async def test_the_deadline_is_for_the_middleware_too(stage: Stage, topic: Topic) -> None:
    name = topic()
    app = reader(name)
    (consumer,) = app.consumers.values()
    letters(app, topic)
    waiting = asyncio.Event()

    @app.middleware
    async def stuck(ctx: Handling, call_next: CallNext) -> object:
        await waiting.wait()
        return await call_next()

    at_desk(app, deadline_s=0.1)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a"))
    await worker.until(lambda: worker.metrics.value("retries", "do") >= 1)
    assert consumer.commands["do"].deadline_s == 0.1


def test_a_middleware_that_cannot_be_awaited_is_said_before_anything_starts() -> None:
    app = App("tests", owner="tests")

    @app.middleware
    def plain(ctx: Handling, call_next: CallNext) -> Awaitable[object]:
        return call_next()

    assert [problem.what for problem in app.problems()] == ["it is no async def"]


async def test_a_rate_holds_beginnings_apart_and_nothing_else(stage: Stage, topic: Topic) -> None:
    """20 a second: 2 at once, then one each 50 ms; whatever its concurrency. Another handler does not wait for it."""
    name = topic()
    app = reader(name)
    (consumer,) = app.consumers.values()
    began: list[float] = []

    async def clocked(command: Do, ctx: Any) -> None:
        began.append(time.monotonic())

    at_desk(app, clocked, rate_per_s=20)

    @dataclass(frozen=True)
    class Other:
        id: str

    @app.handler(Other)
    async def other(command: Other) -> None:
        return None

    @consumer.command("other", on="Thing")
    def to_other(event: Event[dict[str, Any]]) -> Other:
        return Other(event.id_text)

    worker = await stage.ready(app)
    await stage.send(name, *(Sent(f"e{n}", key=b"%d" % n) for n in range(20)))
    await worker.until(lambda: worker.events("other", "completed") == 20)
    assert worker.events("do", "completed") < 20
    await worker.until(lambda: worker.events("do", "completed") == 20)
    assert began[-1] - began[0] >= 17 / 20
