"""Assignment, takeover, revocation and loss: every signal carries an epoch, and a stale one changes nothing."""

from __future__ import annotations

import pytest

from tests.support.engine_desk import LANES, P0, P1, P2, STREAM, Desk, of, part
from tidegate.consumers.engine.partition import Phase
from tidegate.consumers.engine.signals import (
    Apply,
    Assigned,
    Commit,
    Fenced,
    LetGo,
    Lost,
    Pause,
    Reached,
    Ready,
    Refused,
    Resume,
    Revoking,
    Seek,
    Signal,
    TakeOver,
)


def test_an_assigned_partition_is_taken_over_then_read_from_the_lowest_start() -> None:
    desk = Desk(STREAM, LANES)
    assert desk.tell(Assigned({P0: 1})) == [TakeOver(P0, 1)]
    assert desk.tell(Ready(P0, 1, {STREAM.name: 7, LANES.name: 5}))[0] == Seek(P0, 1, 5)


def test_where_it_starts_is_told_to_kafka_so_that_an_idle_partition_shows_no_lag() -> None:
    desk = Desk(STREAM)
    desk.live(P0, starts={STREAM.name: 7})
    assert desk.committed(P0) == 7


def test_what_arrives_before_it_is_ready_is_dropped() -> None:
    desk = Desk(STREAM)
    desk.tell(Assigned({P0: 1}))
    assert desk.deliver(part(P0, [0, 1])) == []
    desk.tell(Ready(P0, 1, {"": 0}))
    assert desk.batches() == []


def test_records_of_partitions_that_are_not_ours_are_dropped_and_a_withheld_offset_is_not_passed() -> None:
    """A read with an error entry and a foreign record in it: neither passes, and nothing is committed over a hole.

    The client withheld what stood behind the error entry: its slice of p0 ends at the position that is confirmed. And
    p2 went away and came back during the read: what stands in the list is of the old assignment.

    Case: B04
    Parts: fake (signals instead of a client)
    Red when: Engine._current returns the life whatever its epoch
    """
    desk = Desk(STREAM)
    desk.live(P2, epoch=1)
    desk.tell(Lost({P2: 1}))
    desk.live(P2, epoch=2, starts={STREAM.name: 5})
    desk.live(P0, P1, starts={STREAM.name: 1})
    desk.deliver(part(P0, [1], next_offset=2), part(P1, [1], next_offset=2), part(P2, [9], epoch=1))
    desk.applied(1)
    assert desk.batches() == [{P0: [1], P1: [1]}]
    assert (desk.committed(P0), desk.committed(P1), desk.committed(P2)) == (2, 2, 5)
    desk.deliver(part(P0, [3], next_offset=4))  # offset 2 is a gap: the client's position went over it
    desk.applied(2)
    assert desk.committed(P0) == 4


def test_a_slice_of_an_older_assignment_is_dropped() -> None:
    desk = Desk(STREAM)
    desk.live(P0, epoch=1)
    desk.tell(Lost({P0: 1}))
    desk.live(P0, epoch=2)
    assert desk.deliver(part(P0, [0, 1], epoch=1)) == []
    assert desk.batches(desk.deliver(part(P0, [0], epoch=2))) == [{P0: [0]}]


@pytest.mark.parametrize(
    "stale",
    [
        Assigned({P0: 2}),
        Assigned({P0: 1}),
        Ready(P0, 1, {"": 40}),
        Refused(P0, 1),
        Fenced(P0, 1),
        Revoking({P0: 1}, 1.0),
        Lost({P0: 1}),
        Reached(P0, 1, 99),
        Ready(P0, 2, {"": 40}),
        Lost({P1: 1}),
        Revoking({P1: 7}, 1.0),
    ],
)
def test_a_stale_epoch_changes_nothing(stale: Signal) -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0, epoch=1)
    desk.tell(Lost({P0: 1}))
    desk.live(P0, epoch=2)
    desk.deliver(part(P0, [0, 1], epoch=2))
    before = (desk.engine.progress(), desk.engine.window(), desk.engine.causes())
    assert desk.tell(stale) == []
    assert (desk.engine.progress(), desk.engine.window(), desk.engine.causes()) == before


def test_a_new_assignment_replaces_one_whose_end_was_never_told() -> None:
    desk = Desk(STREAM)
    desk.live(P0, epoch=1)
    desk.deliver(part(P0, [0]))
    desk.live(P0, epoch=2)
    assert desk.engine.window() == (0, 0)
    desk.applied(1)
    assert desk.engine.progress()[P0].committable == 0


@pytest.mark.parametrize("ending", [Refused(P0, 1), Lost({P0: 1})])
def test_a_refused_or_lost_partition_drops_all_and_its_results_are_ignored(ending: Signal) -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1]))
    desk.deliver(part(P0, [2, 3]))
    desk.tell(ending)
    assert desk.engine.window() == (0, 0)
    assert desk.engine.progress() == {}
    assert desk.applied(1) == []
    assert desk.finished(P0, 0, 1) == []
    assert desk.committed(P0) == 0


def test_a_revoked_idle_partition_is_let_go_at_once_with_its_commit_point() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1], next_offset=5))
    desk.applied(1)
    assert desk.tell(Revoking({P0: 1}, 10.0)) == [LetGo(P0, 1, 5)]
    assert desk.engine.progress() == {}


def test_one_that_never_started_is_let_go_without_a_point() -> None:
    desk = Desk(STREAM)
    desk.tell(Assigned({P0: 1}))
    assert desk.tell(Revoking({P0: 1}, 10.0)) == [LetGo(P0, 1, None)]
    assert desk.tell(Ready(P0, 1, {"": 0})) == []


def test_a_revoked_partition_is_drained_first_and_what_waits_is_dropped() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1]))
    desk.deliver(part(P0, [2, 3], lanes={}))
    assert desk.tell(Revoking({P0: 1}, 10.0)) == []
    assert desk.deliver(part(P0, [4])) == []
    assert desk.applied(1) == []
    assert desk.finished(P0, 1) == []
    assert desk.finished(P0, 0) == [LetGo(P0, 1, 2)]
    assert desk.engine.window() == (0, 0)


def test_when_the_time_is_up_it_is_let_go_with_what_was_reached_and_the_rest_is_ignored() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1, 2]))
    desk.finished(P0, 0)
    desk.tell(Revoking({P0: 1}, 10.0))
    assert desk.engine.wake_at_s() == desk.now_s + 10.0
    assert desk.after(9.9) == []
    assert desk.after(0.1) == [LetGo(P0, 1, 1)]
    assert desk.finished(P0, 1) == []
    assert desk.tell(Revoking({P0: 1}, 10.0)) == []


def test_a_batch_that_holds_a_revoked_partition_and_others_goes_on() -> None:
    desk = Desk(STREAM)
    desk.live(P0, P1)
    desk.deliver(part(P0, [0]), part(P1, [0]))
    desk.tell(Revoking({P0: 1}, 10.0))
    desk.deliver(part(P1, [1]))
    actions = desk.applied(1)
    assert of(actions, LetGo) == [LetGo(P0, 1, 1)]
    assert desk.batches(actions) == [{P1: [1]}]
    assert desk.committed(P1) == 1


def test_nothing_is_committed_for_a_partition_on_its_way_out() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1]))
    desk.tell(Revoking({P0: 1}, 10.0))
    assert of(desk.finished(P0, 0), Commit) == []


def test_a_lost_partition_is_not_let_go() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1]))
    desk.tell(Revoking({P0: 1}, 10.0))
    desk.tell(Lost({P0: 1}))
    assert desk.after(60.0) == []


def test_kafka_gets_its_answer_also_for_a_partition_that_was_refused() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.tell(Refused(P0, 1))
    assert desk.tell(Revoking({P0: 1}, 10.0)) == [LetGo(P0, 1, None)]
    assert desk.tell(Revoking({P0: 1}, 10.0)) == []


def test_a_partition_refused_while_it_is_drained_is_let_go_without_a_point() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.tell(Revoking({P0: 1}, 10.0))
    assert desk.tell(Refused(P0, 1)) == [LetGo(P0, 1, None)]
    assert desk.applied(1) == []


def test_a_lost_fence_asks_kafka_again_and_reads_on_from_the_checkpoints() -> None:
    desk = Desk(STREAM)
    desk.live(P0, P1)
    desk.deliver(part(P0, [0, 1]), part(P1, [0]))
    desk.deliver(part(P0, [2]), part(P1, [1]))
    actions = desk.applied(1, P0)
    assert actions[:2] == [Pause(frozenset({P0})), TakeOver(P0, 1)]
    assert desk.batches(actions) == [{P1: [1]}]
    assert desk.engine.progress()[P0].phase is Phase.TAKING
    assert desk.deliver(part(P0, [3])) == []
    actions = desk.tell(Ready(P0, 1, {STREAM.name: 1}))
    assert actions[:2] == [Seek(P0, 1, 1), Resume(frozenset({P0}))]
    assert desk.committed(P0) == 1
    desk.applied(2)
    assert desk.batches(desk.deliver(part(P0, [1, 2, 3]))) == [{P0: [1, 2, 3]}]


def test_a_point_never_falls_within_an_epoch_not_even_with_a_fence_taken_again() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.tell(Reached(P0, 1, 20))
    assert desk.committed(P0) == 20
    desk.tell(Fenced(P0, 1))
    desk.tell(Ready(P0, 1, {LANES.name: 10}))
    assert desk.committed(P0) == 20
    assert desk.tell(Revoking({P0: 1}, 1.0)) == [LetGo(P0, 1, 20)]


def test_a_point_falls_where_the_topic_was_made_anew() -> None:
    """Found by a topic made anew under a running worker: offset 5 was never committed, because 10 had been."""
    desk = Desk(STREAM)
    desk.live(P0, starts={STREAM.name: 10})
    assert desk.committed(P0) == 10
    desk.tell(Fenced(P0, 1))
    desk.tell(Ready(P0, 1, {STREAM.name: 0}, anew=True))
    assert desk.committed(P0) == 0
    desk.deliver(part(P0, range(5)))
    desk.applied(1)
    assert desk.committed(P0) == 5


def test_what_an_old_life_had_in_flight_is_not_taken_for_the_new_ones() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1], keys={0: b"k", 1: b"k"}))
    desk.tell(Fenced(P0, 1))
    desk.tell(Ready(P0, 1, {"": 0}))
    desk.deliver(part(P0, [0, 1], keys={0: b"k", 1: b"k"}))
    desk.applied(1)
    assert desk.engine.point(STREAM.name, P0) == 0
    assert [apply.batch_id for apply in of(desk.said, Apply)] == [1, 2]
    assert desk.started() == [0, 0]


def test_a_batch_of_an_old_life_does_not_fence_the_new_one() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.tell(Fenced(P0, 1))
    desk.tell(Ready(P0, 1, {"": 0}))
    assert desk.applied(1, P0) == []
    assert desk.engine.progress()[P0].phase is Phase.LIVE


def test_a_position_reached_behind_dropped_slices_does_not_count() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.tell(Revoking({P0: 1}, 10.0))
    desk.deliver(part(P0, [1, 2]))
    desk.tell(Reached(P0, 1, 9))
    assert desk.finished(P0, 0) == [LetGo(P0, 1, 1)]


def test_a_fence_lost_while_the_partition_is_drained_lets_it_go_without_a_point() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.tell(Revoking({P0: 1}, 10.0))
    assert desk.applied(1, P0) == [LetGo(P0, 1, None)]
