"""When the dead are too many, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.dlq.breaker import BreakerState, Run, runs_of
from tidegate.dlq.policy import BreakerPolicy
from tidegate.inbox.breaker_phase import Phase

POLICY = BreakerPolicy(row_max=3, share_max=0.5, window=20, seen_min=10, retry_after_s=60.0)


def dies(state: BreakerState, n: int = 1, now_s: float = 0.0) -> bool:
    return state.admit((Run(True, n),), now_s)


def opened(policy: BreakerPolicy = POLICY, now_s: float = 0.0) -> BreakerState:
    state = BreakerState(policy)
    assert not dies(state, policy.row_max + 1, now_s)
    assert state.phase is Phase.OPEN
    return state


def test_the_letter_that_is_too_many_in_a_row_is_not_written() -> None:
    state = BreakerState(POLICY)
    assert [dies(state) for _ in range(4)] == [True, True, True, False]
    assert state.phase is Phase.OPEN
    assert state.why == "4 events in a row would be dead, 3 may be"


def test_a_good_end_begins_the_row_anew() -> None:
    state = BreakerState(POLICY)
    for _ in range(10):
        assert all(dies(state) for _ in range(3))
        state.fine(7)


def test_a_good_end_that_was_none_does_not_begin_the_row_anew() -> None:
    """A conflict is found when its event is claimed, behind the handler's good end."""
    state = BreakerState(POLICY)
    for expected in (True, True, True, False):
        state.fine(1)
        state.not_fine()
        assert dies(state) is expected
    assert state.phase is Phase.OPEN
    state = BreakerState(POLICY)
    state.not_fine()
    state.fine(2)
    state.not_fine()
    assert all(dies(state) for _ in range(3)), "taken back is what was said, and no more"


def test_too_large_a_share_opens_it_although_no_row_is_long() -> None:
    state = BreakerState(POLICY)
    answers: list[bool] = []
    for _ in range(6):
        state.fine(1)
        answers += [dies(state), dies(state)]
    assert answers.index(False) == 6, "of ten events the sixth dead is one too many"
    assert state.why == "7 of the last 11 events would be dead, 50% may be"


def test_few_events_make_no_share() -> None:
    state = BreakerState(POLICY)
    for _ in range(3):
        assert dies(state)
        assert dies(state)
        state.fine(1)
    assert state.phase is Phase.CLOSED


def test_what_lies_before_the_window_does_not_count() -> None:
    state = BreakerState(POLICY)
    for _ in range(20):
        state.fine(1)
        assert dies(state)
    state.fine(10_000)
    assert dies(state, 3)


def test_a_batch_is_admitted_as_a_whole_or_not_at_all() -> None:
    state = BreakerState(POLICY)
    assert state.admit(runs_of([True, True, False, True]), 0.0)
    assert not state.admit(runs_of([True, True, True, False]), 0.0), "the row goes on from batch to batch"
    assert state.why == "4 events in a row would be dead, 3 may be"


def test_open_it_admits_nobody_and_one_is_tried_after_a_while() -> None:
    state = opened(now_s=100.0)
    assert not dies(state, now_s=130.0)
    assert not state.may_try(159.0)
    assert state.may_try(160.0)
    assert not state.may_try(160.0), "one is enough"
    assert state.phase is Phase.HALF_OPEN


def test_a_try_that_goes_well_closes_it_and_nothing_is_remembered() -> None:
    state = opened()
    assert state.may_try(60.0)
    state.fine(1)
    assert state.phase is Phase.CLOSED
    assert [dies(state) for _ in range(4)] == [True, True, True, False]


def test_a_try_that_fails_opens_it_for_as_long_again() -> None:
    state = opened()
    assert state.may_try(60.0)
    assert not dies(state, now_s=61.0)
    assert state.phase is Phase.OPEN
    assert state.why == "4 events in a row would be dead, 3 may be", "the first cause is the one to look for"
    assert not state.may_try(120.0)
    assert state.may_try(121.0)


def test_a_try_that_never_ends_is_followed_by_another() -> None:
    state = opened()
    assert state.may_try(60.0)
    assert not state.may_try(119.0)
    assert state.may_try(120.0)


def test_a_batch_that_is_tried_may_hold_a_few_that_are_dead_of_their_own_fault() -> None:
    fine, bad = [False] * 9 + [True], [True] * 9 + [False]
    for outcomes, phase in ((fine, Phase.CLOSED), (bad, Phase.OPEN)):
        state = opened()
        assert state.may_try(60.0)
        assert state.admit(runs_of(outcomes), 61.0) is (phase is Phase.CLOSED)
        assert state.phase is phase


def test_good_ends_of_what_ran_already_do_not_close_it() -> None:
    state = opened()
    state.fine(100)
    assert state.phase is Phase.OPEN


def test_a_person_may_close_it() -> None:
    state = opened()
    state.close()
    assert state.phase is Phase.CLOSED
    assert dies(state)


def test_a_clock_that_goes_back_makes_nobody_wait_longer() -> None:
    state = opened(now_s=10_000.0)
    assert state.wait_s(6_400.0) == POLICY.retry_after_s


def test_runs_tell_what_the_outcomes_told() -> None:
    outcomes: Sequence[bool] = [True, True, False, True]
    assert runs_of(outcomes) == (Run(True, 2), Run(False, 1), Run(True, 1))
    assert runs_of([]) == ()
