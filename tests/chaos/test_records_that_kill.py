"""A record that kills whoever touches it becomes a letter after three deaths, and nothing else suffers from it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import world as crash_world
from tests.support.killer_world import SESSION_MS, Supervised, supervised
from tests.support.suspicion import until_nothing_is_suspected

DEATHS_ALONE: Final = 2
DEATHS_MAX: Final = 3
"""One makes suspects; two more, with it alone in hand, make the culprit: one may be chance."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kills", ["command", "projection", "memory", "codec", "row"])
async def test_a_record_that_kills_the_process_becomes_a_letter(
    kills: str, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """By a signal, by taking all memory, in the middle of decoding, as a queued row: after three deaths it is dead.

    Its neighbours, of its key, of its partition and of others, are handled exactly once by every handler. The command
    line lists the letter. Replayed to the same app it costs two deaths more, and is dead again; replayed to a repaired
    one it is handled once by those that had not handled it.

    Case: B34
    Parts: real (Kafka, PostgreSQL, processes)
    Red when: ownership.py reads `SUSPECTED_FROM = 2`, or slow_way.py `_doubt` doubts nothing (row)
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
        assert world.deaths == DEATHS_MAX
        assert await world.letters() == [("killed_process", "command" if kills == "row" else "", 5)]

        async def all_done() -> bool:
            return all([await world.done(handler) >= Counter(neighbours) for handler in ("command", "projection")])

        await world.until(all_done, "the neighbours")
        for handler in ("command", "projection"):
            assert (await world.done(handler)) - Counter(["boom"]) == Counter(neighbours)
        listed = world.tidegate("dlq", "list")
        assert listed.code == 0, listed.err
        assert "killed_process" in listed.out

        before = world.deaths
        replay(world)
        await world.until(lambda: died(world, before + DEATHS_ALONE), "two more deaths")
        await world.until(world.has_letter, "the letter of the replayed one")
        assert world.deaths == before + DEATHS_ALONE
        assert [reason for reason, *_ in await world.letters()] == ["killed_process"]
        await world.stop()
        world.start()
        replay(world)

        async def boom_is_done() -> bool:
            return all([(await world.done(handler))["boom"] for handler in ("command", "projection")])

        await world.until(boom_is_done, "the replayed record")
        await world.stop()
        for handler in ("command", "projection"):
            assert await world.done(handler) == Counter([*neighbours, "boom"])
        assert (world.deaths, await world.letters()) == (before + DEATHS_ALONE, [])


def replay(world: Supervised) -> None:
    """What an operator does with all of them."""
    replayed = world.tidegate("dlq", "replay", "--dead-reason", "killed_process", "--reason", "repaired", "--yes")
    assert replayed.code == 0, replayed.err


async def died(world: Supervised, times: int) -> bool:
    """Whether so many processes have died."""
    return world.deaths >= times


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.crash)])
async def test_random_kills_under_load_leave_no_such_letter(
    kills: int, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """Whoever is killed was at work on some record: none of them is to blame (the other half of B34)."""
    chance, made = Random(kills), Input(kills)
    async with crash_world(tmp_path, kafka_bootstrap, database_url, topic, session_ms=SESSION_MS) as group:
        group.produce(made.burst(300))
        group.start()
        group.start()
        for _ in range(kills):
            since = await group.reached()
            group.produce(made.burst(60))
            await group.until_progress(since)
            await until_nothing_is_suspected(group)
            group.produce(made.burst(60))
            await asyncio.sleep(chance.uniform(0, 0.2))  # the moment itself is random: nothing is waited for
            group.kill(chance.choice(group.members))
            group.start()
        await group.until_settled()
        killed = await group.db.fetchval("SELECT count(*) FROM tidegate.failure WHERE reason = 'killed_process'")
        assert not killed
        assert not await differences(group)
        for member in tuple(group.members):
            await group.stop(member)
