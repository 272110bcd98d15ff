"""A stream track: serial batches, in order within a partition, fair between partitions."""

from __future__ import annotations

import pytest

from tests.support.engine_desk import LANES, P0, P1, P2, STREAM, Desk, of, part
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.signals import Apply, StreamTrack


def test_the_first_slice_leaves_at_once_and_the_rest_is_the_next_batch() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1]))
    desk.deliver(part(P0, [2]))
    desk.deliver(part(P0, [5, 6]))
    assert desk.batches() == [{P0: [0, 1]}]
    assert desk.batches(desk.applied(1)) == [{P0: [2, 5, 6]}]


def test_a_batch_holds_no_more_than_batch_max_and_splits_slices_for_it() -> None:
    desk = Desk(StreamTrack(STREAM.name, batch_max=3, batch_wait_ms=0))
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 4, 7, 8], next_offset=12))
    desk.applied(1)
    assert desk.batches() == [{P0: [0, 1, 4]}, {P0: [7, 8]}]
    head, rest = (apply.slices[0] for apply in of(desk.said, Apply))
    assert (head.next_offset, rest.next_offset) == (5, 12)
    assert head.size_bytes + rest.size_bytes == 5


def test_partitions_take_turns_from_batch_to_batch() -> None:
    desk = Desk(StreamTrack(STREAM.name, batch_max=2, batch_wait_ms=0))
    desk.live(P0, P1, P2)
    desk.deliver(part(P0, range(6)), part(P1, range(2)), part(P2, range(2)))
    for batch_id in (1, 2, 3, 4):
        desk.applied(batch_id)
    assert desk.batches() == [{P0: [0, 1]}, {P1: [0, 1]}, {P2: [0, 1]}, {P0: [2, 3]}, {P0: [4, 5]}]


def test_a_batch_that_is_not_full_waits_for_its_oldest_slice() -> None:
    desk = Desk(StreamTrack(STREAM.name, batch_max=10, batch_wait_ms=20))
    desk.live(P0)
    assert desk.batches(desk.deliver(part(P0, [0]))) == []
    assert desk.engine.wake_at_s() == pytest.approx(desk.now_s + 0.020)
    assert desk.batches(desk.after(0.015)) == []
    assert desk.batches(desk.deliver(part(P0, [1]))) == []
    assert desk.batches(desk.after(0.005)) == [{P0: [0, 1]}]


def test_a_full_batch_does_not_wait() -> None:
    desk = Desk(StreamTrack(STREAM.name, batch_max=2, batch_wait_ms=60_000))
    desk.live(P0)
    assert desk.batches(desk.deliver(part(P0, [0, 1]))) == [{P0: [0, 1]}]


def test_what_a_full_batch_leaves_waits_for_more() -> None:
    desk = Desk(StreamTrack(STREAM.name, batch_max=2, batch_wait_ms=60_000))
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2]))
    assert desk.batches(desk.applied(1)) == []
    assert desk.batches(desk.deliver(part(P0, [3]))) == [{P0: [2, 3]}]


def test_waiting_is_pointless_while_the_window_is_full() -> None:
    desk = Desk(
        StreamTrack(STREAM.name, batch_max=100, batch_wait_ms=60_000),
        policy=EnginePolicy(window_records_max=3, window_records_low=1),
    )
    desk.live(P0)
    assert desk.batches(desk.deliver(part(P0, [0, 1, 2]))) == []
    assert desk.batches(desk.deliver(part(P0, [3]))) == [{P0: [0, 1, 2, 3]}]


def test_each_track_starts_at_its_own_offset() -> None:
    behind, ahead = StreamTrack("behind", 100, 0), StreamTrack("ahead", 100, 0)
    desk = Desk(behind, ahead, LANES)
    desk.live(P0, starts={"behind": 10, "ahead": 12, LANES.name: 13})
    actions = desk.deliver(part(P0, [10, 11, 12, 13]))
    assert {apply.track: [event.offset for event in apply.slices[0].events] for apply in of(actions, Apply)} == {
        "behind": [10, 11, 12, 13],
        "ahead": [12, 13],
    }
    assert desk.started() == [13]


def test_a_track_that_is_ahead_never_falls_back_to_the_position() -> None:
    behind, ahead = StreamTrack("behind", 100, 0), StreamTrack("ahead", 100, 0)
    desk = Desk(behind, ahead)
    desk.live(P0, starts={"behind": 10, "ahead": 50})
    actions = desk.deliver(part(P0, [10, 11]))
    assert [apply.track for apply in of(actions, Apply)] == ["behind"]
    assert desk.engine.point("ahead", P0) == 50
    assert desk.committed(P0) == 10


def test_an_answer_to_an_old_batch_changes_nothing() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.applied(1)
    desk.deliver(part(P0, [1]))
    assert desk.applied(1) == []
    assert desk.engine.point(STREAM.name, P0) == 1


def test_what_is_delivered_again_under_the_same_epoch_is_not_handed_out_again() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2]))
    desk.deliver(part(P0, [0, 1]))
    desk.deliver(part(P0, [1, 2, 3]))
    desk.applied(1)
    assert desk.batches() == [{P0: [0, 1, 2]}, {P0: [3]}]
    assert desk.started() == [0, 1, 2, 3]
