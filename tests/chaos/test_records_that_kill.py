"""A record that kills whoever touches it becomes a letter after three deaths, and nothing else suffers from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.services.topics import Topic
from tests.support.killer_world import supervised

DEATHS_MAX = 3


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kills", ["command", "projection", "memory", "codec"])
async def test_a_record_that_kills_the_process_becomes_a_letter(
    kills: str, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """By a signal, by taking all memory, in the middle of decoding: after three deaths it is dead, undecoded.

    Its neighbours, of its key, of its partition and of others, are handled exactly once by every handler. The command
    line lists the letter; replayed to a repaired app it is handled once by those that had not handled it.

    Case: B34
    Parts: real (Kafka, PostgreSQL, processes)
    Red when: ownership.py reads `crashes >= 4` for `crashes >= SUSPECTED_FROM`
    """
    async with supervised(tmp_path, kafka_bootstrap, database_url, topic) as world:
        neighbours = [f"{place}-{n}" for place in ("before", "after", "other", "elsewhere") for n in range(5)]
        world.send(*neighbours[:5], key="boom")
        world.send("boom", key="boom", kills=True)
        world.send(*neighbours[5:10], key="boom")
        world.send(*neighbours[10:15], key="other")
        world.send(*neighbours[15:], partition=1, key="else")
        world.start(KILLS=kills)
        await world.until(world.has_letter, "the letter")
        assert world.deaths <= DEATHS_MAX
        assert await world.letters() == [("killed_process", "", 5)]

        async def all_done() -> bool:
            return all([await world.done(handler) >= Counter(neighbours) for handler in ("command", "projection")])

        await world.until(all_done, "the neighbours")
        deaths = world.deaths
        for handler in ("command", "projection"):
            assert (await world.done(handler)) - Counter(["boom"]) == Counter(neighbours)

        listed = world.tidegate("dlq", "list")
        assert listed.code == 0, listed.err
        assert "killed_process" in listed.out
        await world.stop()
        world.start()
        replayed = world.tidegate("dlq", "replay", "--dead-reason", "killed_process", "--reason", "repaired")
        assert replayed.code == 0, replayed.err

        async def boom_is_done() -> bool:
            return all([(await world.done(handler))["boom"] for handler in ("command", "projection")])

        await world.until(boom_is_done, "the replayed record")
        await world.stop()
        for handler in ("command", "projection"):
            assert await world.done(handler) == Counter([*neighbours, "boom"])
        assert (world.deaths, await world.letters()) == (deaths, [])
