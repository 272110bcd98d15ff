"""The Kafka port's contract, kept alike by the fake, by librdkafka's mock cluster and by a real broker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator

import pytest

from tests.support.kafka_desk import WAIT_S, Desk, PlainIntake
from tests.support.kafka_worlds import Make, World
from tidegate.consumers.client.ports import ClientStopped, CommitAnswer
from tidegate.consumers.client.steering import HOLD_MAX_S
from tidegate.inbox.event import Partition


@contextlib.asynccontextmanager
async def joined(make_world: Make, desk: Desk | None = None) -> AsyncGenerator[World]:
    """A world whose member owns all four partitions."""
    desk = desk or Desk()
    world = make_world(desk, PlainIntake())
    desk.port = world.port
    world.port.start()
    try:
        await desk.until(lambda: len(desk.owned) == 4, "four partitions")
        yield world
    finally:
        await world.port.stop(10)


def places(world: World) -> list[Partition]:
    return [Partition(world.topic, number) for number in range(4)]


def fill(world: World, each: int) -> None:
    for partition in places(world):
        for number in range(each):
            world.write(partition, b"%d" % number)


async def turns(world: World, seconds: float = 0.0) -> None:
    """Let the poll loop turn at least three times, and for at least `seconds`."""
    until = time.monotonic() + seconds
    for _ in range(3):
        await world.port.committed(places(world))
    while time.monotonic() < until:
        await world.port.committed(places(world))


async def test_nothing_is_delivered_before_somebody_says_where_to_begin(make_world: Make) -> None:
    desk = Desk(start_at=None)
    async with joined(make_world, desk) as world:
        fill(world, 3)
        await turns(world, 0.3)
        assert desk.count() == 0
        assert not desk.said("offset_reset")
        first = places(world)[0]
        world.port.seek(first, desk.owned[first], 1)
        await desk.until(lambda: desk.offsets(first) == [1, 2])
        await turns(world)
        assert desk.count() == 2


async def test_records_come_whole_in_order_and_once(make_world: Make) -> None:
    async with joined(make_world) as world:
        desk, here = world.desk, places(world)[1]
        world.write(here, b"", key=b"")
        world.write(here, None, key=None, headers=(("a", b"1"), ("a", None), ("b", b"")))
        fill(world, 50)
        await desk.until(lambda: desk.count() == 202)
        assert desk.offsets(here) == list(range(52))
        assert desk.next_offsets[here] == 52
        empty, nothing = desk.records[here][0], desk.records[here][1]
        assert (empty.key, empty.value, empty.headers) == (b"", b"", ())
        assert (nothing.key, nothing.value) == (None, None)
        assert nothing.headers == (("a", b"1"), ("a", None), ("b", b""))


async def test_a_stale_epoch_seeks_nothing(make_world: Make) -> None:
    async with joined(make_world) as world:
        desk, here = world.desk, places(world)[0]
        fill(world, 2)
        await desk.until(lambda: desk.count() == 8)
        world.port.seek(here, desk.owned[here] - 1, 0)
        await turns(world, 0.1)
        assert desk.offsets(here) == [0, 1]
        world.port.seek(here, desk.owned[here], 0)
        await desk.until(lambda: desk.offsets(here) == [0, 1, 0, 1])


@pytest.mark.parametrize("lasting_s", [0.0, HOLD_MAX_S * 1.5], ids=["short", "lasting"])
async def test_a_pause_makes_no_hole_and_no_repeat(make_world: Make, lasting_s: float) -> None:
    async with joined(make_world) as world:
        desk, all_of_it = world.desk, frozenset(places(world))
        for round_ in range(1, 4):
            world.port.pause(all_of_it)
            await turns(world)
            before = desk.count()
            fill(world, 20)
            await turns(world, lasting_s)
            assert desk.count() == before, "paused"
            world.port.resume(all_of_it)
            await desk.until(lambda total=80 * round_: desk.count() == total)
        for partition in places(world):
            assert desk.offsets(partition) == list(range(60))


async def test_some_are_paused_while_others_flow(make_world: Make) -> None:
    async with joined(make_world) as world:
        desk = world.desk
        still, flowing = places(world)[0], places(world)[1]
        world.port.pause(frozenset({still}))
        await turns(world)
        fill(world, 10)
        await desk.until(lambda: desk.offsets(flowing) == list(range(10)))
        assert desk.offsets(still) == []
        world.port.resume(frozenset({still}))
        await desk.until(lambda: desk.offsets(still) == list(range(10)))


async def test_a_seek_while_paused_waits_for_the_resume(make_world: Make) -> None:
    async with joined(make_world) as world:
        desk, here = world.desk, places(world)[0]
        fill(world, 5)
        await desk.until(lambda: desk.count() == 20)
        world.port.pause(frozenset({here}))
        world.port.seek(here, desk.owned[here], 3)
        await turns(world, 0.1)
        assert desk.offsets(here) == [0, 1, 2, 3, 4]
        world.port.resume(frozenset({here}))
        await desk.until(lambda: desk.offsets(here) == [0, 1, 2, 3, 4, 3, 4])


async def test_the_end_of_an_empty_partition_is_told(make_world: Make) -> None:
    async with joined(make_world) as world:
        desk = world.desk
        await desk.until(lambda: len(desk.said("reached")) == 4)
        assert {(n.partition, n.value) for n in desk.said("reached")} == {(p, 0) for p in places(world)}


async def test_an_intake_that_stalls_is_asked_again_and_loses_nothing(make_world: Make) -> None:
    """A registry that is away stops its partition only, and delivery goes on exactly where it stalled.

    Case: B29
    Parts: fake, mock, real (Kafka)
    Red when: partitions.py's `stall` does not set the position
    """
    async with joined(make_world) as world:
        desk, here = world.desk, places(world)[0]
        world.intake.stall_at.add((here, 3))
        fill(world, 6)
        await desk.until(lambda: len(desk.said("stalled", here)) >= 2, "a second try")
        assert desk.offsets(here) == [0, 1, 2]
        await desk.until(lambda: desk.count() == 3 + 18)
        world.intake.stall_at.clear()
        await desk.until(lambda: bool(desk.said("recovered", here)))
        await desk.until(lambda: desk.offsets(here) == [0, 1, 2, 3, 4, 5])


async def test_a_position_out_of_range_is_told_and_waits_for_a_seek(make_world: Make) -> None:
    """A checkpoint beyond the end is never turned into another position by the client.

    Case: B07
    Parts: fake, mock, real (Kafka)
    Red when: errors.py maps _AUTO_OFFSET_RESET to Kind.WARN
    """
    async with joined(make_world) as world:
        desk, here = world.desk, places(world)[0]
        fill(world, 5)
        await desk.until(lambda: desk.count() == 20)
        world.port.seek(here, desk.owned[here], 1_000)
        await desk.until(lambda: bool(desk.said("offset_reset", here)))
        await turns(world)
        assert desk.offsets(here) == [0, 1, 2, 3, 4]
        world.port.seek(here, desk.owned[here], 4)
        await desk.until(lambda: desk.offsets(here) == [0, 1, 2, 3, 4, 4])
        assert await world.port.commit({here: 5}) == {here: CommitAnswer.ACCEPTED}


async def test_commits_are_answered_and_can_be_read_back(make_world: Make) -> None:
    async with joined(make_world) as world:
        one, other = places(world)[:2]
        assert await world.port.committed([one, other]) == {one: None, other: None}
        assert await world.port.commit({one: 7}) == {one: CommitAnswer.ACCEPTED}
        assert await world.port.committed([one, other]) == {one: 7, other: None}
        assert await world.port.commit({}) == {}


async def test_the_cluster_answers_questions_about_its_topics(make_world: Make) -> None:
    async with joined(make_world) as world:
        fill(world, 3)
        assert await world.port.watermarks(places(world)) == dict.fromkeys(places(world), (0, 3))
        assert await world.port.partition_counts([world.topic, "no-such-topic"]) == {world.topic: 4}
        ids = await world.port.topic_ids([world.topic, "no-such-topic"])
        assert set(ids) == {world.topic, "no-such-topic"}
        assert ids["no-such-topic"] is None


@pytest.mark.parametrize("make_world", ["fake", "mock-consumer", "real-consumer", "real-classic"], indirect=True)
async def test_a_revoked_partition_is_committed_as_it_was_let_go(make_world: Make) -> None:
    """The mock's classic groups are left out: it takes seconds to collect members, and holds up all other requests of
    one that joins, so that commits and questions time out.
    """
    async with joined(make_world) as world:
        desk = world.desk
        fill(world, 5)
        await desk.until(lambda: desk.count() == 20)
        async with world.rival():
            await desk.until(lambda: bool(desk.said("revoking")), "a revocation")
            await turns(world)
            gone = sorted(set(places(world)) - set(desk.owned))
            assert gone
            give_up_s = time.monotonic() + WAIT_S
            while await world.port.committed(gone) != dict.fromkeys(gone, 5):  # it may still be draining
                assert time.monotonic() < give_up_s


@pytest.mark.parametrize("make_world", ["fake", "real-consumer", "real-classic"], indirect=True)
async def test_a_partition_comes_back_under_a_new_epoch(make_world: Make) -> None:
    """The mock is left out: it gives a departed member's partitions back only after half a minute."""
    async with joined(make_world) as world:
        desk, before = world.desk, dict(world.desk.owned)
        async with world.rival():
            await desk.until(lambda: bool(desk.said("revoking")), "a revocation")
            await desk.until(lambda: len(desk.owned) < 4)
        await desk.until(lambda: len(desk.owned) == 4, "the partitions back")
        revoked = {n.partition for n in desk.said("revoking")}
        for partition in places(world):
            assert (desk.owned[partition] > before[partition]) == (partition in revoked)


async def test_after_a_stop_every_call_raises_one_error(make_world: Make) -> None:
    """Whoever comes too late is told so, by one error of ours, and nothing hangs.

    Case: B13
    Parts: fake, mock, real (Kafka)
    Red when: thread.py's `_check_open` does nothing
    """
    async with joined(make_world) as world:
        port, here = world.port, places(world)[0]
        started = time.monotonic()
        await port.stop(10)
        assert time.monotonic() - started < 10
        for late in (
            lambda: port.pause(frozenset({here})),
            lambda: port.resume(frozenset({here})),
            lambda: port.seek(here, 1, 0),
            lambda: port.let_go(here, 1, None),
            port.start,
            port.polled_at,
        ):
            with pytest.raises(ClientStopped):
                late()
        for question in (
            port.committed([here]),
            port.watermarks([here]),
            port.commit({here: 1}),
            port.topic_ids([world.topic]),
            port.partition_counts([world.topic]),
        ):
            with pytest.raises(ClientStopped):
                await question
