"""A lane track: concurrent across keys, in order within a key, fair between partitions."""

from __future__ import annotations

from tests.support.engine_desk import LANES, P0, P1, STREAM, Desk, part
from tidegate.consumers.engine.signals import LaneTrack, Lost, Revoking


def test_keys_run_side_by_side_and_a_key_in_order() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2, 3], keys={0: b"a", 1: b"a", 2: b"b", 3: b"a"}))
    assert desk.started() == [0, 2]
    assert desk.started(desk.finished(P0, 0)) == [1]
    assert desk.started(desk.finished(P0, 1)) == [3]


def test_the_next_of_a_key_starts_when_the_first_is_durable_not_when_it_comes_back() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1], keys={0: b"a", 1: b"a"}))
    assert desk.started(desk.returned(1)) == []
    assert desk.started(desk.finished(P0, 0)) == [1]


def test_no_more_than_concurrency_run_and_a_place_is_free_when_the_function_comes_back() -> None:
    desk = Desk(LaneTrack(LANES.name, concurrency=2))
    desk.live(P0)
    desk.deliver(part(P0, range(5)))
    assert desk.started() == [0, 1]
    assert desk.started(desk.finished(P0, 0, 1)) == []
    assert desk.started(desk.returned(1)) == [2]
    assert desk.started(desk.returned(2)) == [3, 4]


def test_no_key_is_a_lane_of_its_own_and_an_empty_key_is_a_key() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2, 3], keys={2: b"", 3: b""}))
    assert desk.started() == [0, 1, 2]


def test_partitions_take_turns() -> None:
    desk = Desk(LaneTrack(LANES.name, concurrency=1))
    desk.live(P0, P1)
    desk.deliver(part(P0, [0, 1, 2]), part(P1, [10, 11]))
    for _ in range(4):
        desk.returned(1)
    assert desk.started() == [0, 10, 1, 11, 2]


def test_a_long_lane_takes_turns_with_the_others() -> None:
    desk = Desk(LaneTrack(LANES.name, concurrency=1))
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2, 3, 4], keys={0: b"hot", 1: b"hot", 2: b"hot", 3: b"x", 4: b"y"}))
    for offset in (0, 3, 4, 1):
        desk.returned(1)
        desk.finished(P0, offset)
    desk.returned(1)
    assert desk.started()[:3] == [0, 3, 4]
    assert sorted(desk.started()) == [0, 1, 2, 3, 4]


def test_events_that_no_lane_track_takes_are_complete_at_once() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2], lanes={LANES.name: (1,)}))
    assert desk.started() == [1]
    assert desk.committed(P0) == 1
    desk.finished(P0, 1)
    assert desk.committed(P0) == 3


def test_what_is_not_running_cannot_finish() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1], keys={0: b"a", 1: b"a"}))
    assert desk.finished(P0, 1) == []
    assert desk.started(desk.finished(P0, 0, 0)) == [1]


def test_a_lost_partition_frees_its_lanes_for_the_same_key_elsewhere() -> None:
    desk = Desk(LANES)
    desk.live(P0, P1)
    desk.deliver(part(P0, [0, 1], keys={0: b"k", 1: b"k"}))
    desk.deliver(part(P1, [10, 11], keys={10: b"k", 11: b"k"}))
    assert desk.started() == [0]
    assert desk.started(desk.tell(Lost({P0: 1}))) == [10]
    assert desk.started(desk.finished(P1, 10)) == [11]


def test_a_handler_of_a_lost_partition_keeps_its_place_until_it_comes_back() -> None:
    desk = Desk(LaneTrack(LANES.name, concurrency=1))
    desk.live(P0, P1)
    desk.deliver(part(P0, [0]), part(P1, [10]))
    assert desk.started(desk.tell(Lost({P0: 1}))) == []
    assert desk.started(desk.returned(1)) == [10]


def test_a_revoked_partition_finishes_what_runs_and_starts_nothing_of_what_waits() -> None:
    desk = Desk(LaneTrack(LANES.name, concurrency=1))
    desk.live(P0, P1)
    desk.deliver(part(P0, [0, 1], keys={0: b"k", 1: b"k"}))
    desk.deliver(part(P1, [10], keys={10: b"k"}))
    desk.tell(Revoking({P0: 1}, 60.0))
    desk.returned(1)
    assert desk.started(desk.finished(P0, 0)) == [10]


def test_a_slice_feeds_streams_and_lanes_and_the_point_is_the_lower_of_both() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2]))
    desk.finished(P0, 0, 1)
    assert desk.committed(P0) == 0
    desk.applied(1)
    assert desk.committed(P0) == 2
