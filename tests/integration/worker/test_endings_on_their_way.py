"""A call that succeeded, and whose ending is on its way to the database: what is held back until it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text

from tests.integration.worker.test_effects import RULES, Client, charging
from tests.services.topics import Topic
from tests.support.desk import Do
from tests.support.provider import Provider, provider
from tests.support.running import Sent, Stage, table_of
from tidegate.consumers import Context


@pytest.fixture
async def service() -> AsyncIterator[Provider]:
    async with provider() as running:
        yield running


class Holder:
    """Another session, which locks an effect's row: its ending waits as long as a test wants it to."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._conn: asyncpg.Connection[Any] | None = None

    async def hold(self, operation: str) -> None:
        self._conn = await asyncpg.connect(self._stage.url)
        await self._conn.execute("BEGIN")
        await self._conn.execute("SELECT 1 FROM tidegate.effect WHERE operation_id = $1 FOR UPDATE", operation)

    async def let_go(self) -> None:
        if self._conn is not None:
            await self._conn.close()

    async def keeps_somebody_waiting(self) -> bool:
        """The ending has come as far as the lock."""
        return bool(await self._stage.value("SELECT count(*) FROM pg_locks WHERE NOT granted"))


@pytest.fixture
async def holder(stage: Stage) -> AsyncIterator[Holder]:
    holder = Holder(stage)
    yield holder
    await holder.let_go()


async def pay(command: Do, ctx: Context, client: Client, holder: Holder, *, hold: bool) -> bool:
    """Call, and have the ending wait for the holder; whether it was done before."""
    async with ctx.effect("charge", request=command.says) as effect:
        known = effect.is_done
        if not known:
            answer = await client.charge(command.id, effect.key, effect.timeout_s)
            effect.complete(answer, answer)
            if hold:
                await holder.hold(command.id)
    return known


async def claims(stage: Stage) -> int:
    return int(await stage.value("SELECT count(*) FROM tidegate.claim_1"))


async def test_the_handler_is_not_kept_and_its_event_is_not_over(
    stage: Stage, topic: Topic, service: Provider, holder: Holder
) -> None:
    """The place is free at once, so that another key's command begins; the key is not, and nothing is claimed."""
    returned: list[str] = []

    async def handler(command: Do, ctx: Context, client: Client) -> None:
        await pay(command, ctx, client, holder, hold=command.id == "a")
        returned.append(command.id)

    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES["key"], handler, concurrency=1))
    await stage.send(name, Sent("a", key=b"k1"), Sent("b", key=b"k1"), Sent("c", key=b"k2"))
    await worker.until(holder.keeps_somebody_waiting)
    await worker.until(lambda: returned == ["a", "c"])
    assert await claims(stage) == 0
    assert await stage.checkpoints("bill") in ({}, {0: 0})
    await holder.let_go()
    await worker.until_counted("events", "bill", "completed", n=3)
    assert returned == ["a", "c", "b"]
    assert service.done == {"a": 1, "b": 1, "c": 1}
    assert await stage.rows("SELECT DISTINCT state FROM tidegate.effect") == [("completed",)]


async def test_a_transaction_behind_a_call_is_not_committed_before_its_ending(
    stage: Stage, topic: Topic, service: Provider, holder: Holder
) -> None:
    await table_of(stage)
    returned: list[str] = []

    async def handler(command: Do, ctx: Context, client: Client) -> None:
        await pay(command, ctx, client, holder, hold=True)
        await ctx.tx.execute(text("INSERT INTO public.effect VALUES (:id, 0)"), {"id": command.id})
        returned.append(command.id)

    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES["key"], handler))
    await stage.send(name, Sent("a"))
    await worker.until(lambda: returned == ["a"])
    await worker.until(holder.keeps_somebody_waiting)
    assert await claims(stage) == 0
    assert await stage.rows("SELECT id FROM public.effect") == []
    await holder.let_go()
    await worker.until_counted("events", "bill", "completed", n=1)
    assert await stage.rows("SELECT id FROM public.effect") == [("a",)]
    assert await stage.rows("SELECT state FROM tidegate.effect") == [("completed",)]


async def test_the_next_attempt_begins_behind_the_ending_and_finds_it(
    stage: Stage, topic: Topic, service: Provider, holder: Holder
) -> None:
    """Begun before, it would find a call under way, and wait for its deadline."""
    known: list[bool] = []

    async def handler(command: Do, ctx: Context, client: Client) -> None:
        known.append(await pay(command, ctx, client, holder, hold=True))
        if len(known) == 1:
            raise ConnectionResetError("behind the call")

    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES["key"], handler))
    await stage.send(name, Sent("a"))
    await worker.until(holder.keeps_somebody_waiting)
    assert known == [False]
    await holder.let_go()
    await worker.until_counted("events", "bill", "completed", n=1)
    assert known == [False, True]
    assert service.done == {"a": 1}
    assert worker.metrics.value("events", "bill", "failed") == 0
