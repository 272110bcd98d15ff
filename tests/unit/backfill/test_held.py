"""Where a held backfill reads, and where its projection goes on: no event is left out, whatever the offsets are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidegate.consumers.backfill.held import abandoned_inside, goes_on_at, parts_of
from tidegate.inbox.backfills import Part
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.event import Partition

P = Partition("t", 0)
OFFSETS = st.integers(0, 50)


@given(st.tuples(OFFSETS, OFFSETS).map(sorted), OFFSETS)
def test_nothing_lies_between_what_the_live_version_had_and_the_run_and_where_it_goes_on(
    window: list[int], stands: int
) -> None:
    """Whatever was not handled before is in the run, or behind where the live version goes on."""
    start, end = window
    (part,) = parts_of([Part(P, 0, start, start, end)], {P: (0, stands, None)}, [P])
    assert part.live_offset == stands
    assert part.start_offset <= min(start, stands)
    assert part.start_offset <= stands <= part.end_offset
    assert goes_on_at([part], ended=True) == {P: part.end_offset}


@given(st.tuples(OFFSETS, OFFSETS, OFFSETS).map(sorted), OFFSETS)
def test_an_abandoned_one_goes_on_where_nothing_is_left_out_and_nothing_comes_again(
    offsets: list[int], done: int
) -> None:
    start, stands, end = offsets
    assume(start <= done <= end)
    part = replace(Part(P, 0, start, done, end), live_offset=stands)
    assert goes_on_at([part], ended=False) == {P: max(done, stands)}
    assert bool(abandoned_inside([part])) is (start < done < stands)


def test_the_two_legs_meet_where_the_live_version_stood() -> None:
    part = Part(P, 0, 3, 3, 9, live_offset=6)
    assert (part.is_again, part.leg_end) == (True, 6)
    assert (part.behind(6).is_again, part.behind(6).leg_end) == (False, 9)
    assert (Part(P, 0, 3, 3, 9).is_again, Part(P, 0, 3, 3, 9).leg_end) == (False, 9)


@pytest.mark.parametrize(
    ("standing", "says"),
    [
        ((0, 60, 7), "backfill 7 holds the handler"),
        ((1, 60, None), "a former topic of this name"),
        ((0, 91, None), "the window ends at 90 and the handler stands at 91"),
    ],
)
def test_what_cannot_be_held_is_named(standing: tuple[int, int, int | None], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parts_of([Part(P, 0, 20, 20, 90)], {P: standing}, [])
