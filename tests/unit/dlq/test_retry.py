"""The retry policy: bounded, jittered, counted by class of exception."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.retry import RetryPolicy, RetryState
from tidegate.inbox.errors import ConfigurationError

UNBOUNDED = [math.inf, math.nan, -1, None, True, "5", 10**12, 10**400]


def failed_times(n: int, exception_type: str = "OSError") -> RetryState:
    state = RetryState()
    for _ in range(n):
        state = state.failed(exception_type, 0.0)
    return state


@pytest.mark.parametrize("value", UNBOUNDED)
@pytest.mark.parametrize("field", ["attempts_max", "base_s", "factor", "cap_s", "age_max_s"])
def test_a_policy_without_a_bound_is_refused_at_construction(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"retry.{field}"):
        replace(RetryPolicy(), **{field: value})


def test_every_missing_bound_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        RetryPolicy(attempts_max=0, cap_s=math.inf, age_max_s=math.inf)
    assert [problem.key for problem in refused.value.problems] == [
        "retry.attempts_max",
        "retry.cap_s",
        "retry.age_max_s",
    ]


def test_it_gives_up_after_the_last_attempt() -> None:
    policy = RetryPolicy(attempts_max=3)
    assert policy.next_delay_s(failed_times(2), 0.5) is not None
    assert policy.next_delay_s(failed_times(3), 0.5) is None


def test_it_gives_up_when_the_next_try_would_start_too_late() -> None:
    policy = RetryPolicy(age_max_s=10.0)
    state = RetryState().failed("OSError", 0.0).failed("OSError", 9.9)
    assert policy.next_delay_s(state, 0.0) == 0.0
    assert policy.next_delay_s(state, 0.999) is None


def test_attempts_start_anew_with_another_class_but_the_age_does_not() -> None:
    state = RetryState().failed("TimeoutError", 1.0).failed("TimeoutError", 2.0).failed("OSError", 5.0)
    assert (state.attempts, state.attempts_total, state.age_s) == (1, 3, 4.0)


def test_a_wish_of_the_handler_is_kept_within_the_bounds() -> None:
    policy = RetryPolicy(cap_s=30.0, age_max_s=100.0)
    state = failed_times(1)
    assert policy.next_delay_s(state, 0.5, after_s=7.0) == 7.0
    assert policy.next_delay_s(state, 0.5, after_s=3600.0) == 30.0
    assert policy.next_delay_s(state, 0.5, after_s=-1.0) == 0.0
    assert policy.next_delay_s(state, 0.5, after_s=math.inf) == 30.0
    assert policy.next_delay_s(failed_times(5), 0.5, after_s=1.0) is None


def test_a_clock_that_jumps_back_neither_ends_nor_prolongs_the_attempts() -> None:
    state = RetryState().failed("OSError", 5_000.0).failed("OSError", 1_400.0)
    assert state.age_s == 0.0
    assert RetryPolicy().next_delay_s(state, 0.0) == 0.0


NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


def after(seconds: float) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def test_a_row_goes_on_where_the_attempts_before_it_ended() -> None:
    """The age bound holds over a restart, and attempts of one class go on counting.

    Case: B34
    Parts: -
    Red when: dlq/retry.py's of_row gives `now_s` for first_failed_s
    """
    policy = RetryPolicy(attempts_max=5, age_max_s=300.0)
    state = RetryState.of_row(3, 3, "OSError", NOON, after(100.0), now_s=7.0)
    assert (state.attempts, state.attempts_total, state.age_s) == (3, 3, 100.0)
    again = state.failed("OSError", 8.0)
    assert (again.attempts, again.age_s) == (4, 101.0)
    assert policy.next_delay_s(again, 0.0) == 0.0
    assert policy.next_delay_s(again.failed("OSError", 9.0), 0.0) is None
    assert policy.next_delay_s(state.failed("OSError", 208.0), 0.0) is None
    assert state.failed("TimeoutError", 8.0).attempts == 1


def test_a_row_of_a_new_round_has_no_age() -> None:
    state = RetryState.of_row(40, 0, "OSError", NOON, NOON + 24 * HOUR, now_s=7.0).failed("OSError", 8.0)
    assert (state.attempts, state.attempts_total, state.age_s) == (1, 41, 0.0)


def test_a_clock_that_jumps_back_an_hour_neither_gives_up_at_once_nor_tries_for_ever() -> None:
    """A round that began "in an hour" is young, its age never shrinks, and it ends an hour late at the most.

    Case: B34
    Parts: -
    Red when: dlq/retry.py's of_row takes `now` for the latest moment, whatever came before it
    """
    policy = RetryPolicy(age_max_s=300.0)
    young = RetryState.of_row(1, 1, "OSError", NOON, NOON - HOUR)
    assert young.age_s == 0.0
    assert policy.next_delay_s(young.failed("OSError", 0.5), 0.5) is not None
    old = RetryState.of_row(4, 4, "OSError", NOON, NOON - HOUR, last_failed_at=after(299.0))
    assert old.age_s == 299.0
    # two troubles take turns, so that only the age can end it; the clock stands an hour back all the time
    now, failures, state = NOON - HOUR, 0, young
    while policy.next_delay_s(state, 0.5) is not None:
        failures += 1
        assert failures < 10_000
        now += datetime.timedelta(seconds=1)
        state = RetryState.of_row(failures, 1, "AB"[failures % 2], NOON, now).failed("AB"[failures % 2 - 1], 0.0)
    assert now <= NOON + datetime.timedelta(seconds=301)


policies = st.builds(
    RetryPolicy,
    attempts_max=st.integers(1, 50),
    base_s=st.floats(0.0, 10.0),
    factor=st.floats(1.0, 10.0),
    cap_s=st.floats(0.0, 60.0),
    age_max_s=st.floats(0.0, 600.0),
)
chances = st.floats(0.0, 1.0, exclude_max=True)


@given(policies, st.lists(st.tuples(st.sampled_from(["A", "B", "C"]), chances), max_size=300))
def test_every_policy_ends_whatever_is_raised(policy: RetryPolicy, failures: list[tuple[str, float]]) -> None:
    """Waits stay below the cap, and from first failure to last try passes no more than the age allows."""
    state, now_s = RetryState(), 0.0
    for exception_type, chance in failures:
        state = state.failed(exception_type, now_s)
        delay_s = policy.next_delay_s(state, chance)
        if delay_s is None:
            break
        assert 0.0 <= delay_s <= policy.cap_s
        assert state.attempts < policy.attempts_max
        now_s += delay_s
        assert now_s <= policy.age_max_s * 1.000001


@given(policies, st.integers(1, 10**9))
def test_the_longest_wait_never_shrinks_and_never_passes_the_cap(policy: RetryPolicy, attempts: int) -> None:
    assert policy.ceiling_s(attempts) <= policy.ceiling_s(attempts + 1) <= policy.cap_s
