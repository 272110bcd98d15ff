"""When reading pauses because too many events wait."""

from __future__ import annotations

import pytest

from tidegate.dlq.policy import AtLimit, FailurePolicy
from tidegate.dlq.pressure import PATIENCE_S, Pressure


def pressure(at_limit: AtLimit) -> Pressure:
    return Pressure(FailurePolicy(parked_max=1_000, at_limit=at_limit))


@pytest.mark.parametrize("at_limit", ["pause", "dead"])
def test_it_is_pressed_before_the_limit_and_let_go_far_below(at_limit: AtLimit) -> None:
    pressed = pressure(at_limit)
    counts = [0, 799, 800, 900, 700, 601, 600, 799, 800]
    assert [pressed.counted(n, 0.0) for n in counts] == [False, False, True, True, True, True, False, False, True]


def test_where_the_limit_pauses_nothing_but_a_shorter_queue_lets_it_go() -> None:
    pressed = pressure("pause")
    assert all(pressed.counted(900, 0.0 + n * PATIENCE_S) for n in range(100))


def test_where_the_limit_buries_a_queue_that_stays_as_long_is_filled_up_to_it() -> None:
    pressed = pressure("dead")
    assert pressed.counted(900, 0.0)
    assert pressed.counted(900, PATIENCE_S - 1)
    assert not pressed.counted(900, PATIENCE_S)
    assert not pressed.counted(1_000, PATIENCE_S + 5), "it was tried: no pause helps"
    assert not pressed.counted(600, PATIENCE_S + 10)
    assert pressed.counted(800, PATIENCE_S + 15), "short again in between: another try"


def test_where_the_limit_buries_a_queue_that_gets_shorter_is_waited_for() -> None:
    pressed = pressure("dead")
    assert all(pressed.counted(900 - n, n * (PATIENCE_S - 1)) for n in range(100))
