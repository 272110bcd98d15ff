"""When Kafka hears of commit points: seldom, only what changed, and also where nothing is delivered."""

from __future__ import annotations

from tests.support.engine_desk import LANES, P0, P1, STREAM, Desk, of, part
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.signals import Commit, Lost, NotCommitted, Reached, Tick

SECOND = EnginePolicy(commit_interval_s=1.0)


def test_a_position_behind_markers_and_gaps_is_committed_when_idle() -> None:
    """The last record is 99, a marker stands at 100: the position 101 is committed and the lag is zero.

    Case: B53
    Parts: fake (signals instead of a client)
    Red when: Engine._reached does not move the position
    """
    desk = Desk(STREAM, LANES)
    desk.live(P0, starts={"": 98})
    desk.deliver(part(P0, [98, 99]))
    desk.finished(P0, 98, 99)
    desk.tell(Reached(P0, 1, 101))
    assert desk.committed(P0) == 98
    desk.applied(1)
    end = 101
    assert desk.committed(P0) == 101
    assert end - desk.engine.progress()[P0].position == 0


def test_a_compacted_end_without_records_is_reached_too() -> None:
    """A compacted log ends at 1000, its last record is 990: nothing is left to do at 1000.

    Case: B53
    Parts: fake (signals instead of a client)
    Red when: StreamShare.point returns `self.applied` whether or not something is left to apply
    """
    desk = Desk(STREAM)
    desk.live(P0, starts={"": 990})
    desk.deliver(part(P0, [990], next_offset=991))
    desk.applied(1)
    desk.tell(Reached(P0, 1, 1000))
    assert desk.committed(P0) == 1000


def test_what_arrives_behind_a_gap_does_not_pull_the_point_back_over_it() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.tell(Reached(P0, 1, 5))
    assert desk.committed(P0) == 5
    desk.deliver(part(P0, [7]))
    assert desk.engine.point(STREAM.name, P0) == 5


def test_an_empty_slice_moves_the_position_without_a_batch() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    assert of(desk.deliver(part(P0, [], next_offset=7)), Commit) == [
        Commit({P0: (1, 7)}, {P0: {STREAM.name: 7, LANES.name: 7}})
    ]
    assert desk.batches() == []


def test_a_consumer_without_handlers_commits_its_position() -> None:
    desk = Desk()
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2], next_offset=5))
    assert desk.committed(P0) == 5


def test_a_commit_is_said_at_most_once_an_interval() -> None:
    desk = Desk(STREAM, policy=SECOND)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    assert of(desk.applied(1), Commit) == []
    assert desk.engine.wake_at_s() == desk.now_s + 1.0
    assert desk.after(0.9) == []
    assert [commit.offsets for commit in of(desk.after(0.1), Commit)] == [{P0: (1, 1)}]


def test_only_points_that_changed_are_said() -> None:
    desk = Desk(STREAM, policy=SECOND)
    desk.live(P0, P1)
    desk.after(1.0)
    desk.deliver(part(P0, [0]))
    desk.applied(1)
    assert [commit.offsets for commit in of(desk.after(1.0), Commit)] == [{P0: (1, 1)}]
    assert desk.after(1.0) == []
    assert desk.engine.wake_at_s() is None


def test_a_commit_that_kafka_did_not_take_is_said_again() -> None:
    desk = Desk(STREAM, policy=SECOND)
    desk.live(P0)
    desk.tell(NotCommitted({P0: 1}))
    assert [commit.offsets for commit in of(desk.after(1.0), Commit)] == [{P0: (1, 0)}]
    desk.tell(NotCommitted({P0: 9}))
    assert desk.after(1.0) == []


def test_a_lost_partition_is_not_committed_any_more() -> None:
    desk = Desk(STREAM, policy=SECOND)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.applied(1)
    desk.tell(Lost({P0: 1}))
    assert desk.after(5.0) == []
    assert desk.tell(Tick()) == []


def test_a_commit_names_each_tracks_own_point() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2]))
    desk.applied(1)
    (commit,) = of(desk.finished(P0, 0), Commit)
    assert commit == Commit({P0: (1, 1)}, {P0: {STREAM.name: 3, LANES.name: 1}})
