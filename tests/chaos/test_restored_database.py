"""A database that was put back to an earlier copy: the worker stops and says what to do, and after that goes on."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.services import database
from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import World, world

pytestmark = [pytest.mark.crash, pytest.mark.timeout(200)]

INSTRUCTION = "tidegate restored"


def named(url: str, name: str) -> str:
    """The same server's other database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@pytest.fixture
def copy_url(postgres_url: str) -> Generator[str]:
    """Where the earlier copy is to be; dropped at the end."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield named(postgres_url, name)
    database.execute(postgres_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@asynccontextmanager
async def nobody_connected(group: World, postgres_url: str) -> AsyncGenerator[None]:
    """What CREATE DATABASE ... TEMPLATE and RENAME ask for."""
    await group.db.close()
    name = urlsplit(group.places.database_url).path[1:]
    database.execute(
        postgres_url,
        f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false',
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    yield
    with contextlib.suppress(asyncpg.InvalidCatalogNameError):
        database.execute(postgres_url, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    group.db = await asyncpg.connect(group.places.database_url)


async def copy(group: World, postgres_url: str, copy_url: str) -> None:
    """Last night's backup."""
    source, name = urlsplit(group.places.database_url).path[1:], urlsplit(copy_url).path[1:]
    async with nobody_connected(group, postgres_url):
        database.execute(
            postgres_url,
            f'CREATE DATABASE "{name}" TEMPLATE "{source}"',
            f"ALTER DATABASE \"{name}\" SET search_path = ''",
        )


async def go_on(group: World, more: Input, *, in_order: bool = True) -> None:
    """The operator declares it, and everything is as the input demands, in the copy."""
    said = group.tidegate("restored", "--reason", "back to the copy", "--consumer", group.places.consumer, "--yes")
    assert said.code == 0, said.err
    group.produce(more.burst(100))
    worker = group.start()
    await group.until_settled()
    found = await differences(group, in_order=in_order)
    assert not found, "\n".join(found)
    await group.stop(worker)


async def test_a_worker_that_starts_on_an_earlier_copy_stops_with_instructions(
    tmp_path: Path, kafka_bootstrap: str, postgres_url: str, database_url: str, copy_url: str, topic: Topic
) -> None:
    """Kafka holds a later offset than the database ever wrote down: somebody must say what happened."""
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(7)
        group.produce(more.burst(300))
        worker = group.start()
        await group.until_settled()
        await group.stop(worker)
        await copy(group, postgres_url, copy_url)
        group.produce(more.burst(300))
        worker = group.start()
        await group.until_settled()
        await group.stop(worker)
        await group.move_to(copy_url)
        fences = await group.db.fetch("SELECT partition, kafka_offset, epoch FROM tidegate.fence")
        behind = {
            row["partition"]: row["epoch"] for row in fences if row["kafka_offset"] < group.ends[row["partition"]]
        }
        assert behind
        lost = group.start()
        assert await lost.ended() == 70
        assert INSTRUCTION in lost.log()
        assert behind.items() <= (await group.fences()).items(), "it took none of them over"
        group.forget(lost)
        await go_on(group, more)


async def test_a_database_that_is_put_back_under_a_running_worker_stops_it(
    tmp_path: Path, kafka_bootstrap: str, postgres_url: str, database_url: str, copy_url: str, topic: Topic
) -> None:
    """A checkpoint is lower than this worker confirmed it: the compare-and-set finds out, and nothing is guessed."""
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(8)
        group.produce(more.burst(200))
        worker = group.start()
        await group.until_settled()
        await copy(group, postgres_url, copy_url)
        group.produce(more.burst(200))
        await group.until_settled()
        here, earlier = urlsplit(database_url).path[1:], urlsplit(copy_url).path[1:]
        async with nobody_connected(group, postgres_url):
            database.execute(
                postgres_url,
                f'ALTER DATABASE "{here}" RENAME TO "{earlier}-was"',
                f'ALTER DATABASE "{earlier}" RENAME TO "{here}"',
                f'ALTER DATABASE "{earlier}-was" RENAME TO "{earlier}"',
            )
        group.produce(more.burst(50))
        assert await worker.ended() == 70
        assert INSTRUCTION in worker.log()
        group.forget(worker)
        await go_on(group, more, in_order=False)
