"""Workers that run in this process, on the test's own event loop, against a real broker and a real database.

A test writes an app, starts it on a `Stage`, produces records, and waits for what must come of them: a metric, a row.
Nothing here sleeps for a time; it looks again until the condition holds, the worker ends, or patience does.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, Event, Json, Record, header
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.layers import load
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.run import run_consumer
from tidegate.dlq.replay import Order, Report, replay
from tidegate.dlq.selection import Filter
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.event import Headers
from tidegate.inbox.migrate import upgrade
from tidegate.inbox.tables import tables

PATIENCE_S: Final = 20.0
LOOK_AGAIN_S: Final = 0.01
PROMPT: Final = {"TIDEGATE_WORKER_COMMIT_INTERVAL_S": "0.05", "TIDEGATE_WORKER_DRAIN_BUDGET_S": "5"}
"""Commits follow at once, so that a test sees them."""

ID: Final = "id"
"""The header that holds the event's id, for `event_id=header(ID)`."""

Condition = Callable[[], bool] | Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Sent:
    """A record to produce. A dict becomes JSON; bytes and None are sent as they are; `id` and `type` become headers."""

    id: str | bytes | None
    value: dict[str, Any] | bytes | None = field(default_factory=dict[str, Any])
    key: bytes | None = b"k"
    partition: int = 0
    type: str | None = "Thing"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0

    @property
    def bytes_(self) -> bytes | None:
        """The value as it goes out."""
        return json.dumps(self.value).encode() if isinstance(self.value, dict) else self.value

    @property
    def all_headers(self) -> list[tuple[str, bytes | str | None]]:
        """The given headers behind id and type."""
        named = [(name, value) for name, value in ((ID, self.id), ("type", self.type)) if value is not None]
        return [*named, *self.headers]


class RunningWorker:
    """One consumer of an app, running. `metrics` and `board` are the worker's own."""

    def __init__(self, app: App, url: str, bootstrap: str, variables: Mapping[str, str], consumer: str | None) -> None:
        self.app = app
        self.consumer = consumer or next(iter(app.consumers))
        self.metrics = Metrics(self.consumer)
        self.board = HealthBoard()
        environment = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
        settings = load({**environment, **PROMPT, **variables}).settings
        self._stop = asyncio.Event()
        self._running = asyncio.ensure_future(
            run_consumer(app, self.consumer, settings, self.board, self.metrics, self._stop)
        )

    async def until(self, condition: Condition, patience_s: float = PATIENCE_S) -> None:
        """Return once the condition holds. Raises what the worker ended with, if that comes first."""
        deadline_s = time.monotonic() + patience_s
        while not await _holds(condition):
            if self._running.done():
                raise AssertionError(f"the worker ended with {self._running.result()}")
            assert time.monotonic() < deadline_s, f"not within {patience_s} s; {self.describe()}"
            await asyncio.sleep(LOOK_AGAIN_S)

    async def until_counted(self, name: str, *labels: str, n: float) -> None:
        """Return once a counter or gauge has reached `n`, exactly."""
        await self.until(lambda: self.metrics.value(name, *labels) >= n)
        assert self.metrics.value(name, *labels) == n

    async def until_ready(self) -> None:
        """Return once it has partitions and everything it needs answers."""
        await self.until(lambda: self.board.ready().ok and bool(self.board.assigned))

    def events(self, handler: str, status: str) -> int:
        """How many events of a handler ended so: completed, failed, skipped, skipped_duplicate."""
        return int(self.metrics.value("events", handler, status))

    async def ends(self, patience_s: float = PATIENCE_S) -> BaseException | None:
        """Wait until it ends by itself, and give what it ended with."""
        done, _ = await asyncio.wait((self._running,), timeout=patience_s)
        assert done, f"it still runs; {self.describe()}"
        return self._running.exception()

    async def stop(self) -> int:
        """Ask it to stop, as SIGTERM does; its exit code."""
        self._stop.set()
        async with asyncio.timeout(PATIENCE_S):
            return await self._running

    async def kill(self) -> None:
        """Cut it off wherever it stands: nothing is drained.

        It is no kill -9: it leaves the group and lets its fences go. A test of what stands after an unclean end says so
        in the fence's row, or has a process of its own to kill.
        """
        self._running.cancel()
        await asyncio.wait((self._running,), timeout=PATIENCE_S)

    async def end(self) -> None:
        """Stop it if it runs; what it ended with is the test's business, not the end's."""
        self._stop.set()
        if not self._running.done():
            await asyncio.wait((self._running,), timeout=PATIENCE_S)
        if not self._running.done():
            await self.kill()
        if not self._running.cancelled():
            self._running.exception()

    def describe(self) -> str:
        """What it counted, for a failing test's message."""
        lines = self.metrics.exposition().decode().splitlines()
        shown = ("tidegate_events", "tidegate_dead", "tidegate_records", "tidegate_retries", "tidegate_partitions")
        counted = [line for line in lines if line.startswith(shown)]
        return f"ready: {self.board.ready()}; " + "; ".join(counted)


class Stage:
    """A migrated database and a broker; workers that a test starts on them are ended with it."""

    def __init__(self, url: str, bootstrap: str, connection: asyncpg.Connection[Any]) -> None:
        self.url = url
        self.bootstrap = bootstrap
        self._connection = connection
        self._asking = asyncio.Lock()
        self._workers: list[RunningWorker] = []

    async def start(
        self, app: App, consumer: str | None = None, variables: Mapping[str, str] | None = None, url: str | None = None
    ) -> RunningWorker:
        """Start a worker and return at once. `variables` are `TIDEGATE_...` settings; `url` another database."""
        worker = RunningWorker(app, url or self.url, self.bootstrap, variables or {}, consumer)
        self._workers.append(worker)
        return worker

    async def ready(
        self, app: App, consumer: str | None = None, variables: Mapping[str, str] | None = None
    ) -> RunningWorker:
        """Start a worker and return once it has partitions."""
        worker = await self.start(app, consumer, variables)
        await worker.until_ready()
        return worker

    async def send(self, topic: str, *records: Sent) -> None:
        """Produce records and wait until the broker has them. The producer is a new one: it knows every partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0})
        for record in records:
            producer.produce(
                topic,
                record.bytes_,
                key=record.key,
                partition=record.partition,
                headers=record.all_headers,
                timestamp=record.timestamp_ms,
            )
        assert await asyncio.to_thread(producer.flush, 20) == 0

    async def execute(self, *statements: str) -> None:
        """Run SQL, each statement in a transaction of its own."""
        async with self._asking:
            for statement in statements:
                await self._connection.execute(statement)

    async def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        async with self._asking:
            return [tuple(row) for row in await self._connection.fetch(query, *arguments)]

    async def value(self, query: str, *arguments: object) -> Any:
        """The first column of the first row."""
        async with self._asking:
            return await self._connection.fetchval(query, *arguments)

    async def checkpoints(self, handler: str) -> dict[int, int]:
        """Where a handler stands: partition -> next offset."""
        rows = await self.rows(
            "SELECT c.partition, c.next_offset FROM tidegate.checkpoint c JOIN tidegate.handler h ON h.id = c.handler"
            " WHERE h.name = $1",
            handler,
        )
        return dict(rows)

    async def failures(self, handler: str | None = None) -> list[tuple[Any, ...]]:
        """(id_text, state, reason) of every failure row, or of one handler's, in their positions' order."""
        return await self.rows(
            "SELECT f.id_text, f.state, f.reason FROM tidegate.failure f JOIN tidegate.handler h ON h.id = f.handler"
            " WHERE $1::text IS NULL OR h.name = $1 ORDER BY f.partition, f.record_offset, h.name",
            handler,
        )

    async def replay(self, *ids: int) -> Report:
        """Replay the letters of these failure rows, or all."""
        order = Order(
            actor="tests", reason="repaired", references=tuple(map(str, ids)), filter=None if ids else Filter()
        )
        database = Database(self.url, member="tests", settings=DatabaseSettings(pool_max=1, tx_pool_max=1))
        try:
            async with database.transaction() as conn:
                return await replay(conn, tables(), order)
        finally:
            await database.close()

    async def read(self, topic: str, n: int) -> list[Record]:
        """The first `n` records of a topic's first partition."""
        return await asyncio.to_thread(_read, self.bootstrap, topic, n)

    async def close_database(self) -> None:
        """Nobody can connect any more, and the workers are thrown out."""
        name = urlsplit(self.url).path[1:]
        await self._beside(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        await self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    async def open_database(self) -> None:
        """Everybody may connect again."""
        await self._beside(f'ALTER DATABASE "{urlsplit(self.url).path[1:]}" ALLOW_CONNECTIONS true')

    async def _beside(self, statement: str) -> None:
        server: asyncpg.Connection[Any] = await asyncpg.connect(
            urlunsplit(urlsplit(self.url)._replace(path="/postgres"))
        )
        try:
            await server.execute(statement)
        finally:
            await server.close()

    async def end(self) -> None:
        """End every worker."""
        for worker in self._workers:
            await worker.end()


def reader(*topics: str, consumer: str | None = None, **options: Any) -> App:
    """An app with one consumer of JSON and no handlers yet; its name is unique, unless it goes on as `consumer`."""
    app = App("tests", owner="tests")
    declared: dict[str, Any] = {"codec": Json(), "event_id": header(ID), **options}
    app.consumer(consumer or unique("reader"), topics=topics, **declared)
    return app


def committed(stage: Stage, offset: int, partition: int = 0) -> Condition:
    """A condition: this offset is committed to Kafka, as the fence row says."""

    async def holds() -> bool:
        found = await stage.value("SELECT kafka_offset FROM tidegate.fence WHERE partition = $1", partition)
        return found == offset

    return holds


def letters_of(topic: str, app: App) -> str:
    """The name of the topic that takes the dead letters of a reader."""
    return f"{topic}.{next(iter(app.consumers))}.dlq"


async def table_of(stage: Stage, name: str = "effect") -> None:
    """A table in which a second effect would show: nothing in it refuses one."""
    await stage.execute(f"CREATE TABLE public.{name} (id text, n int, written bigint GENERATED ALWAYS AS IDENTITY)")


async def note(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
    """A projection: one row of `public.effect` for each event."""
    rows = [{"id": event.id_text, "n": event.value.get("n", 0)} for event in events]
    await tx.execute(text("INSERT INTO public.effect VALUES (:id, :n)"), rows)


def _read(bootstrap: str, topic: str, n: int) -> list[Record]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": unique("eye"), "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = [message for message in (consumer.poll(PATIENCE_S) for _ in range(n)) if message is not None]
    finally:
        consumer.close()
    return [
        Record(
            topic, 0, m.offset() or 0, m.key(), m.value(), cast("Headers", tuple(m.headers() or ())), m.timestamp()[1]
        )
        for m in messages
    ]


def unique(name: str) -> str:
    """A consumer's name of this test's own."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def stage(url: str, bootstrap: str) -> AsyncGenerator[Stage]:
    """A stage on a database that is migrated first. Workers are ended behind it."""
    await upgrade(url)
    connection: asyncpg.Connection[Any] = await asyncpg.connect(url, timeout=5)
    built = Stage(url, bootstrap, connection)
    try:
        yield built
    finally:
        await built.end()
        await connection.close()


async def _holds(condition: Condition) -> bool:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer
