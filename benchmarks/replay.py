"""A hundred thousand dead letters: how soon they are listed by group, and how fast a replay of all of them is worked.

A worker first reads three times as many events the fast way, through the same projection, which does nothing. Then the
letters are written straight into the table, as its dead events, and a replay of all of them is run beside it, as
`tidegate dlq replay --all` does. `make bench BENCH=replay ARGS="--letters 100000"`
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from benchmarks.orders import ID_HEADER, PARTITIONS, encoded, seed
from benchmarks.replay_worker import HANDLER
from benchmarks.report import FOLDER, report
from tests.services import database, kafka, postgres, topics
from tidegate.dlq.grouping import By, grouped
from tidegate.dlq.permission import everybody
from tidegate.dlq.replay_order import Order
from tidegate.dlq.replays import Replays
from tidegate.dlq.selection import Filter
from tidegate.inbox.database import Database
from tidegate.inbox.identity import event_id16, event_prefix, payload_hash8, position_id16
from tidegate.inbox.migrate import upgrade
from tidegate.inbox.record_bytes import encode_headers
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

GOALS = {"letters_per_s": "5,000", "ratio_fast": "at least 0.2", "listed_s": "below 2", "growth_mib": "0 (flat)"}
MIB = 1 << 20
EXCEPTIONS = ("shop.CreditRefused", "shop.NoStock", "builtins.ValueError")
COLUMNS = (
    *("handler", "version", "origin", "topic", "incarnation", "partition", "record_offset", "home_topic"),
    *("home_partition", "event_id", "payload_hash8", "lane", "alone", "seq", "state", "reason", "attempts"),
    *("first_failed_at", "last_failed_at", "exception_type", "message", "stack_digest", "id_text", "type"),
    *("correlation_id", "operation_id", "key", "value", "headers", "timestamp_ms", "timestamp_type"),
)
TYPE = "shop.OrderPlaced"

EVENTS_EACH = 3
"""Events that are read the fast way for each letter: as many as there are letters took a second, in which a neighbour's
burst doubled the ratio."""

SETTLED_S = 10.0
"""Behind the letters, which come all at once as they never do: the worker, which notices what was put within some
seconds, then knows their ids, and does not learn them while they are replayed."""


def letter(number: int, handler: int, topic: str, at: datetime) -> tuple[Any, ...]:
    """A dead event, as a worker leaves it."""
    event_id = str(uuid.UUID(int=number, version=4))
    value, place = encoded(number, event_id, at), (topic, 0, number % PARTITIONS, 10_000_000 + number)
    failed_at = at + timedelta(seconds=number % 36_000)
    return (
        *(handler, 1, "event", *place, topic, place[2], event_id16(event_prefix(topic, TYPE, b""), event_id.encode())),
        *(payload_hash8(value), position_id16(*place), True, 1, "dead", "rejected", 1, failed_at, failed_at),
        *(EXCEPTIONS[number % len(EXCEPTIONS)], "refused", "0" * 16, event_id, TYPE, event_id, event_id),
        *(b"o%d" % (number % 5_000), value, encode_headers(((ID_HEADER, event_id.encode()),)), 0, 1),
    )


async def bury(url: str, topic: str, consumer: str, count: int) -> None:
    """Write the letters."""
    db = await asyncpg.connect(url)
    try:
        handler = await db.fetchval(
            "SELECT id FROM tidegate.handler WHERE consumer = $1 AND name = $2", consumer, HANDLER
        )
        at = datetime.now(UTC) - timedelta(days=1)
        rows = (letter(number, handler, topic, at) for number in range(count))
        await db.copy_records_to_table("failure", schema_name="tidegate", columns=COLUMNS, records=rows)
        await db.execute("VACUUM ANALYZE tidegate.failure")
    finally:
        await db.close()


async def fast_way(url: str, count: int, alive: Callable[[], None]) -> float:
    """Events a second, from the first checkpoint to the one behind the last event."""
    db = await asyncpg.connect(url)
    first: tuple[float, int] | None = None
    try:
        while True:
            alive()
            done = await db.fetchval("SELECT coalesce(sum(next_offset), 0)::bigint FROM tidegate.checkpoint")
            if first is None and done:
                first = (time.perf_counter(), done)
            if done >= count and first is not None:
                return (count - first[1]) / (time.perf_counter() - first[0])
            await asyncio.sleep(0.01)
    finally:
        await db.close()


async def listed(store: Store) -> float:
    """Seconds to list all letters by group."""
    started = time.perf_counter()
    async with store.look() as conn:
        groups = await grouped(conn, store.tables, Filter(), tuple(By))
    assert groups, "there are letters"
    return time.perf_counter() - started


async def replayed(url: str, store: Store, alive: Callable[[], None]) -> tuple[float, float]:
    """Seconds until all are queued, and until all are worked."""
    replays, order = Replays(store, permit=everybody), Order(actor="bench", reason="measured", filter=Filter())
    db = await asyncpg.connect(url)
    started = time.perf_counter()
    try:
        run = await replays.start(order)
        queueing = asyncio.create_task(replays.go_on(run.id, "bench"))
        queued_s: float | None = None
        while True:
            alive()
            if queueing.done() and queued_s is None:
                queueing.result()
                queued_s = time.perf_counter() - started
            left = await db.fetchval("SELECT true FROM tidegate.failure WHERE state IN ('dead', 'queued') LIMIT 1")
            if left is None and queued_s is not None:
                return queued_s, time.perf_counter() - started
            await asyncio.sleep(0.05)
    finally:
        await db.close()


async def measure(url: str, topic: str, consumer: str, letters: int, worker: subprocess.Popen[bytes]) -> dict[str, Any]:
    """All of it, in the order of the figures."""
    watched, samples = psutil.Process(worker.pid), list[float]()

    def alive() -> None:
        assert worker.poll() is None, "the worker ended"
        samples.append(watched.memory_info().rss / MIB)

    fast = await fast_way(url, letters * EVENTS_EACH, alive)
    await bury(url, topic, consumer, letters)
    await asyncio.sleep(SETTLED_S)
    store = Store(Database(url, member="bench"), tables())
    try:
        listed_s = await listed(store)
        samples.clear()
        queued_s, seconds = await replayed(url, store, alive)
    finally:
        await store.database.close()
    third = max(1, len(samples) // 3)
    return {
        "letters_per_s": letters / seconds,
        "ratio_fast": letters / seconds / fast,
        "listed_s": listed_s,
        "growth_mib": max(samples[2 * third :]) - max(samples[third : 2 * third]),
        "peak_mib": max(samples),
        "fast_events_per_s": fast,
        "queued_per_s": letters / queued_s,
    }


def main() -> None:
    """Start the parts, measure, report."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--letters", type=int, default=100_000)
    given = arguments.parse_args()
    consumer = f"bench-{uuid.uuid4().hex[:8]}"
    with (
        kafka.running() as bootstrap,
        postgres.running(durable=True) as server,
        database.fresh(server) as url,
        topics.fresh(bootstrap, "bench") as topic,
    ):
        name = topic(PARTITIONS)
        seed(bootstrap, name, given.letters * EVENTS_EACH)
        database.run(upgrade(url))
        FOLDER.mkdir(parents=True, exist_ok=True)
        with Path(FOLDER / "replay-worker.log").open("wb") as log:
            command = [sys.executable, "-m", "benchmarks.replay_worker", url, bootstrap, name, consumer]
            worker = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                figures = asyncio.run(measure(url, name, consumer, given.letters, worker))
            finally:
                worker.terminate()
                worker.wait(30)
    report("replay", figures, GOALS, {"letters": given.letters})


if __name__ == "__main__":
    main()
