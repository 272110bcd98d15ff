"""The database goes away, or ends sessions, at the worst moments: effects stay exactly once, nothing is dead."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tests.services import database
from tests.services.postgres import OwnServer
from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import LOOK_S, Member, World, seeds, world
from tests.support.losing_proxy import losing_proxy

RESTARTS: Final = 3
TERMINATIONS: Final = 40
ROUNDS: Final = 4
BURST: Final = 60

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

TERMINATE: Final = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name LIKE 'tidegate %'
"""


async def assert_untouched(group: World, worker: Member, note: str) -> None:
    """Each effect once, no failure row, no letter, and still the first process."""
    await group.until_settled()
    found = await differences(group)
    assert not found, f"{note}\n" + "\n".join(found)
    assert await group.db.fetchval("SELECT count(*) FROM tidegate.failure") == 0
    assert worker.alive
    await group.stop(worker)


# ------------------------------------------------------------------------------------------------------- kill points


async def _idle(group: World) -> None:
    """Before the first statement: whatever waits in the pool is dead when it is taken out."""
    await group.db.fetchval(TERMINATE + " AND state = 'idle'")


def _in_brake(place: str) -> Callable[[World], Awaitable[None]]:
    async def end(group: World) -> None:
        await group.brake(place, 25.0)

        async def ended() -> bool:
            return await group.db.fetchval(TERMINATE + " AND wait_event = 'PgSleep'") > 0

        await group.until(ended, f"a session in {place!r}")
        await group.release()
        await group.db.fetchval(TERMINATE + " AND wait_event = 'PgSleep'")

    return end


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(_idle, id="before the first statement"),
        pytest.param(_in_brake("book"), id="between a command's effect and its claim"),
        pytest.param(_in_brake("sums"), id="between a projection's effect and its checkpoint"),
        pytest.param(_in_brake("checkpoint"), id="before COMMIT"),
        pytest.param(_in_brake("commit"), id="inside a batch's COMMIT"),
        pytest.param(_in_brake("commit-of-book"), id="inside a command's COMMIT"),
    ],
)
async def test_a_session_that_is_ended_at_any_point_costs_an_attempt_and_nothing_else(
    point: Callable[[World], Awaitable[None]], tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """pg_terminate_backend under a worker that runs: each effect once, no dead letter, no restart.

    Case: B48
    Parts: real (Kafka, PostgreSQL, process)
    Red when: dlq/rule_tables.py `OF_FAULT` maps Fault.DEPENDENCY to None
    """
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(3, poisoned=False)
        worker = group.start()
        await group.until_said(worker, "partition_taken", 6)
        for _ in range(ROUNDS):
            group.produce(more.burst(BURST))
            await point(group)
        group.produce(more.burst(BURST))
        await assert_untouched(group, worker, "after the sessions' ends")


async def test_a_commit_whose_answer_is_lost_is_done_once(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """The server committed, the worker does not know: it does everything again, and the inbox answers.

    1. COMMIT reaches the server, which does it. 2. The connection is cut before the answer. 3. The worker takes a new
    connection, claims the same events: all of them are taken. 4. The checkpoints stand where this batch wanted to put
    them, which is recognised as done.

    Case: B48
    Parts: real (Kafka, PostgreSQL, process), a proxy of the test's own that drops the reply
    Red when: inbox/claim.py `claim` returns `Claimed(None, {})` when the insert gave back fewer ids
    """
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group, losing_proxy(database_url) as (url, net):
        more = Input(4, poisoned=False)
        worker = group.start(TIDEGATE_DATABASE_URL=url)
        await group.until_said(worker, "partition_taken", 6)
        for lost in range(3, 3 * 12, 3):
            net.to_lose = 3
            group.produce(more.burst(BURST))

            async def are_lost(wanted: int = lost) -> bool:
                return net.lost >= wanted

            await group.until(are_lost, "answers that are lost")
        await assert_untouched(group, worker, f"{net.lost} answers were lost")


async def test_a_table_that_is_altered_under_load_costs_no_event(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """ALTER TABLE ADD COLUMN makes cached plans stale, inside open transactions: tried again, never dead.

    Case: B48
    Parts: real (Kafka, PostgreSQL, process)
    Red when: inbox/faults.py leaves `_is_stale_plan` out of `classify`
    """
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(5, poisoned=False)
        worker = group.start()
        await group.until_said(worker, "partition_taken", 6)
        for number in range(ROUNDS):
            for table in ("public.journal", "public.counts", "tidegate.failure"):
                since = await group.reached()
                group.produce(more.burst(BURST))
                await group.until_progress(since)
                await group.db.execute(f"ALTER TABLE {table} ADD COLUMN more_{number} int")
        await assert_untouched(group, worker, "after ALTER TABLE")


# ------------------------------------------------------------------------------------------------- restarts, at random


@pytest.mark.parametrize("seed", seeds())
async def test_sessions_that_end_at_random_moments_under_load_change_nothing(
    seed: int, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        chance, more = Random(seed), Input(seed, poisoned=False)
        worker = group.start()
        await group.until_said(worker, "partition_taken", 6)
        for _ in range(TERMINATIONS):
            since = await group.reached()
            group.produce(more.burst(20))
            await asyncio.sleep(chance.uniform(0, 0.05))  # the moment itself is random: nothing is waited for
            share = chance.choice((0.3, 1.0))
            await group.db.fetchval(TERMINATE + f" AND random() < {share}")
            await group.until_progress(since)  # ends without a pause would use up all attempts of one event
        await assert_untouched(group, worker, f"seed {seed}")


@pytest.fixture
async def own_server() -> AsyncIterator[OwnServer]:
    server = await asyncio.to_thread(OwnServer)
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        await asyncio.to_thread(server.remove)


@asynccontextmanager
async def _away(server: OwnServer, group: World, next_end: signal.Signals) -> AsyncGenerator[None]:
    await group.db.close()
    await asyncio.to_thread(server.stop)
    yield
    await asyncio.to_thread(server.start, next_end)
    group.db = await _connect(group.places.database_url)


async def _connect(url: str) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(url)


async def test_a_database_that_is_restarted_under_load_costs_nothing_but_time(
    own_server: OwnServer, tmp_path: Path, kafka_bootstrap: str, topic: Topic
) -> None:
    """Ends of three kinds: tidied up, crashed, and tidied up again; the worker waits, and goes on by itself."""
    database.execute(own_server.url, "CREATE DATABASE crash", "ALTER DATABASE crash SET search_path = ''")
    url = urlunsplit(urlsplit(own_server.url)._replace(path="/crash"))
    async with world(tmp_path, kafka_bootstrap, url, topic) as group:
        more = Input(6, poisoned=False)
        worker = group.start()
        await group.until_said(worker, "partition_taken", 6)
        for number, end in enumerate((signal.SIGQUIT, signal.SIGINT, signal.SIGINT), 1):
            since = await group.reached()
            group.produce(more.burst(3 * BURST))
            await group.until_progress(since)
            async with _away(own_server, group, end):
                group.produce(more.burst(BURST))
                give_up = asyncio.get_running_loop().time() + 30
                while worker.said("dependency_away") < number:
                    assert worker.alive, worker.log()
                    assert asyncio.get_running_loop().time() < give_up, worker.log()
                    await asyncio.sleep(LOOK_S)
        group.produce(more.burst(BURST))
        await assert_untouched(group, worker, "after the restarts")
