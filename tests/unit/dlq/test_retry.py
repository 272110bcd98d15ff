"""The retry policy: bounded, jittered, counted by class of exception."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.retry import RetryPolicy, RetryState
from tidegate.inbox.errors import ConfigurationError

UNBOUNDED = [math.inf, math.nan, -1, None, True, "5", 10**12]


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
