"""kill -9 at every named point of every kind's path: nothing lost or done twice, UNKNOWN where nobody can know.

`make test-crash` walks through every point of every kind; without it each point has its turn once, and each kind has
some (what is sent has two: a letter, and a record that a handler published). The provider that is called counts its
calls, and is the judge.
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
from tidegate.inbox.points import Point, Writes

ELSEWHERE: Final = {
    Writes.GIVE_BACK: "tests/chaos/test_rare_points.py::test_a_kill_around_the_giving_back_of_a_fence",
    Writes.SUSPECT: "tests/chaos/test_rare_points.py::test_a_kill_around_the_mark_of_what_is_handled_alone",
    Writes.BREAKER: "tests/chaos/test_rare_points.py::test_a_kill_around_what_people_are_shown_of_a_breaker",
    Writes.SEAL: "tests/chaos/test_sealing.py::test_a_killed_pass_is_whole_or_not_there",
}
"""Transactions that no kind of input leads to, and the test that ends the process on both sides of their commit. They
need a trouble of their own first: a member that froze, an unclean end, a handler that always fails; and the sealer has
no input."""

CHAINS: Final = chains(every_step(), 12) if thorough() else chains(some_steps(), 4)


def test_the_matrix_has_every_point_and_every_kind() -> None:
    """A point that is added to the code is added to the matrix."""
    for steps in (some_steps(), every_step()):
        assert {step.point for step in steps} == set(Point) - {point for writes in ELSEWHERE for point in writes.value}
        assert {step.kind for step in steps} == set(Kind)


def test_what_the_matrix_leaves_out_has_a_test_of_its_own() -> None:
    """Which names each of its points."""
    root = Path(__file__).parents[2]
    for writes, where in ELSEWHERE.items():
        path, name = where.split("::")
        text = (root / path).read_text(encoding="utf-8")
        arranged = text.partition(f"async def {name}(")[0].rpartition("@pytest.mark.parametrize(")[2]
        assert f"async def {name}(" in text
        assert all(point.name in arranged or point.value in arranged for point in writes.value), where


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
