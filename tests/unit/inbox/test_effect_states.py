"""The life of an effect, as data."""

from __future__ import annotations

import pytest

from tidegate.inbox.effect_states import NO_ROW, TRANSITIONS, EffectAct, EffectState, diagram, sources, target


def test_every_state_can_be_reached_and_none_is_a_dead_end_but_the_known_ones() -> None:
    assert set(TRANSITIONS.values()) == set(EffectState)
    left = {state for state, _ in TRANSITIONS if state is not NO_ROW}
    assert set(EffectState) - left == {EffectState.COMPLETED}


def test_evidence_is_taken_from_wherever_the_row_is() -> None:
    assert sources(EffectAct.COMPLETE) == set(EffectState) - {EffectState.COMPLETED}


def test_a_call_that_may_be_under_way_is_not_resolved_by_being_called_again() -> None:
    assert target(EffectState.INTENDED, EffectAct.INTEND) is EffectState.INTENDED
    with pytest.raises(KeyError):
        target(EffectState.COMPLETED, EffectAct.INTEND)


def test_the_diagram_shows_every_transition() -> None:
    shown = diagram().splitlines()
    assert len(shown) == len(TRANSITIONS) + 1
    assert "    [*] --> intended: intend" in shown
