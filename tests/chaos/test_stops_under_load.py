"""SIGTERM while work is in flight: it is finished and committed; a second SIGTERM does not wait for it."""

from __future__ import annotations

import signal
from pathlib import Path

import asyncpg
import pytest

from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import Member, World, world

pytestmark = pytest.mark.crash


async def until_both_in_flight(group: World, worker: Member) -> None:
    """A batch and a command's own transaction are open."""

    async def are_open() -> bool:
        rows = await group.db.fetch(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
        )
        return len(rows) >= 2

    await group.until(are_open, f"open transactions of {worker.name}")


async def test_what_is_in_flight_at_sigterm_is_finished_and_committed(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(9)
        worker = group.start()
        await group.until_said(worker, "partition_taken", 6)
        await group.brake("sums", 2.0)
        await group.brake("book", 2.0)
        group.produce(more.burst(60))
        await until_both_in_flight(group, worker)
        await group.release()
        await group.stop(worker)
        assert await group.db.fetchval("SELECT count(*) FROM public.journal") > 0
        assert await group.db.fetchval("SELECT count(*) FROM public.sums") > 0
        told = await group.db.fetchval("SELECT sum(kafka_offset) FROM tidegate.fence")
        released = await group.db.fetchval("SELECT count(*) FROM tidegate.fence WHERE released_at IS NOT NULL")
        assert released == len(await group.fences())
        lowest = await group.db.fetchval(
            "SELECT sum(low) FROM (SELECT min(next_offset) AS low FROM tidegate.checkpoint GROUP BY partition) lows"
        )
        assert told == lowest, "Kafka knows how far every handler is"
        worker = group.start()
        await group.until_settled()
        assert not await differences(group)
        await group.stop(worker)


async def test_the_second_sigterm_leaves_at_once_and_nothing_is_lost(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(10)
        worker = group.start()
        await group.until_said(worker, "partition_taken", 6)
        await group.brake("sums", 25.0)
        await group.brake("book", 25.0)
        group.produce(more.burst(60))
        await until_both_in_flight(group, worker)
        worker.signal(signal.SIGTERM)
        await group.until_said(worker, '"stopping"')
        assert await group.braking(worker), "what is in flight holds the stop up"
        worker.signal(signal.SIGTERM)
        assert await worker.ended(5) == 128 + signal.SIGTERM
        group.forget(worker)
        await group.release()
        assert await group.db.fetchval("SELECT count(*) FROM public.sums") == 0
        worker = group.start()
        await group.until_settled()
        assert not await differences(group)
        await group.stop(worker)


async def test_a_stop_in_the_middle_of_a_takeover_is_a_clean_stop(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """1. A session holds the fence rows, so the takeover waits. 2. SIGTERM: nothing is in flight, the client stops.
    3. The takeover comes through, and its seek finds no client any more: that is no failure.
    """
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        group.produce(Input(12).burst(50))
        worker = group.start()
        await group.until_settled()
        await group.stop(worker)
        stranger = await asyncpg.connect(database_url)
        await stranger.execute("BEGIN; SELECT FROM tidegate.fence FOR KEY SHARE")
        worker = group.start()

        async def takeover_waits() -> bool:
            return bool(
                await group.db.fetchval(
                    """SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"""
                )
            )

        await group.until(takeover_waits, "a takeover that waits")
        worker.signal(signal.SIGTERM)
        await group.until_said(worker, '"stopping"')
        await stranger.close()
        assert await worker.ended() == 0, worker.log()
        group.forget(worker)
