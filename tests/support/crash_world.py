"""What a crash test has in its hands: real worker processes of one group, their input, their database, and signals.

Nothing here waits for a time to pass: each wait is for something to be seen, and has a limit at which the test fails
and shows what the processes said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import asyncpg
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.services import database
from tests.services.topics import Topic
from tests.support.cli import Ended, start, tidegate
from tests.support.crash_app import TABLES
from tests.support.crash_input import Sent

APP: Final = "tests.support.crash_app:app"

LOOK_S: Final = 0.01
WITHIN_S: Final = 60.0
"""How long anything may take before the test fails: many times what it takes on a busy machine."""

PARTITIONS: Final = 6
OUT_PARTITIONS: Final = 3


def seeds() -> range:
    """As many as asked for: one by default, five by `make test-crash`."""
    return range(1, 1 + int(os.environ.get("TIDEGATE_CRASH_SEEDS", "1")))


def thorough() -> bool:
    """`make test-crash`: take the time that it takes."""
    return "TIDEGATE_CRASH_SEEDS" in os.environ


@final
class Member:
    """One worker process."""

    def __init__(self, name: str, log: Path, variables: dict[str, str], app: str = APP) -> None:
        self.name = name
        self._log = log
        self.process: subprocess.Popen[str] = start("run", "--app", app, log=log, variables=variables)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text(errors="replace")

    def said(self, event: str) -> int:
        """How often a line with this event stands in its log."""
        return self.log().count(event)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    async def ended(self, within_s: float = WITHIN_S) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self.process.wait, within_s)


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is."""

    bootstrap: str
    database_url: str
    topic: str
    out_topic: str
    consumer: str

    @property
    def letters(self) -> str:
        """Where dead letters go."""
        return f"{self.topic}.{self.consumer}.dlq"

    def variables(self) -> dict[str, str]:
        """The environment of a worker."""
        return {
            "TIDEGATE_DATABASE_URL": self.database_url,
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap,
            "TIDEGATE_HEALTH_PORT": "0",
            "TIDEGATE_WORKER_COMMIT_INTERVAL_S": "0.2",
            "TIDEGATE_CONSUMER": self.consumer,
            "CRASH_TOPIC": self.topic,
            "CRASH_OUT_TOPIC": self.out_topic,
            "CRASH_CONSUMER": self.consumer,
        }


@final
class World:
    """One consumer group under test."""

    def __init__(self, places: Places, folder: Path, db: asyncpg.Connection[asyncpg.Record]) -> None:
        self.places = places
        self.db = db
        self.members: list[Member] = []
        self.sent: list[Sent] = []
        self.ends: Counter[int] = Counter()
        self._folder = folder
        self._started = 0
        self._producer = Producer({"bootstrap.servers": places.bootstrap, "linger.ms": 1, "enable.idempotence": True})

    # ------------------------------------------------------------------------------------------------------ processes

    def start(self, **variables: str) -> Member:
        """One more member of the group."""
        self._started += 1
        name = f"member-{self._started}"
        member = Member(name, self._folder / f"{name}.log", self.places.variables() | variables)
        self.members.append(member)
        return member

    def forget(self, member: Member) -> None:
        """It ended as the test wanted."""
        self.members.remove(member)

    def kill(self, member: Member) -> None:
        """kill -9."""
        member.kill()
        self.forget(member)

    async def stop(self, member: Member) -> None:
        """SIGTERM; the exit code has to be 0."""
        member.signal(signal.SIGTERM)
        code = await member.ended()
        assert code == 0, f"{member.name} ended with {code}:\n{_tail(member)}"
        self.forget(member)

    def tidegate(self, *arguments: str) -> Ended:
        """Run a verb of the command line to its end."""
        return tidegate(*arguments, variables=self.places.variables())

    async def move_to(self, database_url: str) -> None:
        """From now on look at another database, and start members on it."""
        await self.db.close()
        self.places = replace(self.places, database_url=database_url)
        self.db = await asyncpg.connect(database_url)

    def clear(self) -> None:
        """End what still runs."""
        for member in self.members:
            if member.alive:
                member.signal(signal.SIGCONT)
                member.kill()

    # ---------------------------------------------------------------------------------------------------------- input

    def produce(self, records: Iterable[Sent]) -> None:
        """Send, in order, and wait until the broker has them."""
        for record in records:
            self._producer.produce(
                self.places.topic, record.value, record.key,
                headers={"id": record.id, "type": record.type}, on_delivery=self._delivered,
            )  # fmt: skip
            self.sent.append(record)
        assert self._producer.flush(30) == 0, "the broker took no records"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None, "a report has a place"
        assert offset is not None, "a report has a place"
        self.ends[partition] = max(self.ends[partition], offset + 1)

    # ---------------------------------------------------------------------------------------------------------- looks

    async def until(
        self,
        seen: Callable[[], Awaitable[bool]],
        what: str,
        within_s: float = WITHIN_S,
        progress: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Return once `seen`. A member that ended by itself fails the test; so does a wait of `within_s`, which begins
        anew with any `progress`: a machine may be slow, and what stands still is red all the same.
        """
        give_up, reached = time.monotonic() + within_s, -1
        while not await seen():
            if progress is not None and (now := await progress()) != reached:
                give_up, reached = time.monotonic() + within_s, now
            for member in self.members:
                assert member.alive, f"{member.name} ended with {member.process.returncode}:\n{_tail(member)}"
            if time.monotonic() > give_up:
                tails = "\n".join(f"--- {member.name}\n{_tail(member)}" for member in self.members)
                raise AssertionError(f"waited {within_s:.0f} s for {what}, in vain\n{tails}")
            await asyncio.sleep(LOOK_S)

    async def until_said(self, member: Member, event: str, times: int = 1) -> None:
        """Return once the member's log holds the event."""

        async def said() -> bool:
            return member.said(event) >= times

        await self.until(said, f"{event} of {member.name}")

    async def until_settled(self, within_s: float = 2 * WITHIN_S) -> None:
        """Return once every handler is at the end, everything went out, and Kafka was told."""
        await self.until(self._settled, "the end of the input", within_s, self.reached)
        await self.until(self._is_told, "Kafka to hold the offsets that were written down", within_s)

    async def _is_told(self) -> bool:
        return await asyncio.to_thread(self.committed) == self.ends

    def committed(self) -> dict[int, int]:
        """Partition -> the group's offset, as Kafka has it."""
        asker = Consumer({"bootstrap.servers": self.places.bootstrap, "group.id": self.places.consumer})
        try:
            places = [TopicPartition(self.places.topic, partition) for partition in self.ends]
            return {place.partition: place.offset for place in asker.committed(places, timeout=30)}
        finally:
            asker.close()

    async def _settled(self) -> bool:
        wanted = {(handler, partition): end for partition, end in self.ends.items() for handler in range(4)}
        row = await self.db.fetchrow(
            """
            SELECT (SELECT count(*) FROM tidegate.outbox WHERE published_at IS NULL) AS waiting,
                   (SELECT coalesce(sum(next_offset), 0) FROM tidegate.checkpoint) AS reached,
                   (SELECT coalesce(sum(kafka_offset), 0) FROM tidegate.fence) AS told
            """
        )
        assert row is not None, "an aggregate has a row"
        return (row["waiting"], row["reached"], row["told"]) == (0, sum(wanted.values()), sum(self.ends.values()))

    async def reached(self) -> int:
        """The sum of all checkpoints: more of it is progress."""
        return int(await self.db.fetchval("SELECT coalesce(sum(next_offset), 0) FROM tidegate.checkpoint"))

    async def until_progress(self, since: int) -> None:
        """Return once a checkpoint moved."""

        async def moved() -> bool:
            return await self.reached() > since

        await self.until(moved, "any progress")

    async def braking(self, member: Member | None = None, place: str = "%") -> bool:
        """Whether a session (of this member) sleeps in a brake, in a statement like `place`."""
        found: bool = await self.db.fetchval(
            """
            SELECT count(*) > 0 FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event = 'PgSleep' AND state = 'active' AND query ILIKE $2
               AND application_name LIKE 'tidegate ' || $1 || ' %'
            """,
            "%" if member is None else str(member.pid),
            place,
        )
        return found

    async def braking_members(self) -> list[Member]:
        """Those that sleep in a brake."""
        return [member for member in self.members if await self.braking(member)]

    async def brake(self, place: str, seconds: float) -> None:
        """From now on transactions sleep there."""
        await self.db.execute(
            "INSERT INTO public.brake VALUES ($1, $2) ON CONFLICT (place) DO UPDATE SET seconds = $2", place, seconds
        )

    async def release(self) -> None:
        """No more sleep; what sleeps already sleeps on."""
        await self.db.execute("DELETE FROM public.brake")

    async def fences(self) -> dict[int, int]:
        """Partition -> epoch."""
        return {row[0]: row[1] for row in await self.db.fetch("SELECT partition, epoch FROM tidegate.fence")}


def _tail(member: Member) -> str:
    return "\n".join(member.log().splitlines()[-25:])


@asynccontextmanager
async def world(
    folder: Path,
    bootstrap: str,
    database_url: str,
    topic: Topic,
    *,
    partitions: int = PARTITIONS,
    session_ms: int | None = None,
) -> AsyncGenerator[World]:
    """A group with its topics, tables and no member yet. `session_ms`: after how long the broker gives a member up."""
    name = topic(partitions=partitions)
    consumer = f"c-{name}"[:80]
    out = topic(partitions=OUT_PARTITIONS)
    topic(partitions=1, name=f"{name}.{consumer}.dlq")
    places = Places(bootstrap, database_url, name, out, consumer)
    migrated = tidegate("migrate", variables=places.variables())
    assert migrated.code == 0, migrated.err
    database.execute(database_url, *TABLES)
    if session_ms is not None:
        await asyncio.to_thread(set_session, bootstrap, consumer, session_ms)
    db = await asyncpg.connect(database_url)
    made = World(places, folder, db)
    try:
        yield made
    finally:
        made.clear()
        await made.db.close()


def set_session(bootstrap: str, group: str, session_ms: int, heartbeat_ms: int = 1_000) -> None:
    """After how long without a heartbeat the broker gives a member of the group up, and how often members send one."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"consumer.session.timeout.ms": session_ms, "consumer.heartbeat.interval.ms": heartbeat_ms}
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)
