"""kill -9 at the points that no kind of input leads to: each needs a trouble first, and loses nothing in it.

The crash matrix leaves these to the tests here, and to that of the sealer.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.services.topics import Topic
from tests.support.crash_check import differences
from tests.support.crash_input import Input
from tests.support.crash_world import Member, world
from tests.support.killer_app import LETTERS_MAX
from tests.support.killer_world import SESSION_MS, Supervised, supervised
from tidegate.inbox.points import AT, STOP_AT, Point

HANDLERS: Final = ("command", "projection")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


async def dies(member: Member) -> None:
    code = await member.ended()
    assert code == -signal.SIGKILL, f"it ended with {code}\n{member.log()[-4000:]}"


@pytest.mark.parametrize("point", [Point.BEFORE_SUSPECT, Point.AFTER_SUSPECT])
async def test_a_kill_around_the_mark_of_what_is_handled_alone(
    point: Point, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """The mark before the first record that is handled alone is not there, or is there and nobody has touched it.

    Case: B34
    Parts: real (Kafka, PostgreSQL, processes)
    Red when: inbox/suspects.py `let_go` or `unmark` deletes nothing, or killed.py reads `DEATHS_ALONE = 1` (after)
    """
    async with supervised(tmp_path, kafka_bootstrap, database_url, topic, partitions=1) as group:
        ids = [f"e{n}" for n in range(20)]
        group.send(*ids[:10])
        group.start()
        await group.until(lambda: done(group, ids[:10]), "the first ones")
        group.member.kill()
        group.send(*ids[10:])
        await dies(group.start(**{AT: point.value}))
        group.start()
        await group.until(lambda: done(group, ids), "all of them")
        await group.stop()
        for handler in HANDLERS:
            assert await group.done(handler) == Counter(ids)
        assert await group.letters() == []


async def done(group: Supervised, ids: list[str]) -> bool:
    """Whether every handler has handled these."""
    return all([await group.done(handler) >= Counter(ids) for handler in HANDLERS])


@pytest.mark.parametrize(("point", "shown"), [(Point.BEFORE_BREAKER, 0), (Point.AFTER_BREAKER, 1)])
async def test_a_kill_around_what_people_are_shown_of_a_breaker(
    point: Point, shown: int, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """What a breaker held back stood in memory: it is read again by a process whose breaker is closed.

    Case: B35
    Parts: real (Kafka, PostgreSQL, processes)
    Red when: consumers/worker/commands.py `_until_admitted` gives up an event that its breaker holds back
    """
    async with supervised(tmp_path, kafka_bootstrap, database_url, topic, partitions=1) as group:
        ids = [f"e{n}" for n in range(20)]
        group.send(*ids, fails=True)
        await dies(group.start(FAILS="1", **{AT: point.value}))
        assert await group.db.fetchval("SELECT count(*) FROM tidegate.breaker WHERE name LIKE 'dead/%'") == shown
        dead = [offset for _, _, offset in await group.letters()]
        assert len(dead) == LETTERS_MAX
        group.start()
        others = [id_ for offset, id_ in enumerate(ids) if offset not in dead]

        async def all_done() -> bool:
            return await group.done("command") >= Counter(others) and await group.done("projection") >= Counter(ids)

        await group.until(all_done, "what was held back")
        await group.stop()
        assert await group.done("command") == Counter(others)
        assert await group.done("projection") == Counter(ids)
        assert [offset for _, _, offset in await group.letters()] == dead


@pytest.mark.parametrize("point", [Point.BEFORE_GIVE_BACK, Point.AFTER_GIVE_BACK])
async def test_a_kill_around_the_giving_back_of_a_fence(
    point: Point, tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic
) -> None:
    """1. A member is given the only partition, and freezes before it takes the fence. 2. Kafka gives it to another one,
    who takes the fence and works. 3. The first goes on: it takes the fence from the true owner, hears that it lost the
    partition, and dies while it gives the fence back. 4. The true owner's fence row does not come back; it asks, and
    takes over again.

    Case: B34
    Parts: real (Kafka, PostgreSQL, processes)
    Red when: ownership.py `_take` does not ask `_is_given`, or reads the watermarks before `take_over` (the first time)
    """
    async with world(tmp_path, kafka_bootstrap, database_url, topic, partitions=1, session_ms=SESSION_MS) as group:
        more = Input(7)
        first = group.start()
        group.produce(more.burst(50))
        await group.until_settled()
        await group.stop(first)
        zombie = group.start(**{STOP_AT: Point.BEFORE_TAKEOVER.value, AT: point.value})

        async def stands_still() -> bool:
            return "\nState:\tT" in Path(f"/proc/{zombie.pid}/status").read_text(encoding="utf-8")

        await group.until(stands_still, "it to freeze")
        owner = group.start()
        await group.until_said(owner, "partition_taken")
        since = await group.reached()
        group.produce(more.burst(50))
        await group.until_progress(since)
        zombie.signal(signal.SIGCONT)
        await dies(zombie)
        group.forget(zombie)
        group.produce(more.burst(50))
        await group.until_settled()
        assert not await differences(group)
        await group.stop(owner)
