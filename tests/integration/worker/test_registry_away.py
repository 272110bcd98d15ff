"""The schema registry is away: its partitions wait, nothing is dead, what is known flows on, then all goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.services.topics import Topic
from tests.support import avro, scripted_registry
from tests.support.cli import tidegate
from tests.support.desk import Do
from tests.support.running import RunningWorker, Sent, Stage, reader
from tests.support.scripted_registry import NOT_FOUND, RESET, ScriptedRegistry, answer, schema_answer
from tidegate.consumers import App, Avro, Event
from tidegate.consumers.codecs.codec import Codec, CodecSettings

ORDER = avro.record_schema("Order", {"n": "int"})
DOWN = answer({"error_code": 50001, "message": "store"}, 500)


@dataclass(frozen=True)
class Impatient:
    """Avro, with a grace period that a test can wait for."""

    def open(self, settings: CodecSettings) -> Codec:
        quick = replace(settings, missing_tries=2, missing_grace_s=0.2, missing_ttl_s=0.2, ask_again_s=0.05)
        return Avro().open(quick)


@pytest.fixture
def registry() -> Iterator[ScriptedRegistry]:
    with scripted_registry.running() as running:
        yield running


def order(id_: str, schema_id: int, partition: int = 0) -> Sent:
    """An order under a schema id."""
    return Sent(id_, avro.framed(schema_id, avro.body(ORDER, {"n": 1})).value, key=id_.encode(), partition=partition)


def counting(topic: str) -> tuple[App, Counter[str]]:
    """An app whose command counts what it handles."""
    app = reader(topic, codec=Impatient())
    (consumer,) = app.consumers.values()
    handled: Counter[str] = Counter()

    @app.handler(Do)
    async def do(command: Do) -> None:
        handled[command.id] += 1

    @consumer.command("do", on="Order")
    def to_do(event: Event[Any]) -> Do:
        return Do(event.id_text, {})

    return app, handled


async def started(stage: Stage, app: App, registry: ScriptedRegistry) -> RunningWorker:
    worker = await stage.start(app, variables={"TIDEGATE_REGISTRY_URL": registry.url})
    await worker.until_ready()
    return worker


async def test_an_outage_pauses_its_partitions_and_known_ids_flow_on(
    stage: Stage, topic: Topic, registry: ScriptedRegistry
) -> None:
    """Errors, resets and 503s for an id that is new; the other partition goes on; then all of it is handled in order.

    Case: B29
    Parts: real (Kafka, PostgreSQL, HTTP on loopback), fake (the registry's answers)
    Red when: registry.py `_is_away` makes a RecordError of it instead of a DependencyError
    """
    registry.standing["/schemas/ids/7"] = schema_answer(ORDER)
    name = topic(partitions=2)
    app, handled = counting(name)
    worker = await started(stage, app, registry)
    await stage.send(name, order("known", 7))
    await worker.until_counted("events", "do", "completed", n=1)
    registry.standing["/schemas/ids/8"] = DOWN
    registry.script = [RESET, DOWN, RESET]
    await stage.send(name, *(order(f"new{n}", 8) for n in range(3)), order("behind", 7))
    await worker.until(lambda: "schema-registry" in worker.board.dependencies_away)
    assert "schema-registry" in str(worker.board.ready().body["reasons"])
    await stage.send(name, *(order(f"flowing{n}", 7, partition=1) for n in range(5)))
    await worker.until_counted("events", "do", "completed", n=6)
    asked = len(registry.asked)
    await worker.until(lambda: len(registry.asked) >= asked + 1)
    assert await stage.checkpoints("do") == {0: 1, 1: 5}
    registry.standing["/schemas/ids/8"] = schema_answer(ORDER)
    await worker.until_counted("events", "do", "completed", n=10)
    await worker.until(lambda: worker.board.ready().ok)
    assert set(handled.values()) == {1}
    assert await stage.failures() == []
    assert worker.metrics.value("retries", "do") == 0


async def test_an_id_that_nobody_knows_is_dead_after_its_grace_and_its_replay_lands_once(
    stage: Stage, topic: Topic, registry: ScriptedRegistry
) -> None:
    """404 for a while is a registry that lags; 404 for long is a letter for each record; then the schema is registered.

    Case: B29
    Parts: real (Kafka, PostgreSQL, HTTP on loopback, the command line), fake (the registry's answers)
    Red when: registry.py `_not_found` sets `is_unknown = True` at once
    """
    registry.standing["/schemas/ids/7"] = schema_answer(ORDER)
    registry.standing["/schemas/ids/9"] = NOT_FOUND
    registry.script = [NOT_FOUND, schema_answer(ORDER)]
    name = topic(partitions=1)
    app, handled = counting(name)
    (consumer,) = app.consumers
    topic(partitions=1, name=f"{name}.{consumer}.dlq")
    worker = await started(stage, app, registry)
    await stage.send(name, order("lagging", 8))
    await worker.until_counted("events", "do", "completed", n=1)
    await stage.send(name, order("lost", 9), order("lost too", 9), order("fine", 7))
    await worker.until_counted("dead", "", "unknown_schema", n=2)
    await worker.until_counted("events", "do", "completed", n=2)
    assert handled == {"lagging": 1, "fine": 1}
    await worker.until_counted("outbox_published", "delivered", n=2)
    registry.standing["/schemas/ids/9"] = schema_answer(ORDER)
    replayed = await asyncio.to_thread(
        tidegate,
        "dlq",
        "replay",
        "--all",
        "--reason",
        "registered",
        "--yes",
        variables={"TIDEGATE_DATABASE_URL": stage.url},
    )
    assert replayed.code == 0, replayed.err
    await worker.until_counted("events", "do", "completed", n=4)
    assert handled == {"lagging": 1, "fine": 1, "lost": 1, "lost too": 1}
    assert await stage.failures() == []
    await stage.send(name, order("lost", 9))
    await worker.until_counted("dedup_hits", "do", n=1)
    assert handled["lost"] == 1
