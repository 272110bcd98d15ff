"""kill -9 of the relay while it publishes: what is in the outbox goes out, and only an id can come twice."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.services.topics import Topic
from tests.support.crash_check import MESSAGE_ID, differences, header_of, read_all
from tests.support.crash_input import Input
from tests.support.crash_world import World, seeds, world

KILLS: Final = 6
RECORDS: Final = 3_000
SESSION_MS: Final = 1_500

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", seeds())
async def test_a_killed_relay_loses_nothing_and_makes_no_new_id(
    seed: int, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """What if it dies between the send and the mark? The rows are sent again, with the ids that they have."""
    async with world(tmp_path, kafka_bootstrap, database_url, topic, session_ms=SESSION_MS) as group:
        chance = Random(seed)
        group.produce(Input(seed).burst(RECORDS))
        for _ in range(KILLS):
            worker = group.start()
            await _until_publishing(group, chance.randrange(1, 150))
            group.kill(worker)
        worker = group.start()
        await group.until_settled()
        found = await differences(group)
        assert not found, f"seed {seed}\n" + "\n".join(found)
        messages = read_all(kafka_bootstrap, group.places.out_topic)
        ids = {header_of(message, MESSAGE_ID) for message in messages}
        print(f"seed {seed}: {len(messages) - len(ids)} repeats of {len(ids)} ids")
        await group.stop(worker)


async def _until_publishing(group: World, rows: int) -> None:
    """Some more rows went out since now, and others wait."""
    before = await group.db.fetchval("SELECT count(published_at) FROM tidegate.outbox")

    async def publishing() -> bool:
        row = await group.db.fetchrow("SELECT count(*), count(published_at) FROM tidegate.outbox")
        assert row is not None, "an aggregate has a row"
        return row[1] >= before + rows and row[1] < row[0]

    await group.until(publishing, "rows that go out while others wait")
