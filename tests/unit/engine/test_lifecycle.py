"""A partition's life goes one way, and its table is data."""

from __future__ import annotations

from tidegate.consumers.engine.partition import NOBODY, TRANSITIONS, PartitionLife, Phase, Step, lifecycle_diagram
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.window import Window
from tidegate.inbox.event import Partition


def test_no_step_leads_back() -> None:
    order = list(Phase)
    assert all(order.index(before) < order.index(after) for (before, _), after in TRANSITIONS.items())


def test_every_life_can_end_at_any_moment_and_only_once() -> None:
    assert {before for before, step in TRANSITIONS if step is Step.LOST} == set(Phase) - {Phase.GONE}
    assert all(before is not Phase.GONE for before, _ in TRANSITIONS)


def test_what_is_not_in_the_table_is_not_allowed() -> None:
    life = PartitionLife(Partition("t", 0), 1, Window(EnginePolicy()).account())
    assert not life.allows(Step.READY)
    life.take(Step.TAKE_OVER)
    assert life.allows(Step.READY)


def test_nobody_allows_no_step() -> None:
    assert not any(NOBODY.allows(step) for step in Step)


def test_the_diagram_shows_every_transition() -> None:
    lines = lifecycle_diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    live --> revoking: revoke" in lines
    assert len(lines) == len(TRANSITIONS) + 3
