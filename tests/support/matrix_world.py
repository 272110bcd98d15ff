"""One chain of the crash matrix: workers of one group that are killed in turn, each at its point."""

from __future__ import annotations

import asyncio
import functools
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final, final

import asyncpg
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.services import database
from tests.services.topics import Topic
from tests.support.crash_world import LOOK_S, WITHIN_S, Member, Places, set_session
from tests.support.matrix import AGREES, OFFSET_IN_DOUBT, OFFSETS, Kind, Lit, Sent, Step
from tests.support.matrix_app import TABLES
from tests.support.provider import Provider, provider
from tidegate.dlq.replay import Order, replay
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.points import AT, WHEN
from tidegate.inbox.tables import tables

APP: Final = "tests.support.matrix_app:app"
PARTITIONS: Final = 1
"""Of another partition, in which nothing happened, each kill would look like one more at the same place."""
SESSION_MS: Final = 1_200
HEARTBEAT_MS: Final = 500
"""Nearly the shortest that the broker allows: so soon it gives a killed worker's partitions to the next one."""

OPEN: Final = "(state = 'intended' OR state = 'unknown' AND rule = 'probe')"
"""Calls of which something will be known without a person."""

PROMPT: Final = {"TIDEGATE_WORKER_COMMIT_INTERVAL_S": "0.05"}


@final
class Chain:
    """The group, its tables, the provider, and what was sent so far."""

    def __init__(
        self, places: Places, folder: Path, db: asyncpg.Connection[asyncpg.Record], provider: Provider
    ) -> None:
        self.places = places
        self.db = db
        self.provider = provider
        self.sent: list[Sent] = []
        self.places_of: dict[Sent, tuple[int, int]] = {}
        """Where each record came to lie: partition and offset."""
        self.put_back: dict[int, tuple[int, int]] = {}
        """Rows that are no more, each of which had a letter, and where their records lie."""
        self._ends: Counter[int] = Counter()
        self._folder = folder
        self._members: list[Member] = []
        self._producer = Producer({"bootstrap.servers": places.bootstrap, "linger.ms": 1})

    async def kill_at(self, step: Step) -> None:
        """Start a worker, have it work off what is there, make it get to the step's point, where it ends."""
        while step.point in AGREES and await asyncio.to_thread(self._committed) == await self._noted():
            await self.kill_at(OFFSET_IN_DOUBT)  # the last one died in a commit that said nothing new
        match step.lit:
            case Lit.START:
                self.produce(step.events())
                await self._dies(self._start(step), step)
            case Lit.INPUT:
                fuse = self._folder / f"{len(self._members)}.lit"
                member = self._start(step, fuse)
                await self._until_caught_up(member, step)
                if step.point in OFFSETS:
                    await self._until(self._is_told, member, f"{step.name}: Kafka to be told")
                fuse.touch()
                self.produce(step.events())
                await self._dies(member, step)
            case Lit.REPLAY:
                await self._put_back(step)
                await self._dies(self._start(step), step)
            case Lit.STOP:
                member = self._start(step)
                self.produce(step.events())
                await self._until_caught_up(member, step)
                member.signal(signal.SIGTERM)
                await self._dies(member, step)

    async def _put_back(self, step: Step) -> None:
        """The input becomes letters that a worker could not read, and they are put back for the next one."""
        if self.sent and self.sent[-1].step.kind is Kind.PICKY:
            await self.settle()  # what the last step put back can be read now, and could not be in a moment
        member = self._start(CRASH_PICKY="1")
        self.produce(step.events())
        await self._until_caught_up(member, step)
        await self._stop(member)
        offsets = [self.places_of[record][1] for record in step.events()]
        rows = await self.db.fetch(
            "SELECT id, partition, record_offset FROM tidegate.failure WHERE record_offset = ANY ($1)", offsets
        )
        assert len(rows) == len(offsets), f"{step.name}: {len(rows)} records could not be decoded"
        self.put_back |= {row["id"]: (row["partition"], row["record_offset"]) for row in rows}
        store = Database(self.places.database_url, member="tests", settings=DatabaseSettings(pool_max=1, tx_pool_max=1))
        order = Order(actor="tests", reason="repaired", references=tuple(str(row["id"]) for row in rows))
        async with store.transaction() as conn:
            await replay(conn, tables(), order)
        await store.close()

    async def settle(self) -> None:
        """A worker that nothing ends works off what is left, and leaves."""
        member = self._start()
        await self._until(lambda: _said(member, "partition_taken", PARTITIONS), member, "its partitions")
        await self._until_settled(member, "everything to end")
        await self._stop(member)

    async def _until_settled(self, member: Member, what: str) -> None:
        try:
            await self._until(self._settled, member, what)
        except AssertionError as error:
            error.add_note(await self._waiting())
            raise

    async def _stop(self, member: Member) -> None:
        member.signal(signal.SIGTERM)
        code = await member.ended()
        assert code == 0, f"it ended with {code}:\n{_tail(member)}"

    def produce(self, records: Iterable[Sent]) -> None:
        """Send, in order, and wait until the broker has them."""
        for record in records:
            headers: dict[str, str | bytes | None] = {"id": record.id, "type": record.step.kind.type}
            note = functools.partial(self._at, record)
            self._producer.produce(self.places.topic, record.value, record.key, headers=headers, on_delivery=note)
            self.sent.append(record)
        assert self._producer.flush(30) == 0, "the broker took no records"

    def clear(self) -> None:
        """End what still runs."""
        for member in self._members:
            if member.alive:
                member.kill()

    def _at(self, record: Sent, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert error is None, error
        assert partition is not None, "a report has a place"
        assert offset is not None, "a report has a place"
        self.places_of[record] = (partition, offset)
        self._ends[partition] = max(self._ends[partition], offset + 1)

    def _start(self, step: Step | None = None, fuse: Path | None = None, **more: str) -> Member:
        number = len(self._members)
        variables = self.places.variables() | PROMPT | {"CRASH_PROVIDER": str(self.provider.port)} | more
        if step is not None:
            variables |= {AT: step.at(self.places.out_topic, self.places.letters)}
        if fuse is not None:
            variables |= {WHEN: str(fuse)}
        member = Member(f"member-{number}", self._folder / f"{number}.log", variables, APP)
        self._members.append(member)
        return member

    async def _dies(self, member: Member, step: Step) -> None:
        code = await self._within(member.ended(WITHIN_S), f"{step.name}: it did not get there", member)
        assert code == -signal.SIGKILL, f"{step.name}: it ended with {code}:\n{_tail(member)}"
        await self.db.execute("UPDATE tidegate.lease SET expires_at = '-infinity'")  # held by the dead, for a while yet

    async def _until_caught_up(self, member: Member, step: Step) -> None:
        """It has its partitions, nothing that was sent before is left to be done, and nothing is handled alone any
        more: what dies alone is given up. So what passes a point from now on is new.
        """
        await self._until(lambda: _said(member, "partition_taken", PARTITIONS), member, f"{step.name}: its partitions")
        await self._until_settled(member, f"{step.name}: what was left")
        examined = member.said("suspects_alone")
        await self._until(lambda: _said(member, "suspects_done", examined), member, f"{step.name}: its suspects")

    async def _caught_up(self) -> bool:
        """Every handler is at the end."""
        rows = await self.db.fetch("SELECT c.partition, min(c.next_offset) FROM tidegate.checkpoint c GROUP BY 1")
        return {row[0]: row[1] for row in rows if row[1]} == self._ends

    async def _noted(self) -> int:
        """The offsets that the database thinks Kafka holds."""
        return int(await self.db.fetchval("SELECT coalesce(sum(kafka_offset), 0) FROM tidegate.fence"))

    def _committed(self) -> int:
        """Those that it holds."""
        with closing(Consumer({"bootstrap.servers": self.places.bootstrap, "group.id": self.places.consumer})) as asker:
            asked = [TopicPartition(self.places.topic, number) for number in range(PARTITIONS)]
            return sum(max(place.offset, 0) for place in asker.committed(asked, timeout=30))

    async def _is_told(self) -> bool:
        """Kafka holds the end, too."""
        return await asyncio.to_thread(self._committed) == sum(self._ends.values())

    async def _settled(self) -> bool:
        row = await self.db.fetchrow(
            f"""
            SELECT (SELECT count(*) FROM tidegate.outbox WHERE published_at IS NULL)
                 + (SELECT count(*) FROM tidegate.failure WHERE state = 'queued')
                 + (SELECT count(*) FROM tidegate.effect WHERE {OPEN}) AS waiting,
                   (SELECT coalesce(sum(kafka_offset), 0) FROM tidegate.fence) AS told
            """
        )
        assert row is not None, "an aggregate has a row"
        return (row["waiting"], row["told"]) == (0, sum(self._ends.values())) and await self._caught_up()

    async def _waiting(self) -> str:
        """What has not ended, for a failing test."""
        rows = await self.db.fetch(
            f"""
            SELECT 'row' AS what, h.name, f.id_text AS id, f.state, f.reason, f.message, f.due::text AS due
              FROM tidegate.failure f JOIN tidegate.handler h ON h.id = f.handler WHERE f.state = 'queued'
             UNION ALL
            SELECT 'effect', name, operation_id, state, rule, error, deadline::text FROM tidegate.effect
             WHERE {OPEN}
             UNION ALL
            SELECT 'record', topic, encode(id, 'hex'), kind, '', '', '' FROM tidegate.outbox WHERE published_at IS NULL
            """
        )
        return "\n".join(str(tuple(row)) for row in rows) + f"\nends {dict(self._ends)}"

    async def _until(self, seen: Callable[[], Awaitable[bool]], member: Member, what: str) -> None:
        give_up = time.monotonic() + WITHIN_S
        while not await seen():
            assert member.alive, f"{what}: it ended with {member.process.returncode}\n{_tail(member)}"
            assert time.monotonic() < give_up, f"{what}: not within {WITHIN_S} s\n{_tail(member)}"
            await asyncio.sleep(LOOK_S)

    async def _within(self, ending: Awaitable[int], what: str, member: Member) -> int:
        try:
            return await ending
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{what}\n{_tail(member)}") from None


async def _said(member: Member, event: str, times: int) -> bool:
    return member.said(event) >= times


def _tail(member: Member) -> str:
    return "\n".join(member.log().splitlines()[-100:])


@asynccontextmanager
async def chain(folder: Path, bootstrap: str, migrated_url: str, topic: Topic) -> AsyncGenerator[Chain]:
    """A group with its topics and tables, and no worker yet."""
    name = topic(partitions=PARTITIONS)
    consumer = f"m-{name}"[:80]
    places = Places(bootstrap, migrated_url, name, topic(partitions=1), consumer)
    topic(partitions=1, name=places.letters)
    database.execute(migrated_url, *TABLES)
    await asyncio.to_thread(set_session, bootstrap, consumer, SESSION_MS, HEARTBEAT_MS)
    db = await asyncpg.connect(migrated_url)
    async with provider() as service:
        made = Chain(places, folder, db, service)
        try:
            yield made
        finally:
            made.clear()
            await db.close()
