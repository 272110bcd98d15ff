"""Calls to the outside by command handlers: made once, whatever happens around them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.desk import Do, letters
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
    await ctx.publish(f"{ctx.event.topic}.told", {"id": effect.result})


Handler = Callable[[Do, Context, Client], Awaitable[None]]


def charging(
    topic: str, service: Provider, rule: EffectRule, handler: Any = charge, *,
    deadline_s: float = 3.0, call_s: float = CALL_S, **options: Any,
) -> App:  # fmt: skip
    """An app whose command calls the service."""
    app = reader(topic)
    app.effect("charge", rule=rule, deadline_s=call_s, margin_s=0.2)
    (consumer,) = app.consumers.values()
    app.handler(Do)(handler)

    @app.lifespan
    async def clients() -> AsyncIterator[Client]:
        yield Client(service.port)

    @consumer.command("bill", on="Thing", retry=QUICK, deadline_s=deadline_s, **options)
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
    assert service.probes["a"] >= 1, "by the handler, by the reconciler, or by both"
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


async def test_a_call_is_not_cut_off_at_the_handlers_deadline(stage: Stage, topic: Topic, service: Provider) -> None:
    """The call goes on to its own deadline and is durable; the next attempt finds it done."""
    service.script = lambda operation, n: Behaviour(delay_s=0.8)
    name = topic(partitions=1)
    app = charging(name, service, RULES["review"], deadline_s=0.3)
    worker = await stage.start(app)
    await stage.send(name, Sent("a"))
    await worker.until_counted("events", "bill", "completed", n=1)
    assert service.requests == {"a": 1}
    assert await stage.rows("SELECT state, attempts FROM tidegate.effect") == [("completed", 1)]


async def test_an_effect_comes_before_the_transaction_and_both_count_once(
    stage: Stage, topic: Topic, service: Provider
) -> None:
    await stage.execute("CREATE TABLE public.paid (id text PRIMARY KEY, external text)")
    name = topic(partitions=1)

    async def pay(command: Do, ctx: Context, client: Client) -> None:
        async with ctx.effect("charge") as effect:
            if not effect.is_done:
                effect.complete(await client.charge(command.id, effect.key, effect.timeout_s))
        await ctx.tx.execute(text("INSERT INTO public.paid VALUES (:id, :x)"), {"id": command.id, "x": effect.result})
        if ctx.attempt == 1:
            raise ConnectionResetError("behind the call")

    worker = await stage.start(charging(name, service, RULES["review"], pay))
    await stage.send(name, Sent("a"))
    await worker.until_counted("events", "bill", "completed", n=1)
    assert service.requests == {"a": 1}
    assert await stage.rows("SELECT * FROM public.paid") == [("a", "x-a-1")]


async def in_tx(command: Do, ctx: Context, client: Client) -> None:
    await ctx.tx.execute(text("SELECT 1"))
    async with ctx.effect("charge"):
        await client.charge(command.id, "k", 1.0)


async def tx_inside(command: Do, ctx: Context, client: Client) -> None:
    async with ctx.effect("charge") as effect:
        effect.complete()
        await ctx.tx.execute(text("SELECT 1"))


async def never_entered(command: Do, ctx: Context, client: Client) -> None:
    ctx.effect("charge")


async def twice(command: Do, ctx: Context, client: Client) -> None:
    for _ in range(2):
        async with ctx.effect("charge") as effect:
            if not effect.is_done:
                effect.complete()


async def unnamed(command: Do, ctx: Context, client: Client) -> None:
    async with ctx.effect("chrage"):
        await client.charge(command.id, "k", 1.0)


async def unstable(command: Do, ctx: Context, client: Client) -> None:
    async with ctx.effect("charge", request={"when": object()}):
        await client.charge(command.id, "k", 1.0)


MISUSES: dict[str, tuple[Any, str]] = {
    "a call in a transaction": (in_tx, "inside an open ctx.tx"),
    "a transaction in a call": (tx_inside, "ctx.tx is opened inside"),
    "never entered": (never_entered, "never entered"),
    "made twice": (twice, "made twice in one handling"),
    "declared nowhere": (unnamed, "no effect 'chrage' is declared"),
    "a request without a stable form": (unstable, "has no stable form"),
}


@pytest.mark.parametrize("misuse", MISUSES)
async def test_a_misuse_is_a_dead_letter_that_names_the_fix(
    stage: Stage, topic: Topic, service: Provider, misuse: str
) -> None:
    handler, says = MISUSES[misuse]
    name = topic(partitions=1)
    app = charging(name, service, RULES["review"], handler)
    letters(app, topic)
    worker = await stage.start(app)
    await stage.send(name, Sent("a"), Sent("b", key=b"other"))
    await worker.until_counted("dead", "bill", "rejected", n=2)
    assert says in await stage.value("SELECT message FROM tidegate.failure LIMIT 1")
    assert service.requests == {}


async def test_a_call_that_is_left_without_a_word_waits_for_a_person(
    stage: Stage, topic: Topic, service: Provider
) -> None:
    async def silent(command: Do, ctx: Context, client: Client) -> None:
        async with ctx.effect("charge") as effect:
            await client.charge(command.id, effect.key, effect.timeout_s)

    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES["key"], silent))
    await stage.send(name, Sent("a"))
    await worker.until_counted("events", "bill", "unknown", n=1)
    assert "complete() or refused()" in await stage.value("SELECT message FROM tidegate.failure")
    assert await stage.value("SELECT state FROM tidegate.effect") == "unknown"
    assert service.requests == {"a": 1}


@pytest.mark.parametrize("rule", ["key", "review"])
async def test_a_handler_that_leaves_inside_a_call_leaves_a_doubt(
    stage: Stage, topic: Topic, service: Provider, rule: str
) -> None:
    """`sys.exit` in some library: the event waits for a person, and the process goes on."""

    async def leaving(command: Do, ctx: Context, client: Client) -> None:
        async with ctx.effect("charge") as effect:
            await client.charge(command.id, effect.key, effect.timeout_s)
            sys.exit(3)

    name = topic(partitions=1)
    app = charging(name, service, RULES[rule], leaving)
    letters(app, topic)
    worker = await stage.start(app)
    await stage.send(name, Sent("a"))
    await worker.until_counted("events", "bill", "unknown", n=1)
    assert await stage.value("SELECT state FROM tidegate.effect") == "unknown"
    assert service.done == {"a": 1}
    assert await worker.stop() == 0


async def test_a_probe_that_raises_could_not_tell(stage: Stage, topic: Topic, service: Provider) -> None:
    """It is asked again later, and nothing is called meanwhile."""

    async def broken(asked: Asked, client: Client) -> ProbeAnswer:
        raise SystemExit(1)

    service.script = lambda operation, n: Behaviour(resets=True)
    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, probe(broken)))
    await stage.send(name, Sent("a"))

    async def asked_once() -> bool:
        return bool(await stage.value("SELECT count(*) FROM tidegate.effect WHERE probes >= 1"))

    await worker.until(asked_once)
    assert "HandlerLeft" in await stage.value("SELECT error FROM tidegate.effect")
    assert service.requests == {"a": 1}
    assert await stage.failures("bill") == [("a", "queued", "pending_effect")]


async def test_a_projection_calls_nobody(stage: Stage, topic: Topic, service: Provider) -> None:
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    app.effect("charge", rule=review(), deadline_s=1)
    (consumer,) = app.consumers.values()

    @consumer.projection("seen")
    async def seen(events: Sequence[Event[Any]], tx: AsyncConnection, ctx: Context) -> None:
        async with ctx.effect("charge"):
            raise AssertionError("nobody gets here")

    worker = await stage.start(app)
    await stage.send(name, Sent("a"))
    await worker.until_counted("dead", "seen", "rejected", n=1)
    assert "Declare a command" in await stage.value("SELECT message FROM tidegate.failure")


async def test_a_stop_lets_calls_end(stage: Stage, topic: Topic, service: Provider) -> None:
    service.script = lambda operation, n: Behaviour(delay_s=0.5)
    name = topic(partitions=1)
    worker = await stage.start(charging(name, service, RULES["review"]))
    await stage.send(name, Sent("a"))
    await service.seen.wait()
    assert await worker.stop() == 0
    assert await stage.rows("SELECT state FROM tidegate.effect") == [("completed",)]
    assert await stage.value("SELECT count(*) FROM tidegate.claim_1") == 1


async def test_two_kinds_of_event_with_one_id_are_two_operations(stage: Stage, topic: Topic, service: Provider) -> None:
    """Without an operation id of its own, a call is its event's: an id counts within its topic, type and tenant."""
    service.honours_keys = False
    name = topic(partitions=1)
    app = charging(name, service, RULES["review"])
    (consumer,) = app.consumers.values()

    @consumer.command("bill-again", on="Other", retry=QUICK)
    def again(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    worker = await stage.start(app)
    await stage.send(name, Sent("a"), Sent("a", type="Other"))
    await worker.until_counted("events", "bill", "completed", n=1)
    await worker.until_counted("events", "bill-again", "completed", n=1)
    assert service.done == {"a": 2}
