"""kill -9 of a replay, of the worker beside it, and of both: each letter has one effect, and the journal adds up.

Points are told by how many letters the replay has queued, and a moment behind that; a worker is killed once it has its
partitions, so that the one that is killed is one that works. The seed, in the test's name and in what it prints, gives
the same points, moments and victims again.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final, final

import asyncpg
import pytest

from tests.services import database
from tests.services.topics import Topic
from tests.support import killer_app
from tests.support.cli import start, tidegate
from tests.support.crash_world import Member, Places, seeds, set_session, thorough
from tests.support.killer_world import Supervised
from tests.support.running import PATIENCE_S

APP: Final = "tests.support.replay_app:app"
HANDLERS: Final = ("command", "projection")
PARTITIONS: Final = 2
SESSION_MS: Final = 1_500
VICTIMS: Final = ("replay", "worker", "both")
LOOK_S: Final = 0.02

RATE: Final = 10
"""Letters a second. Twenty kills take a minute, and the replay has to last for as long."""

MOMENT_S: Final = 1.0
"""Behind a point, at most: a worker looks four times in it, so a kill falls before, into or behind it."""


@final
class Operation:
    """A replay that runs beside a worker; each is started again when it was killed."""

    def __init__(self, places: Places, folder: Path, db: asyncpg.Connection[asyncpg.Record]) -> None:
        self.db = db
        self.places = places
        self._folder = folder
        self._variables = {**places.variables(), "REPAIRED": str(folder / "repaired")}
        self._started = 0
        self.hits: Counter[str] = Counter()
        self.worker: Member | None = None
        self.replay: subprocess.Popen[str] | None = None

    async def start_worker(self) -> None:
        """A process of the group; back once it has its partitions."""
        self._started += 1
        name = f"worker-{self._started}"
        self.worker = Member(name, self._folder / f"{name}.log", self._variables, APP)
        for _ in range(int(2 * PATIENCE_S / LOOK_S)):
            assert self.worker.alive, f"the worker left by itself\n{self.worker.log()[-3000:]}"
            if self.worker.log().count("partition_taken") == PARTITIONS:
                return
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"{name} gets no partitions\n{self.worker.log()[-3000:]}")

    def start_replay(self, *arguments: str) -> None:
        """`tidegate dlq replay ...`."""
        self._started += 1
        log = self._folder / f"replay-{self._started}.log"
        self.replay = start("dlq", "replay", *arguments, "--rate", str(RATE), log=log, variables=self._variables)

    async def until(self, query: str, wanted: int, what: str) -> None:
        """Return once the query gives as much, or the replay has ended."""
        for _ in range(int(2 * PATIENCE_S / LOOK_S)):
            if (await self.db.fetchval(query) or 0) >= wanted:
                return
            assert self.worker is not None
            assert self.worker.alive, f"the worker left by itself\n{self.worker.log()[-3000:]}"
            await asyncio.sleep(LOOK_S)
        raise AssertionError(f"waited for {what}, in vain")

    async def kill(self, victim: str) -> None:
        """kill -9, and a new one in its place."""
        assert self.worker is not None
        assert self.replay is not None
        self.hits[victim] += self.replay.poll() is None
        if victim in ("worker", "both"):
            self.worker.kill()
        if victim in ("replay", "both"):
            self.replay.kill()
            self.replay.wait()
        if victim in ("worker", "both"):
            await self.start_worker()
        if victim in ("replay", "both"):
            self.start_replay("resume", "1", "--yes")

    def tidegate(self, *arguments: str) -> Any:
        """A verb, to its end, as JSON."""
        return json.loads(tidegate(*arguments, "--json", variables=self._variables, timeout_s=120).out)

    def repair(self) -> None:
        """From now on the handlers can do their work."""
        (self._folder / "repaired").touch()

    def end(self) -> None:
        """End what still runs."""
        if self.replay is not None and self.replay.poll() is None:
            self.replay.kill()
            self.replay.wait()
        if self.worker is not None and self.worker.alive:
            self.worker.signal(signal.SIGCONT)
            self.worker.kill()


async def killed_at(points: int, events: int, seed: int, folder: Path, bootstrap: str, url: str, topic: Topic) -> None:
    """Kill at so many moments, spread over a replay of all letters; then judge."""
    chance, name = Random(seed), topic(partitions=PARTITIONS)
    places = Places(bootstrap, url, name, "", f"c-{name}"[:80])
    topic(partitions=1, name=places.letters)
    database.execute(url, *killer_app.TABLES)
    await asyncio.to_thread(set_session, bootstrap, places.consumer, SESSION_MS)
    operation = Operation(places, folder, await asyncpg.connect(url))
    try:
        await _bury(operation, events)
        operation.repair()
        operation.start_replay("--all", "--reason", "repaired", "--yes")
        for at, victim in _points(chance, points, events * len(HANDLERS)):
            await operation.until("SELECT replayed FROM tidegate.replay WHERE id = 1", at, f"letter {at}")
            await asyncio.sleep(chance.random() * MOMENT_S)
            print(f"seed {seed}: kill -9 of {victim} behind letter {at}")
            await operation.kill(victim)
        assert set(operation.hits) == set(VICTIMS), "each was killed while letters were queued"
        await _settle(operation)
        await _judge(operation, events)
    finally:
        operation.end()
        await operation.db.close()


def _points(chance: Random, points: int, letters: int) -> list[tuple[int, str]]:
    """Behind which letter who is killed: all victims as often as each other, in any order, before the replay's end."""
    victims = [VICTIMS[n % len(VICTIMS)] for n in range(points)]
    chance.shuffle(victims)
    return list(zip(sorted(chance.sample(range(1, letters * 4 // 5), points)), victims, strict=True))


async def _bury(operation: Operation, events: int) -> None:
    await operation.start_worker()
    Supervised(operation.places, Path(), operation.db).send(*[f"e-{n}" for n in range(events)])
    await operation.until(
        "SELECT count(*) FROM tidegate.failure WHERE state = 'dead'", events * len(HANDLERS), "the letters"
    )


async def _settle(operation: Operation) -> None:
    """The replay ends, its letters come to theirs; what the killing itself made a letter again is replayed too."""
    assert operation.replay is not None
    ended = await asyncio.to_thread(operation.replay.wait, 2 * PATIENCE_S)
    assert ended in (0, 1)
    for _ in range(5):
        await operation.until(
            "SELECT CASE WHEN count(*) = 0 THEN 1 ELSE 0 END FROM tidegate.failure WHERE state = 'queued'", 1, "its end"
        )
        if not await operation.db.fetchval("SELECT count(*) FROM tidegate.failure"):
            return
        operation.tidegate("dlq", "replay", "--all", "--reason", "killed", "--force", "--yes")
    raise AssertionError("letters that never come to an end")


async def _judge(operation: Operation, events: int) -> None:
    wanted = Counter({f"e-{n}": 1 for n in range(events)})
    for handler in HANDLERS:
        rows = await operation.db.fetch("SELECT id FROM public.done WHERE handler = $1", handler)
        assert Counter(row[0] for row in rows) == wanted, handler
    run = operation.tidegate("dlq", "replay", "resume", "1")
    letters = events * len(HANDLERS)
    assert (run["read"], run["replayed"] + run["skipped"], run["refused"]) == (letters, letters, 0)
    told = run["outcomes"]
    assert sum(told.values()) == run["replayed"]
    assert told["waiting"] == told["unknown"] == told["discarded"] == 0
    noted = await operation.db.fetchval(
        "SELECT count(DISTINCT failure_id) FROM tidegate.replay_letter WHERE replay = 1"
    )
    assert noted == run["replayed"] == letters
    audited = await operation.db.fetchval(
        "SELECT sum((details->>'replayed')::int) FROM tidegate.audit WHERE act = 'dlq_replay'"
        " AND (details->>'replay')::int = 1"
    )
    assert audited == letters


async def test_a_replay_and_its_worker_are_killed_and_each_letter_has_one_effect(
    tmp_path: Path, kafka_bootstrap: str, migrated_url: str, topic: Topic
) -> None:
    """The replay, the worker, and both at once; each goes on where its last commit stands.

    Case: B39
    Parts: real (PostgreSQL, Kafka, processes)
    Red when: dlq/replay_journal.py's advance does not note the rows
    """
    await killed_at(3, 60, 1, tmp_path, kafka_bootstrap, migrated_url, topic)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds())
async def test_kills_at_twenty_moments_double_and_lose_nothing(
    seed: int, tmp_path: Path, kafka_bootstrap: str, migrated_url: str, topic: Topic
) -> None:
    """Twenty points among all three victims; with `make test-crash` twenty for each of them.

    Case: B39
    Parts: real (PostgreSQL, Kafka, processes)
    Red when: dlq/replay_journal.py's advance does not note the rows
    """
    points, events = (60, 750) if thorough() else (20, 250)
    await killed_at(points, events, seed, tmp_path, kafka_bootstrap, migrated_url, topic)
