"""From produce to committed read model: 2,000 events a second offered for 30 s, each event's time in milliseconds.

The projection says `pg_notify` in its transaction, so a listener hears of an event exactly when its read model is
committed and visible. The producer is a process of its own. `make bench BENCH=latency`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import sqlalchemy as sa
import uvloop
from confluent_kafka import Producer
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.orders import ID_HEADER, PARTITIONS, SCHEMAS, OrderPlaced, encoded
from benchmarks.report import report
from benchmarks.worker import SUMS, TABLES
from tests.services import database, kafka, postgres, topics
from tidegate.consumers import App, Avro, Event, header
from tidegate.consumers.cli.running import tune_interpreter
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.layers import load
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.run import run_consumer
from tidegate.inbox.migrate import upgrade

GOALS = {"p50_ms": "below 10", "p99_ms": "below 50"}
WARM_UP_S = 5.0
"""Offered before the 30 s that count: the broker was just started, and a cold JVM takes seconds to answer fast."""

NUMBERS_MAX = 1_000
"""Numbers in one notification: its payload is bounded to 8,000 bytes."""


def produce(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Offer events at an even rate, each with its number; print when each was produced.

    They are made beforehand, and a linger of 1 ms lets a busy broker breathe: both cores carry producer, broker,
    database and worker here.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    at = datetime.now(UTC)
    made = [
        (f"o{n % 5_000}", encoded(n, f"latency-{n}", at), f"latency-{n}".encode()) for n in range(int(rate * seconds))
    ]
    sent_ns: list[int] = []
    started = time.perf_counter()
    while len(sent_ns) < len(made):
        due = min(len(made), int((time.perf_counter() - started) * rate) + 1)
        for key, value, event_id in made[len(sent_ns) : due]:
            sent_ns.append(time.time_ns())
            producer.produce(topic, key=key, value=value, headers=[(ID_HEADER, event_id)])
        producer.poll(0)
        time.sleep(0.001)
    producer.flush()
    print(json.dumps(sent_ns))


def make_app(topic: str) -> App:
    """The same projection as for throughput, and a notification of what it just wrote."""
    app = App("bench", owner="bench")
    orders = app.consumer("bench-latency", topics=[topic], codec=Avro(str(SCHEMAS)), event_id=header(ID_HEADER))

    @orders.projection("sums-by-customer")
    async def sums(events: Sequence[Event[OrderPlaced]], tx: AsyncConnection) -> None:
        by_customer: dict[str, list[int]] = {}
        for event in events:
            entry = by_customer.setdefault(event.value.customer, [0, 0])
            entry[0] += event.value.amount
            entry[1] += 1
        names = sorted(by_customer)
        totals, counts = [by_customer[n][0] for n in names], [by_customer[n][1] for n in names]
        await tx.execute(SUMS, {"names": names, "totals": totals, "counts": counts})
        numbers = [event.value.amount for event in events]
        for first in range(0, len(numbers), NUMBERS_MAX):
            payload = ",".join(map(str, numbers[first : first + NUMBERS_MAX]))
            await tx.execute(sa.text("SELECT pg_notify('bench', :numbers)"), {"numbers": payload})

    return app


async def measure(url: str, bootstrap: str, topic: str, rate: int, seconds: float) -> list[float]:
    """Milliseconds from produce to commit, of every event."""
    environment = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    settings = load(os.environ | environment, None, {}, ("database.url", "kafka.bootstrap_servers")).settings
    await upgrade(url)
    app, board, metrics, stop = make_app(topic), HealthBoard(), Metrics("bench-latency"), asyncio.Event()
    committed_ns: dict[int, int] = {}

    def heard(_conn: Any, _pid: int, _channel: str, payload: object) -> None:
        now = time.time_ns()
        for number in str(payload).split(","):
            committed_ns.setdefault(int(number), now)

    listener: Any = await asyncpg.connect(url)
    await listener.add_listener("bench", heard)
    running = asyncio.ensure_future(run_consumer(app, "bench-latency", settings, board, metrics, stop))
    while metrics.value("fence_takeovers", "taken") < PARTITIONS:  # noqa: ASYNC110 - metrics are read, they tell nobody
        await asyncio.sleep(0.05)
    command = [sys.executable, "-m", "benchmarks.latency", "--produce", bootstrap, topic, str(rate), str(seconds)]
    producer = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await producer.communicate()
    sent_ns: list[int] = json.loads(out)
    while len(committed_ns) < len(sent_ns):
        if running.done():
            running.result()
        await asyncio.sleep(0.05)
    stop.set()
    await running
    await listener.close()
    return [(committed_ns[number] - at) / 1e6 for number, at in enumerate(sent_ns)]


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rate", type=int, default=2_000)
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--produce", nargs=4, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.produce:
        bootstrap, topic, rate, seconds = given.produce
        produce(bootstrap, topic, int(rate), float(seconds))
        return
    tune_interpreter()
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True) as server,
        database.fresh(server) as url,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(PARTITIONS)
        database.execute(url, TABLES)
        measured = uvloop.run(measure(url, bootstrap, name, given.rate, WARM_UP_S + given.seconds))
    warming, latencies = measured[: int(given.rate * WARM_UP_S)], sorted(measured[int(given.rate * WARM_UP_S) :])
    figures = {
        "events": float(len(latencies)),
        "p50_ms": latencies[len(latencies) // 2],
        "p95_ms": latencies[int(len(latencies) * 0.95)],
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "max_ms": latencies[-1],
    }
    report(
        "latency", figures, GOALS, {"rate_per_s": given.rate, "seconds": given.seconds, "warm_up_max_ms": max(warming)}
    )


if __name__ == "__main__":
    main()
