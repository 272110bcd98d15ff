"""tidegate's side of the benchmarks of commands: a worker in a process of its own, as `tidegate run` runs it.

`python -m benchmarks.command_worker KIND URL BOOTSTRAP TOPIC COUNT` prints its figures once all COUNT events ended:

| kind | its handler |
|---|---|
| `plain` | does nothing: what is measured is what every command costs |
| `poison` | the same, but 1 % of the events fail for good, and 1 % in their first attempt |
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import uvloop

from benchmarks.orders import ID_HEADER, SCHEMAS, OrderPlaced
from tidegate.consumers import App, Avro, Context, Event, header
from tidegate.consumers.cli.running import tune_interpreter
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.layers import load
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.run import run_consumer
from tidegate.inbox.migrate import upgrade

HANDLER: Final = "charge"
CONCURRENCY: Final = 100
ENDS: Final = ("completed", "failed")
LOOK_S: Final = 0.02


@dataclass(slots=True)
class Charge:
    """Take an order's money."""

    order_id: str
    amount: int


def is_refused(amount: int) -> bool:
    """One in a hundred is never taken."""
    return amount % 100 == 1


def is_shaky(amount: int) -> bool:
    """Another one in a hundred is taken at its second attempt."""
    return amount % 100 == 51


async def nothing(command: Charge, ctx: Context) -> None:
    """No work at all."""


async def sometimes_fails(command: Charge, ctx: Context) -> None:
    """No work, and some trouble."""
    if is_refused(command.amount):
        raise ValueError("refused")
    if is_shaky(command.amount) and ctx.attempt == 1:
        raise ConnectionResetError("the line went dead")


def make_app(kind: str, topic: str, consumer: str, first: list[float]) -> App:
    """One command. It notes in `first` when its first event came."""
    app = App("bench", owner="bench")
    orders = app.consumer(consumer, topics=[topic], codec=Avro(str(SCHEMAS)), event_id=header(ID_HEADER))
    handlers: dict[str, Callable[[], Callable[..., object]]] = {
        "plain": lambda: nothing,
        "poison": lambda: sometimes_fails,
    }

    @orders.command(HANDLER, on=OrderPlaced, concurrency=CONCURRENCY)
    def to_charge(event: Event[OrderPlaced]) -> Charge:
        if not first:
            first.append(time.time())
        return Charge(event.value.order_id, event.value.amount)

    app.handler(Charge)(handlers[kind]())
    return app


async def measure(kind: str, url: str, bootstrap: str, topic: str, count: int, consumer: str) -> dict[str, float]:
    """From the first event that a handler was asked about to the last one that is durable."""
    environment = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    settings = load(os.environ | environment, None, {}, ("database.url", "kafka.bootstrap_servers")).settings
    await upgrade(url)
    first: list[float] = []
    app, metrics, stop = make_app(kind, topic, consumer, first), Metrics(consumer), asyncio.Event()
    running = asyncio.ensure_future(run_consumer(app, consumer, settings, HealthBoard(), metrics, stop))
    while sum(metrics.value("events", HANDLER, end) for end in ENDS) < count:
        if running.done():
            running.result()
        await asyncio.sleep(LOOK_S)
    seconds = time.time() - first[0]
    stop.set()
    await running
    return {"seconds": seconds, "events_per_s": count / seconds, "first_at": first[0]}


def main() -> None:
    """Measure once and print the figures as JSON."""
    kind, url, bootstrap, topic, count = sys.argv[1:6]
    consumer = sys.argv[6] if len(sys.argv) > 6 else f"bench-{uuid.uuid4().hex[:8]}"
    tune_interpreter()
    print(json.dumps(uvloop.run(measure(kind, url, bootstrap, topic, int(count), consumer))))


if __name__ == "__main__":
    main()
