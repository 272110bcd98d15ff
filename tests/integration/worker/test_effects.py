"""Calls to the outside by command handlers: made once, whatever happens around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.services.topics import Topic
from tests.support.desk import Do
from tests.support.provider import Behaviour, Provider, call, look_up, provider
from tests.support.running import Sent, Stage, reader
from tidegate.consumers import (
    App,
    Asked,
    BlockingContext,
    Context,
    Done,
    Event,
    NotDone,
    RetryPolicy,
    idempotent_key,
    probe,
    review,
)
from tidegate.inbox.effect_rules import EffectRule, ProbeAnswer

QUICK = RetryPolicy(attempts_max=3, base_s=0.001, cap_s=0.002)
CALL_S = 1.0


@pytest.fixture
async def service() -> AsyncIterator[Provider]:
    async with provider() as running:
        yield running


@dataclass(frozen=True)
class Client:
    """What an app has for its service."""

    port: int

    async def charge(self, operation: str, key: str, timeout_s: float) -> str:
        return str((await call(self.port, operation, key=key, timeout_s=timeout_s))["id"])


async def ask(asked: Asked, client: Client) -> ProbeAnswer:
    found = await look_up(client.port, asked.operation_id)
    return NotDone() if found is None else Done(found, found)


async def charge(command: Do, ctx: Context, client: Client) -> None:
    async with ctx.effect("charge", request=command.says) as effect:
        if not effect.is_done:
            answer = await client.charge(command.id, effect.key, effect.timeout_s)
            effect.complete(answer, answer)
    await ctx.publish("told", {"id": effect.result})


Handler = Callable[[Do, Context, Client], Awaitable[None]]


def charging(topic: str, service: Provider, rule: EffectRule, handler: Any = charge, **options: Any) -> App:
    """An app whose command calls the service."""
    app = reader(topic)
    app.effect("charge", rule=rule, deadline_s=CALL_S, margin_s=0.2, **options)
    (consumer,) = app.consumers.values()
    app.handler(Do)(handler)

    @app.lifespan
    async def clients() -> AsyncIterator[Client]:
        yield Client(service.port)

    @consumer.command("bill", on="Thing", retry=QUICK, deadline_s=3.0)
    def bill(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    return app


RULES = {"key": idempotent_key(valid_s=3600), "probe": probe(ask), "review": review()}


@pytest.mark.parametrize("rule", RULES)
async def test_a_call_is_made_once_for_each_event_under_every_rule(
    stage: Stage, topic: Topic, service: Provider, rule: str
) -> None:
    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES[rule]))
    ids = [f"o{n}" for n in range(20)]
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in ids), *(Sent(id_, key=id_.encode()) for id_ in ids))
    await worker.until_counted("events", "bill", "completed", n=20)
    await worker.until_counted("events", "bill", "skipped_duplicate", n=20)
    assert service.done == dict.fromkeys(ids, 1)
    assert await stage.rows("SELECT DISTINCT state, owner, provider FROM tidegate.effect") == [
        ("completed", f"{worker.consumer}/bill", "charge")
    ]


async def test_a_def_handler_calls_with_a_plain_with(stage: Stage, topic: Topic, service: Provider) -> None:
    name = topic(partitions=1)

    def blocking(command: Do, ctx: BlockingContext, client: Client) -> None:
        with ctx.effect("charge") as effect:
            if not effect.is_done:
                answer = asyncio.run(client.charge(command.id, effect.key, effect.timeout_s))
                effect.complete({"id": answer}, answer)

    worker = await stage.start(charging(name, service, RULES["review"], blocking))
    await stage.send(name, *(Sent(f"o{n}", key=b"%d" % n) for n in range(5)))
    await worker.until_counted("events", "bill", "completed", n=5)
    assert len(service.done) == 5
    assert not service.doubled


async def test_what_the_service_did_without_telling_is_found_by_asking(
    stage: Stage, topic: Topic, service: Provider
) -> None:
    service.honours_keys = False
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES["probe"]))
    await stage.send(name, Sent("a"))
    await worker.until_counted("events", "bill", "completed", n=1)
    assert service.done == {"a": 1}
    assert service.probes == {"a": 1}
    assert await stage.rows("SELECT state, resolution, result FROM tidegate.effect") == [
        ("resolved", "done", '"x-a-1"')
    ]


async def test_what_nobody_can_know_is_a_row_for_review(stage: Stage, topic: Topic, service: Provider) -> None:
    service.script = lambda operation, n: Behaviour(resets=True)
    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES["review"]))
    await stage.send(name, Sent("a"))
    await worker.until_counted("events", "bill", "unknown", n=1)
    assert service.done == {"a": 1}
    assert await stage.failures("bill") == [("a", "unknown", "unknown_effect")]
    tied = "SELECT count(*) FROM tidegate.failure f JOIN tidegate.effect e ON e.id = f.effect_id"
    assert await stage.value(tied) == 1
