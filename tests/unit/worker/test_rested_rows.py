"""A row whose end could not be written rests, each time longer, and is tried anew after all."""

from __future__ import annotations

from tidegate.consumers.worker.rested_rows import FIRST_REST_S, REST_MAX_S, RestedRows
from tidegate.inbox.clock import ManualClock


def rest_s(rows: RestedRows, clock: ManualClock) -> float:
    """How long the one row rests from now on, in whole seconds."""
    seconds = 0.0
    while rows.ids():
        clock.advance(1.0)
        seconds += 1.0
    return seconds


def test_a_row_rests_twice_as_long_each_time_up_to_a_minute() -> None:
    clock = ManualClock()
    rows, rests = RestedRows(clock), list[float]()
    assert rows.ids() == []
    for _ in range(8):
        rows.failed(7)
        rests.append(rest_s(rows, clock))
    assert rests == [FIRST_REST_S, 2.0, 4.0, 8.0, 16.0, 32.0, REST_MAX_S, REST_MAX_S]


def test_a_row_that_failed_long_ago_begins_anew_and_rows_rest_each_for_itself() -> None:
    clock = ManualClock()
    rows = RestedRows(clock)
    rows.failed(7)
    rows.failed(7)
    clock.advance(FIRST_REST_S)
    rows.failed(8)
    assert sorted(rows.ids()) == [7, 8]
    clock.advance(FIRST_REST_S)
    assert rows.ids() == []
    clock.advance(REST_MAX_S)
    rows.failed(7)
    assert rest_s(rows, clock) == FIRST_REST_S
