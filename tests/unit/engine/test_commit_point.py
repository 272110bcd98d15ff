"""The commit point: below the lowest delivered and unfinished offset, whatever the gaps."""

from __future__ import annotations

import itertools

from tests.support.engine_desk import LANES, P0, Desk, part
from tidegate.consumers.engine.commit_point import CommitPoint


def test_the_point_stays_at_a_slow_offset_and_steps_over_gaps_once_it_is_done() -> None:
    """The commit never passes an offset in flight, and a compaction gap never holds it.

    Case: B11
    Parts: fake (signals instead of a client and handlers)
    Red when: CommitPoint.at returns `max(self._start, position)` whatever is incomplete
    """
    desk = Desk(LANES)
    desk.live(P0, starts={LANES.name: 10})
    desk.deliver(part(P0, [10, 11, 12, 16], next_offset=17))
    for offset in (12, 11, 16):
        desk.finished(P0, offset)
        assert desk.committed(P0) == 10
    desk.finished(P0, 15)  # the gap was never delivered: nothing can finish there
    assert desk.committed(P0) == 10
    desk.finished(P0, 10)
    assert desk.committed(P0) == 17


def test_any_order_of_finishing_ends_in_the_same_point() -> None:
    for order in itertools.permutations([10, 11, 14, 20]):
        point = CommitPoint(10)
        point.deliver([10, 11, 14, 20])
        for offset in order:
            point.finish([offset])
        assert point.at(25) == 25
        assert len(point) == 0


def test_nothing_delivered_means_the_clients_position_but_never_below_the_start() -> None:
    point = CommitPoint(10)
    assert point.at(4) == 10
    assert point.at(12) == 12


def test_the_prospect_counts_offsets_as_finished_without_changing_anything() -> None:
    point = CommitPoint(10)
    point.deliver([10, 11, 12, 14])
    point.finish([11])
    assert point.after([10], 15) == 12
    assert point.after([10, 12], 15) == 14
    assert point.after([14, 12, 10], 15) == 15
    assert point.after([12, 14], 15) == 10
    assert point.after([], 15) == point.at(15) == 10


def test_a_hundred_thousand_in_flight_finish_backwards_in_time() -> None:
    point = CommitPoint(0)
    point.deliver(range(100_000))
    for offset in range(99_999, 0, -1):
        point.finish([offset])
    assert point.at(100_000) == 0
    point.finish([0])
    assert point.at(100_000) == 100_000


def test_the_engine_tells_the_prospect_of_the_living_only() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2], next_offset=9))
    assert desk.engine.prospect(LANES.name, P0, 1, [0, 1]) == 2
    assert desk.engine.prospect(LANES.name, P0, 1, [0, 1, 2]) == 9
    assert desk.engine.prospect(LANES.name, P0, 2, [0]) is None
    assert desk.engine.point(LANES.name, P0) == 0
