"""What handlings leave in memory once they are over: nothing that only the garbage collector would find."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from sqlalchemy import text

from tests.integration.worker.test_effects import RULES, Client, charge, charging
from tests.services.topics import Topic
from tests.support.desk import Do
from tests.support.provider import Provider, provider
from tests.support.running import Sent, Stage, table_of
from tidegate.consumers import Context

EVENTS = 60
A_FEW = EVENTS // 3
"""Of one kind: what happens once for each event is found more often, what happens once for each group is not."""


@pytest.fixture
async def service() -> AsyncIterator[Provider]:
    async with provider() as running:
        yield running


async def nothing(command: Do, ctx: Context, client: Client) -> None:
    """Success, and nothing else."""


async def publish(command: Do, ctx: Context, client: Client) -> None:
    await ctx.publish("told", {"id": command.id})


async def write(command: Do, ctx: Context, client: Client) -> None:
    await ctx.tx.execute(text("INSERT INTO public.effect VALUES (:id, 0)"), {"id": command.id})


HANDLERS: dict[str, Callable[[Do, Context, Client], Awaitable[None]]] = {
    "nothing": nothing, "call and publish": charge, "publish": publish, "write": write,
}  # fmt: skip


@pytest.mark.parametrize("rule", ["key", "review"])
@pytest.mark.parametrize("kind", HANDLERS)
async def test_an_event_that_is_over_leaves_no_ring_of_references(
    stage: Stage, topic: Topic, service: Provider, kind: str, rule: str
) -> None:
    """A ring for each event would stop the loop for a tenth of a second whenever enough of them have come together."""
    await table_of(stage)
    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES[rule], HANDLERS[kind]))
    await stage.send(name, Sent("first"))
    await worker.until_counted("events", "bill", "completed", n=1)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await stage.send(name, *(Sent(f"o{n}", key=b"%d" % n) for n in range(EVENTS)))
        await worker.until_counted("events", "bill", "completed", n=EVENTS + 1)
        gc.collect()
        ours = Counter(type(left).__qualname__ for left in gc.garbage if of_tidegate(left))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert {name: count for name, count in ours.items() if count > A_FEW} == {}


def of_tidegate(thing: object) -> bool:
    return type(thing).__module__.startswith("tidegate")
