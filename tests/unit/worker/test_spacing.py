"""Spacing of groups: held back for those who are about to come, and for nobody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumers.worker.spacing import LOOK_S, SPACING_S, Spacing

COUNTS = st.integers(0, 1_000)


def test_the_first_one_after_a_rest_begins_at_once() -> None:
    spacing = Spacing()
    assert spacing.wait_s(5.0, waiting=1, running=100) == 0
    spacing.begin(5.0)
    assert spacing.wait_s(5.0, waiting=1, running=100) == LOOK_S
    assert spacing.wait_s(5.0 + SPACING_S, waiting=1, running=100) == 0


def test_whoever_everything_waits_for_waits_for_nobody() -> None:
    """One key, and its event is the only one under way: the next one waits for this group."""
    spacing = Spacing()
    for n in range(100):
        assert spacing.wait_s(n * SPACING_S / 10, waiting=1, running=0) == 0
        spacing.begin(n * SPACING_S / 10)


@given(since_s=st.floats(0, 10), waiting=COUNTS, running=COUNTS)
def test_a_group_waits_only_in_its_time_and_only_for_more_than_it_has(
    since_s: float, waiting: int, running: int
) -> None:
    spacing = Spacing()
    spacing.begin(0.0)
    wait_s = spacing.wait_s(since_s, waiting=waiting, running=running)
    assert 0 <= wait_s <= LOOK_S
    assert since_s + wait_s <= max(since_s, SPACING_S)
    assert (wait_s > 0) == (since_s < SPACING_S and running > waiting)
