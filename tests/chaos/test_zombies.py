"""Owners that die or freeze in the middle of a transaction, and wake up as zombies."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

import pytest

from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import Member, World, thorough, world

STOPPED_S: Final = 60.0 if thorough() else 20.0
"""Longer than the broker's session (6 s in the test broker) and than a takeover's patience (5 s)."""

BRAKE_S: Final = 25.0
"""Below the worker's statement timeout of 30 s, so that it is the takeover that ends the session."""

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


async def stay_stopped(group: World, since_s: float, more: Input) -> None:
    """Go on producing until the owner was stopped for long enough."""

    async def long_enough() -> bool:
        group.produce(more.burst(5))
        return time.monotonic() - since_s > STOPPED_S

    await group.until(long_enough, "the owner to be stopped for long", STOPPED_S + 30)


async def until_in_transaction(group: World, *members: Member) -> None:
    """Return once each of them has written something that is not committed."""

    async def all_are() -> bool:
        return all([await group.braking(member) for member in members])

    await group.until(all_are, "a transaction of each member")


async def test_a_stopped_owner_never_takes_its_fence_back(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """1. The owner of the only partition is stopped in the middle of its transaction, which holds the fence's lock.
    2. Kafka gives the partition to the other member, who ends that transaction and raises the epoch.
    3. The owner goes on: it believes that it owns the partition and writes, commits and relays. Its fence row does not
       come back, Kafka refuses it, and the epoch stays where it is: Kafka has nothing to give it.
    4. The other one leaves; now the partition is given to it, and it is a good owner.
    """
    async with world(tmp_path, kafka_bootstrap, database_url, topic, partitions=1) as group:
        more = Input(1)
        owner = group.start()
        await group.until_said(owner, "partition_taken")
        heir = group.start()
        await group.until_said(heir, '"started"')
        await group.brake("sums", BRAKE_S)
        group.produce(more.burst(100))
        await until_in_transaction(group, owner)
        owner.signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        await group.release()
        before = await group.fences()
        since = await group.reached()
        await group.until_said(heir, "partition_taken")
        taken_s = time.monotonic()
        await group.until_progress(since)
        print(f"taken {taken_s - stopped_s:.1f} s after the stop, progress {time.monotonic() - taken_s:.1f} s later")
        await stay_stopped(group, stopped_s, more)
        await group.until_settled()
        held = await group.fences()
        assert held == {0: before[0] + 1}
        owner.signal(signal.SIGCONT)
        since = await group.reached()
        await group.until_said(owner, "fence_lost")
        group.produce(more.burst(100))
        await group.until_settled()
        assert await group.fences() == held
        assert owner.said("partition_taken") == 1
        assert not await differences(group)
        await group.stop(heir)
        await group.until_said(owner, "partition_taken", 2)
        group.produce(more.burst(100))
        await group.until_settled()
        assert not await differences(group)
        await group.stop(owner)


async def test_one_killed_and_one_stopped_leave_the_sums_equal(
    tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """Both owners of a group go at once, in the middle of a transaction each; a survivor takes everything over."""
    async with world(tmp_path, kafka_bootstrap, database_url, topic) as group:
        more = Input(2)
        killed, stopped = group.start(), group.start()
        await group.until_said(killed, "partition_taken")
        await group.until_said(stopped, "partition_taken")
        await group.brake("sums", BRAKE_S)
        await group.brake("book", BRAKE_S)
        group.produce(more.burst(200))
        await until_in_transaction(group, killed, stopped)
        stopped.signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        group.kill(killed)
        await group.release()
        survivor = group.start()
        await group.until_said(survivor, "partition_taken", 6)
        taken_s = time.monotonic()
        print(f"all taken {taken_s - stopped_s:.1f} s after the ends")
        await group.until_settled()
        print(f"at the end {time.monotonic() - taken_s:.1f} s after that")
        await stay_stopped(group, stopped_s, more)
        stopped.signal(signal.SIGCONT)
        group.produce(more.burst(200))
        await group.until_said(stopped, "partition_taken", stopped.said("partition_taken") + 1)
        group.produce(more.burst(200))
        await group.until_settled()
        assert not await differences(group)
        await group.stop(survivor)
        await group.stop(stopped)
