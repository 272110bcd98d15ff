"""Quiet: keep the assignment, take no new work, and say once when nothing is in flight any more."""

from __future__ import annotations

from tests.support.engine_desk import LANES, P0, P1, STREAM, Desk, of, part
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.signals import (
    Assigned,
    Commit,
    Drained,
    Fenced,
    LetGo,
    Pause,
    PauseCause,
    Quiet,
    Reached,
    Revoking,
)


def test_an_idle_engine_is_drained_at_once_and_once() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    assert desk.tell(Quiet()) == [Pause(frozenset({P0})), Drained()]
    assert desk.tell(Quiet()) == []
    assert desk.engine.causes() == {PauseCause.QUIET}


def test_what_runs_is_finished_and_what_waits_is_left() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0, 1], keys={0: b"k", 1: b"k"}))
    desk.deliver(part(P0, [2]))
    desk.tell(Quiet())
    assert desk.batches(desk.applied(1)) == []
    assert of(desk.finished(P0, 0), Drained) == []
    desk.returned(1)
    assert of(desk.finished(P0, 2), Drained) == []
    assert desk.returned(1) == [Drained()]
    assert desk.started() == [0, 2]
    assert desk.committed(P0) == 1


def test_what_came_back_but_is_not_durable_yet_is_still_in_flight() -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.tell(Quiet())
    assert desk.returned(1) == []
    assert [type(action) for action in desk.finished(P0, 0)] == [Commit, Drained]


def test_the_last_points_are_committed_before_it_is_drained_whatever_the_interval() -> None:
    desk = Desk(STREAM, policy=EnginePolicy(commit_interval_s=60.0))
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.tell(Quiet())
    assert [type(action) for action in desk.applied(1)] == [Commit, Drained]
    assert desk.committed(P0) == 1


def test_what_arrives_late_is_not_taken_and_not_passed() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.tell(Quiet())
    assert desk.deliver(part(P0, [0, 1])) == []
    assert desk.engine.window() == (0, 0)
    assert desk.tell(Reached(P0, 1, 5)) == []
    assert desk.tell(Revoking({P0: 1}, 1.0)) == [LetGo(P0, 1, 0)]


def test_a_partition_assigned_while_quiet_is_paused_and_not_taken_over() -> None:
    desk = Desk(STREAM)
    desk.tell(Quiet())
    assert desk.tell(Assigned({P1: 1})) == [Pause(frozenset({P1}))]
    assert desk.tell(Revoking({P1: 1}, 1.0)) == [LetGo(P1, 1, None)]


def test_a_fence_lost_while_quiet_is_not_taken_again() -> None:
    desk = Desk(STREAM)
    desk.live(P0)
    desk.deliver(part(P0, [0]))
    desk.tell(Quiet())
    assert desk.tell(Fenced(P0, 1)) == []
    assert desk.applied(1) == [Drained()]
    assert desk.tell(Revoking({P0: 1}, 1.0)) == [LetGo(P0, 1, None)]
