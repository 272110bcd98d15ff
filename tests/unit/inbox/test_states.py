"""The life of a failure row, as a table."""

from __future__ import annotations

import pytest

from tidegate.inbox.outcome import FailureState
from tidegate.inbox.states import NO_ROW, TRANSITIONS, Act, diagram, sources, target


def test_every_state_can_be_reached_and_every_act_is_used() -> None:
    assert {to for to in TRANSITIONS.values() if to is not NO_ROW} == set(FailureState)
    assert {act for _, act in TRANSITIONS} == set(Act)


def test_only_a_discarded_row_stays_for_ever() -> None:
    assert {state for state in FailureState if not any(s is state for s, _ in TRANSITIONS)} == {FailureState.DISCARDED}


def test_an_act_is_legal_where_the_table_says_so_and_nowhere_else() -> None:
    assert sources(Act.REPLAY) == {FailureState.DEAD}
    assert target(FailureState.DEAD, Act.REPLAY) is FailureState.QUEUED
    with pytest.raises(KeyError):
        target(FailureState.DISCARDED, Act.REPLAY)


def test_the_diagram_is_the_table() -> None:
    lines = diagram().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    dead --> queued: replay" in lines
    assert len(lines) == 1 + len(TRANSITIONS)
