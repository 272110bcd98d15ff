"""kill -9 at every named point of every kind's path: nothing lost or done twice, UNKNOWN where nobody can know.

`make test-crash` walks through every point of every kind; without it each point has its turn once, with the kinds in
turn. The provider that is called counts its calls, and is the judge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.services.topics import Topic
from tests.support.crash_world import thorough
from tests.support.matrix import Kind, Step, chains, every_step, some_steps
from tests.support.matrix_check import differences
from tests.support.matrix_world import chain
from tidegate.inbox.points import Point

ELSEWHERE: Final = {
    Point.BEFORE_GIVE_BACK: "passed where Kafka refuses a takeover that froze: test_zombies.py",
    Point.AFTER_GIVE_BACK: "the same",
    Point.BEFORE_SUSPECT: "passed after two deaths in a row at one place: test_records_that_kill.py",
    Point.AFTER_SUSPECT: "the same",
    Point.BEFORE_BREAKER: "passed where a provider is away: tests/integration/inbox/test_provider_breakers.py",
    Point.AFTER_BREAKER: "the same",
    Point.BEFORE_SEAL: "the sealer's, in its own time: tests/chaos/test_sealing.py",
    Point.AFTER_SEAL: "the same",
}
"""Points that no kind of input leads to."""

CHAINS: Final = chains(every_step(), 8) if thorough() else chains(some_steps(), 4)


def test_the_matrix_has_every_point_and_every_kind() -> None:
    """A point that is added to the code is added to the matrix."""
    for steps in (some_steps(), every_step()):
        assert {step.point for step in steps} == set(Point) - set(ELSEWHERE)
        assert {step.kind for step in steps} == set(Kind)


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps", CHAINS, ids=range(len(CHAINS)))
async def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    steps: list[Step], tmp_path: Path, kafka_bootstrap: str, migrated_url: str, topic: Topic
) -> None:
    """Each worker of the chain dies at its point; the next one works off what it left, and dies at another one.

    Case: B36
    Parts: real (Kafka, PostgreSQL, processes)
    Red when: consumers/worker/relaying.py marks records before it sends them
    """
    async with chain(tmp_path, kafka_bootstrap, migrated_url, topic) as made:
        for step in steps:
            await made.kill_at(step)
        await made.settle()
        found = await differences(made)
        assert not found, "\n".join(found)
