"""A shop whose events are backfilled: a live group that has handled everything, and an operator beside it, each in a
process of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import asyncpg
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.services import database
from tests.services.topics import Topic
from tests.support.cli import Ended, tidegate
from tests.support.crash_world import Member, Places

APP: Final = "tests.support.backfill_app:app"
EVENTS: Final = 60
KEPT: Final = {"retention.ms": "-1"}
"""The records' times are long ago: a broker that looks at them would take them away."""
LOOK_S: Final = 0.02
WITHIN_S: Final = 60.0
WINDOW: Final = ("--from", "2026-03-01T12:00:00", "--to", "2026-03-01T13:00:00Z")
NOON_MS: Final = 1_772_366_400_000


class Shop:
    """A live group that has handled everything, and an operator beside it."""

    def __init__(self, places: Places, db: asyncpg.Connection[asyncpg.Record], folder: Path, app: str) -> None:
        self.places = places
        self.db = db
        self.app = app
        self.variables = places.variables() | {"TIDEGATE_APP": app}
        self.folder = folder
        self.worker: Member | None = None
        self._admin = AdminClient({"bootstrap.servers": places.bootstrap, "log_level": 0})

    async def types(self, *arguments: str, **variables: str) -> Ended:
        """Run `tidegate backfill ...` to its end."""
        return await asyncio.to_thread(tidegate, "backfill", *arguments, variables=self.variables | variables)

    async def begins(self, handler: str, *arguments: str, **variables: str) -> Ended:
        """Act, at forty events a second: ten in a chunk."""
        asked = ("--handler", handler, *WINDOW, "--rate", "40", "--yes", "--reason", "the bug is repaired")
        return await self.types(self.places.consumer, *asked, *arguments, **variables)

    async def count(self, query: str) -> int:
        """The number that a query gives."""
        return await self.db.fetchval(query)

    async def until(self, query: str, n: int) -> None:
        """Return once it gives `n`."""
        give_up_s = time.monotonic() + WITHIN_S
        while await self.count(query) != n:
            assert self.worker is None or self.worker.alive, self.worker.log()[-3000:]
            assert time.monotonic() < give_up_s, f"not {n} within {WITHIN_S} s: {query}"
            await asyncio.sleep(LOOK_S)

    def group(self) -> tuple[Any, ...]:
        """Members and committed offsets of the live group."""
        name = self.places.consumer
        found: Any = cast("Any", self._admin.describe_consumer_groups([name]))[name].result(20)
        asked: Any = cast("Any", self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]))
        places: list[TopicPartition] = asked[name].result(20).topic_partitions
        members = sorted((m.member_id, str(m.assignment.topic_partitions)) for m in found.members)
        return members, sorted((p.partition, p.offset) for p in places)

    async def until_committed(self, count: int) -> None:
        """Until the live group's offsets in Kafka add up to so many."""
        give_up_s = time.monotonic() + WITHIN_S
        while sum(offset for _, offset in (await asyncio.to_thread(self.group))[1]) < count:
            assert time.monotonic() < give_up_s, "the live group's offsets do not get to Kafka"
            await asyncio.sleep(LOOK_S)

    async def live(self) -> list[tuple[Any, ...]]:
        """All that says where the live group is."""
        rows = await self.db.fetch(
            "SELECT consumer, partition, epoch, kafka_offset FROM tidegate.fence WHERE consumer = $1 ORDER BY 2",
            self.places.consumer,
        )
        checkpoints = await self.db.fetch("SELECT * FROM tidegate.checkpoint ORDER BY handler, partition")
        group = await asyncio.to_thread(self.group)
        return [*map(tuple, rows), *map(tuple, checkpoints), *group]

    def works(self, **variables: str) -> None:
        """Start a worker."""
        log = self.folder / "worker.log"
        self.worker = Member("worker", log, self.places.variables() | variables, self.app)

    async def journal(self, number: int) -> dict[str, Any]:
        """A backfill as `list` shows it."""
        ended = await self.types("list", "--json")
        assert ended.code == 0, ended.err
        return next(run for run in json.loads(ended.out) if run["backfill"] == number)


@asynccontextmanager
async def opened(
    folder: Path, bootstrap: str, url: str, topic: Topic, tables: tuple[str, ...], app: str = APP
) -> AsyncGenerator[Shop]:
    """A topic of two partitions and a database with `tables`; nobody works yet."""
    name = topic(partitions=2, config=KEPT)
    places = Places(bootstrap, url, name, "", f"c-{name}"[:80])
    topic(partitions=1, name=places.letters)
    assert tidegate("migrate", variables=places.variables()).code == 0
    database.execute(url, *tables)
    db = await asyncpg.connect(url)
    shop = Shop(places, db, folder, app)
    try:
        yield shop
        assert shop.worker is None or shop.worker.alive, shop.worker.log()[-3000:]
    finally:
        if shop.worker is not None:
            shop.worker.kill()
        await db.close()


def produce(places: Places, numbers: range) -> None:
    """Events, a second apart from each other."""
    producer = Producer({"bootstrap.servers": places.bootstrap, "linger.ms": 0, "log_level": 0})
    for n in numbers:
        producer.produce(
            places.topic, json.dumps({"n": n}).encode(), f"k{n % 6}", n % 2, timestamp=NOON_MS + 1000 * n,
            headers={"id": str(n), "type": "Thing"},
        )  # fmt: skip
    assert producer.flush(30) == 0
