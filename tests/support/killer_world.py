"""A group whose process is started again whenever it dies, as a supervisor does; who counts how often it died."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import asyncpg
from confluent_kafka import Producer

from tests.services import database
from tests.services.topics import Topic
from tests.support.cli import Ended, tidegate
from tests.support.crash_world import Member, Places, set_session
from tests.support.killer_app import TABLES

APP: Final = "tests.support.killer_app:app"
SESSION_MS: Final = 2_000
"""So soon after a death the broker gives the partitions to the next process."""

KILLED: Final = (-signal.SIGKILL, 11)
"""How a process ends that a record has killed: by the signal, or by the codec's `os._exit`."""

WITHIN_S: Final = 60.0
LOOK_S: Final = 0.02


@final
class Supervised:
    """One process at a time."""

    def __init__(self, places: Places, folder: Path, db: asyncpg.Connection[asyncpg.Record]) -> None:
        self.places = places
        self.db = db
        self.deaths = 0
        self._folder = folder
        self._started = 0
        self._variables: dict[str, str] = {}
        self._member: Member | None = None

    def start(self, **variables: str) -> Member:
        """The process, and each that follows it, with these variables."""
        self._variables = variables
        self._started += 1
        log = self._folder / f"process-{self._started}.log"
        self._member = Member(log.stem, log, self.places.variables() | variables, APP)
        return self._member

    @property
    def member(self) -> Member:
        """The one that runs, or died last."""
        assert self._member is not None, "nothing was started"
        return self._member

    async def until(self, seen: Callable[[], Awaitable[bool]], what: str, within_s: float = WITHIN_S) -> None:
        """Return once `seen`; meanwhile a process that died is started again."""
        give_up_s = time.monotonic() + within_s
        while not await seen():
            if not self.member.alive:
                code = self.member.process.returncode
                assert code in KILLED, f"the process left by itself with {code}\n{self.member.log()[-4000:]}"
                self.deaths += 1
                self.start(**self._variables)
            assert time.monotonic() < give_up_s, f"waited for {what}, in vain\n{self.member.log()[-4000:]}"
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """SIGTERM; the exit code has to be 0."""
        self.member.signal(signal.SIGTERM)
        code = await self.member.ended()
        assert code == 0, f"ended with {code}\n{self.member.log()[-4000:]}"

    def end(self) -> None:
        """End what still runs."""
        if self._member is not None and self._member.alive:
            self._member.signal(signal.SIGCONT)
            self._member.kill()

    def send(self, *ids: str, partition: int = 0, key: str = "k", **says: Any) -> None:
        """Produce an event for each id, and wait until the broker has them."""
        producer = Producer({"bootstrap.servers": self.places.bootstrap, "linger.ms": 0, "log_level": 0})
        for id_ in ids:
            producer.produce(
                self.places.topic, json.dumps(says).encode(), key, partition, headers={"id": id_, "type": "Thing"}
            )
        assert producer.flush(30) == 0, "the broker took no records"

    def tidegate(self, *arguments: str) -> Ended:
        """Run a verb of the command line to its end."""
        return tidegate(*arguments, variables=self.places.variables())

    async def done(self, handler: str) -> Counter[str]:
        """How often each event was handled."""
        rows = await self.db.fetch("SELECT id FROM public.done WHERE handler = $1", handler)
        return Counter(row[0] for row in rows)

    async def letters(self) -> list[tuple[str, str, int]]:
        """(reason, handler, offset) of every dead row."""
        rows = await self.db.fetch(
            "SELECT f.reason, h.name, f.record_offset FROM tidegate.failure f"
            " JOIN tidegate.handler h ON h.id = f.handler WHERE f.state = 'dead' ORDER BY f.id"
        )
        return [tuple(row) for row in rows]

    async def has_letter(self) -> bool:
        """A record was given up."""
        return bool(await self.letters())


@asynccontextmanager
async def supervised(
    folder: Path, bootstrap: str, database_url: str, topic: Topic, *, partitions: int = 2
) -> AsyncGenerator[Supervised]:
    """A group with its topics and tables, and no process yet."""
    name = topic(partitions=partitions)
    consumer = f"c-{name}"[:80]
    topic(partitions=1, name=f"{name}.{consumer}.dlq")
    places = Places(bootstrap, database_url, name, "", consumer)
    migrated = tidegate("migrate", variables=places.variables())
    assert migrated.code == 0, migrated.err
    database.execute(database_url, *TABLES)
    await asyncio.to_thread(set_session, bootstrap, consumer, SESSION_MS)
    db = await asyncpg.connect(database_url)
    made = Supervised(places, folder, db)
    try:
        yield made
    finally:
        made.end()
        await db.close()
