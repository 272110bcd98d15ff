"""How long anything may be alone: one time for all that ask at once, whole again once nobody does."""

from __future__ import annotations

from tidegate.consumers.worker.solo import Bound
from tidegate.inbox.clock import ManualClock


def test_all_that_look_at_once_share_one_time_and_the_next_ones_have_it_anew() -> None:
    clock = ManualClock()
    bound = Bound(clock, 10.0, 5)
    with bound:
        assert bound.left_s() == 10.0
        clock.advance(4.0)
        with bound:
            assert bound.left_s() == 6.0
            clock.advance(7.0)
        assert bound.left_s() == -1.0, "the first of them is not over yet"
    with bound:
        assert bound.left_s() == 10.0
