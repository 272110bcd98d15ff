"""A handler that takes longer than the poll interval is no reason to lose a partition."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import world

pytestmark = pytest.mark.crash

POLL_MS = 6_000
HANDLER_S = 8.0


async def test_a_handler_beyond_the_poll_interval_loses_nothing_in_a_group_of_two(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """Handlers of 8 s under a poll interval of 6 s, two members: nobody is thrown out, each effect is there once.

    Case: B05
    Parts: real (Kafka, PostgreSQL, processes)
    Red when: consumers/client/thread.py `_turn` returns before it reads while everything is paused
    """
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(11)
        interval = {
            "TIDEGATE_KAFKA_CLIENT_MAX_POLL_INTERVAL_MS": str(POLL_MS),
            "TIDEGATE_WORKER_WINDOW_RECORDS_MAX": "10",  # so that all is paused while handlers run
        }
        first = group.start(**interval)
        await group.until_said(first, "partition_taken", 6)
        second = group.start(**interval)
        await group.until_said(second, "partition_taken", 3)
        members = (first, second)
        held = await group.fences()
        await group.brake("sums", HANDLER_S)
        await group.brake("book", HANDLER_S)
        group.produce(more.burst(80))

        async def both_sleep() -> bool:
            return len(await group.braking_members()) == 2

        await group.until(both_sleep, "a handler in each member")
        await group.release()
        await group.until_settled()
        assert await group.fences() == held, "no partition changed hands"
        assert not await differences(group)
        for member in members:
            assert member.said("lost") == 0, member.log()
            await group.stop(member)
