"""Resident memory of a worker that works off a backlog: flat, and within its budget.

`make bench BENCH=memory`. The worker is a process of its own, run as `tidegate run` does; its resident memory is
sampled while it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

import fastavro
import psutil
import sqlalchemy as sa
import uvloop
from confluent_kafka import Producer
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.orders import FRAME, ID_HEADER, PARTITIONS, SCHEMA, SCHEMAS, OrderPlaced
from benchmarks.report import report
from tests.services import database, kafka, postgres, topics
from tidegate.consumers import App, Avro, Event, header
from tidegate.consumers.cli.running import tune_interpreter
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.layers import load
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.run import run_consumer
from tidegate.inbox.migrate import upgrade

MIB = 1 << 20
TABLE = "CREATE TABLE public.counted (one int PRIMARY KEY, n bigint)"
COUNT = sa.text("INSERT INTO public.counted VALUES (1, :n) ON CONFLICT (one) DO UPDATE SET n = counted.n + excluded.n")
BUDGET_MIB = 2 * EnginePolicy().window_bytes_max // MIB
"""What records may take up: the window, and as much again for what is prefetched and what decoding adds."""

GOALS = {"growth_mib": "0 (flat)", "peak_over_start_mib": f"within the budget of {BUDGET_MIB}"}


def seed(bootstrap: str, topic: str, count: int) -> None:
    """A backlog of events of 1 KB that do not compress, so that a fetch is as large as it says."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    padding, at = random.Random(1).randbytes(450).hex(), datetime.now(UTC)
    for number in range(count):
        out = io.BytesIO()
        out.write(FRAME)
        order = {"event_id": str(number), "order_id": f"o{number}", "customer": padding, "amount": number, "at": at}
        fastavro.schemaless_writer(out, SCHEMA, order)
        headers: list[tuple[str, str | bytes | None]] = [(ID_HEADER, str(number).encode())]
        while True:
            try:
                producer.produce(topic, key=str(number), value=out.getvalue(), headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()


async def work(url: str, bootstrap: str, topic: str, count: int) -> None:
    """Read the backlog to its end."""
    environment = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    settings = load(os.environ | environment, None, {}, ("database.url", "kafka.bootstrap_servers")).settings
    app = App("bench", owner="bench")
    orders = app.consumer("bench-memory", topics=[topic], codec=Avro(str(SCHEMAS)), event_id=header(ID_HEADER))

    @orders.projection("count")
    async def counted(events: Sequence[Event[OrderPlaced]], tx: AsyncConnection) -> None:
        await tx.execute(COUNT, {"n": len(events)})

    metrics, stop = Metrics("bench-memory"), asyncio.Event()
    running = asyncio.ensure_future(run_consumer(app, "bench-memory", settings, HealthBoard(), metrics, stop))
    while metrics.value("events", "count", "completed") < count:
        if running.done():
            running.result()
        await asyncio.sleep(0.05)
    stop.set()
    await running


def sample(process: subprocess.Popen[bytes]) -> list[tuple[float, float]]:
    """(seconds, resident MiB) of the worker until it ends."""
    watched, started, samples = psutil.Process(process.pid), time.monotonic(), list[tuple[float, float]]()
    while process.poll() is None:
        try:
            samples.append((time.monotonic() - started, watched.memory_info().rss / MIB))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.1)
    if process.returncode:
        raise RuntimeError(f"the worker ended with {process.returncode}")
    return samples


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.work:
        tune_interpreter()
        url, bootstrap, topic, count = given.work
        uvloop.run(work(url, bootstrap, topic, int(count)))
        return
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True) as server,
        database.fresh(server) as url,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(PARTITIONS)
        seed(bootstrap, name, given.events)
        database.execute(url, TABLE)
        asyncio.run(upgrade(url))
        command = [sys.executable, "-m", "benchmarks.memory", "--work", url, bootstrap, name, str(given.events)]
        samples = sample(subprocess.Popen(command))
    _report(samples, given.events)


def _report(samples: list[tuple[float, float]], events: int) -> None:
    """Flat: what the last third has more than the middle one."""
    seconds = samples[-1][0]
    third = len(samples) // 3
    start = next(rss for at, rss in samples if at >= min(1.0, seconds / 10))
    middle, last = [rss for _, rss in samples[third : 2 * third]], [rss for _, rss in samples[2 * third :]]
    figures = {
        "start_mib": start,
        "peak_mib": max(rss for _, rss in samples),
        "peak_over_start_mib": max(rss for _, rss in samples) - start,
        "growth_mib": max(last) - max(middle),
        "seconds": seconds,
        "events_per_s": events / seconds,
    }
    steps = [after - before for (_, before), (_, after) in pairwise(samples)]
    report("memory", figures, GOALS, {"events": events, "largest_step_mib": max(steps), "samples": samples[::10]})


if __name__ == "__main__":
    main()
