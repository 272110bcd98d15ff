"""Handlers and projections that their cancellation does not end: their events end, and they do no harm later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import Context, Event, RetryPolicy, idempotent_key
from tidegate.dlq import guard

ONCE = RetryPolicy(attempts_max=1)


class Stubborn:
    """What swallows every cancellation until the test lets it go; what its late writes met."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.late: list[BaseException | None] = []

    async def stay(self) -> None:
        """Whatever happens."""
        while not self.free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.free.wait()


@pytest.fixture
async def stubborn(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Stubborn]:
    """Nobody waits for it for long; it is let go at the end, since the test's own loop waits for it too."""
    monkeypatch.setattr(guard, "CANCEL_MAX_S", 0.05)
    stubborn = Stubborn()
    yield stubborn
    stubborn.free.set()


@pytest.mark.parametrize("late", ["ctx.tx", "connection", "effect"])
async def test_a_handler_that_swallows_its_cancellation_is_a_timeout_and_its_key_goes_on(
    stage: Stage, topic: Topic, stubborn: Stubborn, late: str
) -> None:
    """What it wrote is undone, what it does later through its context raises, and the next event of its key runs."""
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    app.effect("charge", rule=idempotent_key(valid_s=3600), deadline_s=1)

    async def act(command: Do, ctx: Context) -> None:
        connection = None
        if command.id == "next" or late != "effect":  # no call is made inside an open transaction, late or not
            await write(command, ctx)
            connection = await ctx.tx
        if command.id == "next":
            return
        await stubborn.stay()
        try:
            if late == "ctx.tx":
                await ctx.tx.execute(text("INSERT INTO public.effect VALUES ('late', 0)"))
            elif late == "effect":
                async with ctx.effect("charge"):
                    pass
            elif connection is not None:
                await connection.execute(text("INSERT INTO public.effect VALUES ('late', 0)"))
                await connection.commit()
        except Exception as error:  # noqa: BLE001 - that it raises is what is asked about
            stubborn.late.append(error)
        else:
            stubborn.late.append(None)

    at_desk(app, act, retry=ONCE, deadline_s=2.0)
    await stage.send(name, Sent("stuck", key=b"k"), Sent("next", key=b"k"))
    worker = await stage.start(app)
    await worker.until_counted("dead", "do", "timeout", n=1)
    await worker.until_counted("events", "do", "completed", n=1)
    assert await stage.failures() == [("stuck", "dead", "timeout")]
    stubborn.free.set()
    await worker.until(lambda: len(stubborn.late) == 1)
    assert isinstance(stubborn.late[0], Exception)
    assert await stage.rows("SELECT id FROM public.effect") == [("next",)]
    assert await stage.value("SELECT count(*) FROM tidegate.effect") == 0
    assert await worker.stop() == 0


async def test_a_projection_that_swallows_its_cancellation_is_a_timeout_and_its_partition_goes_on(
    stage: Stage, topic: Topic, stubborn: Stubborn
) -> None:
    """It loses its connection: nothing that it does later is committed, and no session stays in its transaction."""
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()

    @consumer.projection("effects", retry=ONCE, deadline_s=2.0)
    async def project(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        for event in events:
            await tx.execute(text("INSERT INTO public.effect VALUES (:id, 0)"), {"id": event.id_text})
        if any(event.id_text == "stuck" for event in events):
            await stubborn.stay()
            try:
                await tx.execute(text("INSERT INTO public.effect VALUES ('late', 0)"))
                await tx.commit()
            except Exception as error:  # noqa: BLE001 - that it raises is what is asked about
                stubborn.late.append(error)
            else:
                stubborn.late.append(None)

    await stage.send(name, Sent("a"), Sent("stuck"), Sent("b"))
    worker = await stage.start(app)
    await worker.until_counted("dead", "effects", "timeout", n=1)
    await worker.until_counted("events", "effects", "completed", n=2)
    assert await stage.checkpoints("effects") == {0: 3}

    async def nobody_stays_inside() -> bool:
        return not await stage.rows(
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND query LIKE 'INSERT INTO public.effect%' AND state <> 'idle'"
        )

    await worker.until(nobody_stays_inside)
    stubborn.free.set()
    await worker.until(lambda: bool(stubborn.late))
    assert all(isinstance(late, Exception) for late in stubborn.late)
    assert await stage.rows("SELECT id FROM public.effect ORDER BY id") == [("a",), ("b",)]
    assert await worker.stop() == 0


async def test_what_a_projection_writes_behind_its_end_never_joins_what_others_commit(
    stage: Stage, topic: Topic, stubborn: Stubborn
) -> None:
    """1. `late` outlives its cancellation, in the transaction that it shares. 2. `other` is let in, and waits there
    until `late` has tried to write: refused. 3. What commits for `other` holds nothing of it.
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()
    runs, tried = 0, asyncio.Event()

    @consumer.projection("a-late", retry=ONCE, deadline_s=1.0)
    async def late(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        nonlocal runs
        runs += 1
        if runs > 1:
            return
        await stubborn.stay()
        try:
            await tx.execute(text("INSERT INTO public.effect VALUES ('late', 0)"))
        except Exception as error:  # noqa: BLE001 - that it raises is what is asked about
            stubborn.late.append(error)
        tried.set()

    @consumer.projection("b-other")
    async def other(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        stubborn.free.set()
        await tried.wait()

    await stage.send(name, Sent("a"))
    worker = await stage.start(app)
    await worker.until_counted("events", "b-other", "completed", n=1)
    assert stubborn.late, "it was refused"
    assert await stage.value("SELECT count(*) FROM public.effect") == 0


async def test_a_stop_does_not_wait_for_a_handler_that_swallows_its_cancellation(
    stage: Stage, topic: Topic, stubborn: Stubborn
) -> None:
    name = topic(partitions=1)
    app = reader(name)
    inside = asyncio.Event()

    async def act(command: Do, ctx: Context) -> None:
        inside.set()
        await stubborn.stay()

    at_desk(app, act)
    await stage.send(name, Sent("stuck"))
    worker = await stage.start(app, variables={"TIDEGATE_WORKER_DRAIN_BUDGET_S": "0.2"})
    await inside.wait()
    assert await worker.stop() == 0
    stubborn.free.set()
