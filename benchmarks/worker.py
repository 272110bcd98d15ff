"""tidegate's side of the benchmarks: a worker in a process of its own, exactly as `tidegate run` runs it.

`python -m benchmarks.worker URL BOOTSTRAP TOPIC COUNT` prints its rate once COUNT events are in the read model.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence

import sqlalchemy as sa
import uvloop
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.orders import ID_HEADER, SCHEMAS, OrderPlaced
from tidegate.consumers import App, Avro, Event, header
from tidegate.consumers.cli.running import tune_interpreter
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.layers import load
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.run import run_consumer
from tidegate.inbox.migrate import upgrade

TABLES = "CREATE TABLE IF NOT EXISTS public.sums (customer text PRIMARY KEY, total bigint, n bigint)"

SUMS = sa.text("""
    INSERT INTO public.sums
    SELECT * FROM unnest(CAST(:names AS text[]), CAST(:totals AS bigint[]), CAST(:counts AS bigint[]))
    ON CONFLICT (customer) DO UPDATE SET total = sums.total + excluded.total, n = sums.n + excluded.n
""")

HANDLER = "sums-by-customer"


def make_app(topic: str, handed_over: list[int]) -> App:
    """One projection: sums by customer. It appends the size of each batch to `handed_over`."""
    app = App("bench", owner="bench")
    orders = app.consumer(
        f"bench-{uuid.uuid4().hex[:8]}", topics=[topic], codec=Avro(str(SCHEMAS)), event_id=header(ID_HEADER)
    )

    @orders.projection(HANDLER)
    async def sums(events: Sequence[Event[OrderPlaced]], tx: AsyncConnection) -> None:
        handed_over.append(len(events))
        by_customer: dict[str, list[int]] = {}
        for event in events:
            order = event.value
            entry = by_customer.get(order.customer)
            if entry is None:
                by_customer[order.customer] = [order.amount, 1]
            else:
                entry[0] += order.amount
                entry[1] += 1
        names = sorted(by_customer)
        totals, counts = [by_customer[n][0] for n in names], [by_customer[n][1] for n in names]
        await tx.execute(SUMS, {"names": names, "totals": totals, "counts": counts})

    return app


async def measure(url: str, bootstrap: str, topic: str, count: int) -> float:
    """Events a second from the first batch in the read model to the last."""
    environment = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    settings = load(os.environ | environment, None, {}, ("database.url", "kafka.bootstrap_servers")).settings
    await upgrade(url)
    handed_over: list[int] = []
    app = make_app(topic, handed_over)
    (name,) = app.consumers
    metrics, stop = Metrics(name), asyncio.Event()
    running = asyncio.ensure_future(run_consumer(app, name, settings, HealthBoard(), metrics, stop))
    while len(handed_over) < 2:  # the first batch is committed
        await _still(running, 0.005)
    first, started = handed_over[0], time.perf_counter()
    while sum(handed_over) < count:
        await _still(running, 0.02)
    while metrics.value("events", HANDLER, "completed") < count:  # the last one too
        await _still(running, 0.002)
    seconds = time.perf_counter() - started
    stop.set()
    await running
    return (count - first) / seconds


async def _still(running: asyncio.Future[int], seconds: float) -> None:
    if running.done():
        running.result()
    await asyncio.sleep(seconds)


def main() -> None:
    """Measure once and print the figure as JSON."""
    url, bootstrap, topic, count = sys.argv[1:5]
    tune_interpreter()
    print(json.dumps({"events_per_s": uvloop.run(measure(url, bootstrap, topic, int(count)))}))


if __name__ == "__main__":
    main()
