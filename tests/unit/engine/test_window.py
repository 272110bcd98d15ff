"""The live window and the pauses: bounded in records and bytes, with hysteresis, for all partitions together."""

from __future__ import annotations

import pytest

from tests.support.engine_desk import LANES, P0, P1, STREAM, Desk, of, part
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.signals import (
    Apply,
    Assigned,
    DependencyAway,
    DependencyBack,
    Finished,
    LaneTrack,
    Lost,
    Pause,
    PauseCause,
    Ready,
    Resume,
    Revoking,
    Seek,
    StreamTrack,
)
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.event import Partition

SMALL = EnginePolicy(window_records_max=10, window_records_low=5, commit_interval_s=0.0)
BOTH = frozenset({P0, P1})


def test_reading_pauses_above_the_maximum_and_goes_on_at_the_low_mark() -> None:
    desk = Desk(LANES, policy=SMALL)
    desk.live(P0, P1)
    assert of(desk.deliver(part(P0, range(10))), Pause) == []
    assert of(desk.deliver(part(P1, range(1))), Pause) == [Pause(BOTH)]
    assert desk.engine.causes() == {PauseCause.WINDOW_FULL}
    assert of(desk.finished(P1, 0), Resume) == []
    assert of(desk.finished(P0, *range(10)), Resume) == [Resume(BOTH)]


def test_memory_is_freed_by_the_slice_when_all_tracks_are_done_with_it() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1], size_bytes=500), part(P0, [2, 3], size_bytes=300))
    assert desk.engine.window() == (4, 800)
    desk.finished(P0, 0, 1, 2)
    assert desk.engine.window() == (4, 800)
    desk.applied(1)
    assert desk.engine.window() == (2, 300)
    desk.finished(P0, 3)
    assert desk.engine.window() == (0, 0)


def test_an_event_that_waits_for_its_next_attempt_does_not_hold_those_that_came_with_it() -> None:
    """Its one handler is done with the others, so they are gone, to a sixteenth.

    Case: B15
    Parts: fake (signals instead of a client)
    Red when: engine/window.py `settle` takes the whole slice as its step whoever takes it
    """
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, range(64), size_bytes=6400))
    desk.finished(P0, *range(1, 64))
    assert desk.engine.window() == (4, 400)
    desk.finished(P0, 0)
    assert desk.engine.window() == (0, 0)


def test_events_that_two_handlers_take_are_held_until_both_are_done_with_all() -> None:
    """Which of them is done for both nobody counts.

    Case: B15
    Parts: fake (signals instead of a client)
    Red when: engine/engine.py `_take_in` says that one takes them, whoever does
    """
    other = LaneTrack("other", concurrency=100)
    desk = Desk(LANES, other)
    desk.live(P0)
    desk.deliver(part(P0, range(4), lanes={LANES.name: tuple(range(4)), other.name: (3,)}))
    desk.finished(P0, *range(4))
    assert desk.engine.window()[0] == 4
    desk.tell(Finished(other.name, P0, 1, (3,)))
    assert desk.engine.window() == (0, 0)


def test_a_split_slice_is_held_until_its_last_piece_is_applied() -> None:
    desk = Desk(StreamTrack(STREAM.name, batch_max=2, batch_wait_ms=0))
    desk.live(P0)
    desk.deliver(part(P0, range(5)))
    assert [desk.engine.window()[0], *_records_after(desk, 1, 2, 3)] == [5, 5, 5, 0]


def _records_after(desk: Desk, *batch_ids: int) -> list[int]:
    found: list[int] = []
    for batch_id in batch_ids:
        desk.applied(batch_id)
        found.append(desk.engine.window()[0])
    return found


def test_events_that_nobody_takes_cost_no_memory() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2], lanes={}))
    assert desk.engine.window() == (0, 0)
    assert desk.committed(P0) == 3


def test_a_backlog_of_large_records_over_many_partitions_stays_within_the_bytes() -> None:
    """Nine partitions with a backlog, the handler blocked: bytes in memory stay within the budget and all are paused.

    A client that honours a pause delivers at most the poll that was under way when it was told.

    Case: B15
    Parts: fake (signals instead of a client)
    Red when: Window.add looks at the records only
    """
    limit = 20_000_000
    poll_bytes = 9 * 2 * 100_000
    policy = EnginePolicy(window_bytes_max=limit, window_bytes_low=limit // 2)
    desk = Desk(STREAM, policy=policy)
    partitions = [Partition("t", number) for number in range(9)]
    desk.live(*partitions)
    for poll in range(1_000):
        if all(progress.paused for progress in desk.engine.progress().values()):
            break
        desk.deliver(*(part(each, range(poll * 2, poll * 2 + 2), size_bytes=200_000) for each in partitions))
    assert limit < desk.engine.window()[1] <= limit + poll_bytes
    assert all(progress.paused for progress in desk.engine.progress().values())
    desk.tell(Lost(dict.fromkeys(partitions[:8], 1)))
    assert desk.engine.window()[1] <= limit // 2
    assert of(desk.said, Resume) == [Resume(frozenset({partitions[8]}))]


def test_a_partition_that_goes_away_gives_its_memory_back() -> None:
    desk = Desk(LANES, policy=SMALL)
    desk.live(P0, P1)
    desk.deliver(part(P0, range(8)), part(P1, range(4)))
    assert of(desk.tell(Lost({P0: 1})), Resume) == [Resume(frozenset({P1}))]
    assert desk.engine.window() == (4, 4)


def test_what_waits_in_a_revoked_partition_is_freed_at_once() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, range(3)))
    desk.deliver(part(P0, range(3, 9)))
    desk.tell(Revoking({P0: 1}, 10.0))
    assert desk.engine.window() == (3, 3)


def test_a_dependency_that_is_away_pauses_everything_and_starts_nothing_new() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0, P1)
    desk.deliver(part(P0, [0, 1], keys={0: b"k", 1: b"k"}))
    assert desk.tell(DependencyAway("registry")) == [Pause(BOTH)]
    assert desk.tell(DependencyAway("database")) == []
    assert desk.deliver(part(P1, [0])) == []
    assert desk.applied(1) == []
    desk.finished(P0, 0)
    assert desk.engine.causes() == {PauseCause.DEPENDENCY}
    assert desk.started() == [0]
    assert desk.tell(DependencyBack("registry")) == []
    actions = desk.tell(DependencyBack("database"))
    assert of(actions, Resume) == [Resume(BOTH)]
    assert desk.batches(actions) == [{P1: [0]}]
    assert desk.started(actions) == [0, 1] or desk.started(actions) == [1, 0]


def test_a_dependency_that_comes_back_does_not_open_a_full_window() -> None:
    desk = Desk(LANES, policy=SMALL)
    desk.live(P0)
    desk.deliver(part(P0, range(11)))
    assert desk.tell(DependencyAway("database")) == []
    assert of(desk.tell(DependencyBack("database")), Resume) == []
    assert of(desk.finished(P0, *range(11)), Resume) == [Resume(frozenset({P0}))]


def test_a_partition_assigned_while_a_pause_stands_is_paused_and_resumed_only_after_its_seek() -> None:
    desk = Desk(STREAM)
    desk.tell(DependencyAway("database"))
    assert Pause(frozenset({P0})) in desk.tell(Assigned({P0: 1}))
    assert desk.tell(DependencyBack("database")) == []
    assert desk.tell(Ready(P0, 1, {"": 3}))[:2] == [Seek(P0, 1, 3), Resume(frozenset({P0}))]


def test_one_that_becomes_ready_while_a_pause_stands_stays_paused() -> None:
    desk = Desk(STREAM)
    desk.tell(Assigned({P0: 1}))
    desk.tell(DependencyAway("database"))
    assert of(desk.tell(Ready(P0, 1, {"": 3})), Resume) == []
    assert of(desk.deliver(part(P0, [3])), Apply) == []


@pytest.mark.parametrize("low", [10, 11, -1])
def test_a_low_mark_that_is_not_below_the_maximum_is_refused(low: int) -> None:
    with pytest.raises(ConfigurationError, match="window_records_low"):
        EnginePolicy(window_records_max=10, window_records_low=low)
