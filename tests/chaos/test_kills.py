"""kill -9 at random moments: whatever was under way, the end is what the input demands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final, final

import pytest

from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import Member, World, seeds, world
from tests.support.suspicion import until_nothing_is_suspected

KILLS: Final = 30
BURST: Final = 40
SESSION_MS: Final = 2_000
"""The broker gives a killed member up after this, so that thirty kills take a minute."""

pytestmark = pytest.mark.crash


@final
class Killer:
    """Kills members of a group of two, each time at another kind of moment."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = Random(seed)
        self._input = Input(seed)
        self._moments = (self._anywhere, self._in_commit, self._in_rebalance, self._in_transaction, self._at_takeover)
        self.said: list[str] = []

    async def run(self) -> None:
        """All kills, with input before each of them."""
        self._world.produce(self._input.burst(400))
        self._world.start()
        self._world.start()
        for number in range(KILLS):
            since = await self._world.reached()
            self._world.produce(self._input.burst(BURST))
            await self._world.until_progress(since)
            await until_nothing_is_suspected(self._world)
            moment = self._moments[number % len(self._moments)]
            self._world.produce(self._input.burst(BURST))
            victim = await moment()
            self.said.append(f"{moment.__name__[1:]}: {victim.name}")
            self._world.kill(victim)
            await self._world.release()
            while len(self._world.members) < 2:
                self._world.start()

    def _any(self) -> Member:
        return self._chance.choice(self._world.members)

    async def _anywhere(self) -> Member:
        await asyncio.sleep(self._chance.uniform(0, 0.1))  # the moment itself is random: nothing is waited for
        return self._any()

    async def _in_commit(self) -> Member:
        """The server is in the middle of COMMIT, and its answer finds nobody."""
        return await self._in_brake(self._chance.choice(("commit", "commit-of-book")))

    async def _in_transaction(self) -> Member:
        """Something is written, nothing is committed."""
        return await self._in_brake(self._chance.choice(("sums", "book", "checkpoint")))

    async def _in_brake(self, place: str) -> Member:
        await self._world.brake(place, 0.5)
        self._world.produce(self._input.burst(BURST))
        victims: list[Member] = []

        async def found() -> bool:
            victims[:] = await self._world.braking_members()
            return bool(victims)

        await self._world.until(found, f"a transaction in the brake {place!r}")
        return self._chance.choice(victims)

    async def _in_rebalance(self) -> Member:
        """A third member comes, partitions move."""
        third = self._world.start()
        await self._world.until_said(third, '"started"')
        await asyncio.sleep(self._chance.uniform(0, 1.0))
        return self._any()

    async def _at_takeover(self) -> Member:
        """A member has just taken one of its partitions, and is taking others."""
        third = self._world.start()
        await self._world.until_said(third, "partition_taken")
        return third


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", seeds())
async def test_thirty_kills_change_nothing(
    seed: int, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    async with world(tmp_path, kafka_bootstrap, database_url, topic, session_ms=SESSION_MS) as group:
        killer = Killer(group, seed)
        try:
            await killer.run()
            await group.until_settled()
        except AssertionError as error:
            error.add_note(f"seed {seed}, kills: {killer.said}")
            raise
        found = await differences(group)
        assert not found, f"seed {seed}\n" + "\n".join([*found, *killer.said])
        for member in tuple(group.members):
            await group.stop(member)
