"""Laws of a rate: never more than it says in any stretch of time, never less where enough want to begin."""

from __future__ import annotations

from itertools import combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.consumers.engine.rate import BURST_S, Rate

LAWS = settings(max_examples=200, deadline=None)
rates = st.floats(0.01, 5_000)
steps = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50)), min_size=1, max_size=25)


@LAWS
@given(per_s=rates, steps=steps)
def test_no_stretch_of_time_has_more_beginnings_than_the_rate_allows(
    per_s: float, steps: list[tuple[float, int]]
) -> None:
    """Rate times time, and what may come at once: that is the bound, wherever the stretch begins and ends."""
    rate, now_s = Rate(per_s), 100.0
    begun: list[tuple[float, int]] = []
    for pause_s, want in steps:
        now_s += pause_s
        count = rate.free(now_s, want)
        assert count <= want
        rate.begin(count, now_s)
        begun.append((now_s, count))
    at_once = 1 + BURST_S * per_s
    for first, last in combinations_with_replacement(range(len(begun)), 2):
        count = sum(count for _, count in begun[first : last + 1])
        assert count <= (begun[last][0] - begun[first][0]) * per_s + at_once + 1e-3


@LAWS
@given(per_s=rates, want=st.integers(1, 300))
def test_whoever_comes_when_it_is_told_to_gets_on_and_as_quickly_as_the_rate_allows(per_s: float, want: int) -> None:
    rate, now_s, begun = Rate(per_s), 100.0, 0
    while begun < want:
        count = rate.free(now_s, want - begun)
        assert count, "it was told to come now"
        rate.begin(count, now_s)
        begun += count
        now_s = max(now_s, rate.next_at_s())
    assert now_s - 100.0 <= want / per_s + 1e-3


@LAWS
@given(per_s=rates, idle_s=st.floats(0, 1e6))
def test_time_that_passed_idle_is_not_saved_up(per_s: float, idle_s: float) -> None:
    rate = Rate(per_s)
    rate.begin(1, 0.0)
    assert rate.free(1_000.0 + idle_s, most=10**9) <= 1 + BURST_S * per_s
