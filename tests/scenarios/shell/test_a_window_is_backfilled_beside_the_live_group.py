"""`tidegate backfill` in processes of their own, a live worker in another beside them."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import asyncpg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.services import database
from tests.services.topics import Topic
from tests.support.backfill_app import TABLES
from tests.support.cli import Ended, start, tidegate
from tests.support.crash_world import Member, Places
from tidegate.inbox.points import AT
from tidegate.inbox.versions import run_version

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

    def __init__(self, places: Places, db: asyncpg.Connection[asyncpg.Record], folder: Path) -> None:
        self.places = places
        self.db = db
        self.variables = places.variables() | {"TIDEGATE_APP": APP}
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

    async def live(self) -> list[tuple[Any, ...]]:
        """All that says where the live group is."""
        rows = await self.db.fetch(
            "SELECT consumer, partition, epoch, kafka_offset FROM tidegate.fence WHERE consumer = $1 ORDER BY 2",
            self.places.consumer,
        )
        checkpoints = await self.db.fetch("SELECT * FROM tidegate.checkpoint ORDER BY handler, partition")
        group = await asyncio.to_thread(self.group)
        return [*map(tuple, rows), *map(tuple, checkpoints), *group]

    async def journal(self, number: int) -> dict[str, Any]:
        """A backfill as `list` shows it."""
        ended = await self.types("list", "--json")
        assert ended.code == 0, ended.err
        return next(run for run in json.loads(ended.out) if run["backfill"] == number)


@pytest.fixture
async def shop(tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic) -> AsyncIterator[Shop]:
    """Sixty events of two partitions and six keys, all handled, and the worker still there."""
    name = topic(partitions=2, config=KEPT)
    places = Places(kafka_bootstrap, database_url, name, "", f"c-{name}"[:80])
    topic(partitions=1, name=places.letters)
    assert tidegate("migrate", variables=places.variables()).code == 0
    database.execute(database_url, *TABLES)
    produce(places, range(EVENTS))
    db = await asyncpg.connect(database_url)
    shop = Shop(places, db, tmp_path)
    worker = shop.worker = Member("worker", tmp_path / "worker.log", places.variables(), APP)
    try:
        await shop.until("SELECT count(*) FROM tidegate.claim_1", 2 * EVENTS)
        await shop.until("SELECT COALESCE(sum(kafka_offset), 0) FROM tidegate.fence", EVENTS)
        yield shop
        assert worker.alive, worker.log()[-3000:]
    finally:
        worker.kill()
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


async def forget(shop: Shop) -> None:
    """As if forty of them had never been handled by the command."""
    lost = "SELECT ctid FROM tidegate.claim_1 WHERE version = 0 ORDER BY event_id LIMIT 40"
    await shop.db.execute(f"DELETE FROM tidegate.claim_1 WHERE ctid IN ({lost})")
    await shop.db.execute("DELETE FROM public.done")
    await shop.db.execute("DELETE FROM tidegate.outbox")


KILLS: Final = (
    "after_handler@do:5", "before_tx:3", "after_tx:3", "before_group:2", "after_group:2", "claimed@do:6",
    "after_take:1", "before_handler@do:11",
)  # fmt: skip


async def test_killed_at_every_turn_it_handles_each_event_once_and_its_journal_adds_up(shop: Shop) -> None:
    """kill -9 between any two steps, and resume: one effect each, counts that add up, the live group untouched.

    Case: B39, B42
    Parts: real (Kafka, PostgreSQL)
    Red when: running.py counts an open chunk by what the inbox knows now instead of what was noted when it was opened
    """
    await forget(shop)
    before = await shop.live()
    ended = await shop.begins("do", **{AT: KILLS[0]})
    assert ended.code == -signal.SIGKILL, ended.err
    for kill in KILLS[1:]:
        ended = await shop.types("resume", "1", "--reason", "again", **{AT: kill})
        assert ended.code == -signal.SIGKILL, (kill, ended.err)
    ended = await shop.types("resume", "1", "--reason", "again")
    assert ended.code == 0, ended.err
    assert re.search(r"handled +40\n", ended.out), ended.out
    assert "skipped 20: handled before" in ended.out
    done = Counter(row[0] for row in await shop.db.fetch("SELECT id FROM public.done"))
    published = await shop.count("SELECT count(*) FROM tidegate.outbox")
    assert set(done.values()) == {1}
    assert len(done) + published == 40
    run = await shop.journal(1)
    assert [run[name] for name in ("read", "handled", "skipped", "refused", "failed")] == [60, 40, 20, 0, 0]
    assert run["ended_at"]
    assert (await shop.types("resume", "1")).code == 0
    assert await shop.count("SELECT count(*) FROM public.done") == len(done)
    assert await shop.live() == before
    assert await shop.count("SELECT count(*) FROM tidegate.fence WHERE consumer LIKE '%.backfill.%'") == 0


async def test_a_projections_run_killed_at_every_turn_writes_what_it_would_have(shop: Shop) -> None:
    await shop.db.execute("DELETE FROM public.view WHERE id = 'k1'")
    await shop.db.execute("UPDATE public.view SET n = 1000 WHERE id = 'k2'")
    before = await shop.live()
    kills = ("claimed@view:2", "before_batch:1", "after_batch:2", "before_batch:2")
    assert (await shop.begins("view", **{AT: kills[0]})).code == -signal.SIGKILL
    for kill in kills[1:]:
        assert (await shop.types("resume", "1", **{AT: kill})).code == -signal.SIGKILL
    ended = await shop.types("resume", "1")
    assert ended.code == 0, ended.err
    view = {row[0]: row[1] for row in await shop.db.fetch("SELECT id, n FROM public.view")}
    assert view == {"k0": 54, "k1": 55, "k2": 1000, "k3": 57, "k4": 58, "k5": 59}
    run = await shop.journal(1)
    assert [run[name] for name in ("read", "handled", "skipped", "failed")] == [60, 60, 0, 0]
    claimed = await shop.count(f"SELECT count(*) FROM tidegate.claim_1 WHERE version = {run_version(1)}")
    assert claimed == 60
    assert await shop.live() == before


async def test_without_yes_nothing_is_done_and_everything_is_said(shop: Shop) -> None:
    await forget(shop)
    ended = await shop.types(shop.places.consumer, "--handler", "do", *WINDOW)
    assert ended.code == 0, ended.err
    assert "would handle 40 of 60 records" in ended.out
    assert "skipped 20: handled before" in ended.out
    assert re.search(r"cluster \S+, consumer c-", ended.out)
    assert "nothing was done" in ended.err
    half = await shop.types(
        shop.places.consumer,
        "--handler",
        "do",
        "--from",
        "2026-03-01T12:00:10",
        "--to",
        "2026-03-01T12:00:20",
        "--json",
    )
    told = json.loads(half.out)
    assert (told["dry_run"], told["read"]) == (True, 10)
    assert [(part["from"], part["to"]) for part in told["parts"]] == [(5, 10), (5, 10)]
    nothing = await shop.types(shop.places.consumer, "--handler", "do", "--from", "2020-01-01", "--to", "2020-01-02")
    assert nothing.code == 3
    assert await shop.count("SELECT count(*) FROM tidegate.backfill") == 0


async def test_ctrl_c_ends_it_behind_what_is_in_hand(shop: Shop) -> None:
    await forget(shop)
    path = shop.folder / "backfill.log"
    asked = (shop.places.consumer, "--handler", "do", *WINDOW, "--rate", "8", "--yes", "--reason", "again")
    process = start("backfill", *asked, log=path, variables=shop.variables)
    try:
        give_up_s = time.monotonic() + WITHIN_S
        while not await shop.count("SELECT COALESCE(max(handled), 0) FROM tidegate.backfill"):
            assert time.monotonic() < give_up_s, path.read_text()
            await asyncio.sleep(LOOK_S)
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, WITHIN_S) == 130, path.read_text()
    finally:
        process.kill()
        process.wait()
    assert "`tidegate backfill resume 1` goes on" in path.read_text()
    run = await shop.journal(1)
    assert run["read"] == run["handled"] + run["skipped"]
    ended = await shop.types("resume", "1", "--rate", "100", "--json")
    assert (ended.code, json.loads(ended.out)["handled"]) == (0, 40)


async def test_what_is_wrong_is_said_at_once(shop: Shop) -> None:
    ended = await shop.types(
        shop.places.consumer, "--handler", "dont", "--from", "2026-03-02", "--to", "2026-03-01", "--topic", "other"
    )
    assert ended.code == 78
    for said in ("has no handler 'dont'", "ends before it begins", "'other' is no topic of"):
        assert said in ended.err
    assert "is no time" in (await shop.types("x", "--handler", "do", "--from", "noon", "--to", "2026-03-01")).err
    assert "it is not given" in (await shop.types(shop.places.consumer, "--handler", "do", *WINDOW, "--yes")).err
    assert "there is no backfill 9" in (await shop.types("resume", "9")).err
    assert "was said at its start" in (await shop.types("resume", "1", "--force")).err
