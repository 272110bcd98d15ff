"""Suspects: a partition that is read one by one, and everything else standing back meanwhile."""

from __future__ import annotations

from tests.support.engine_desk import LANES, P0, P1, STREAM, Desk, of, part
from tidegate.consumers.engine.signals import (
    Assigned,
    Commit,
    Examine,
    Examined,
    Fenced,
    GoOn,
    Pause,
    PauseCause,
    Quiet,
    Ready,
    Resume,
    Seek,
    StandBack,
    StreamTrack,
    TakeOver,
)


def suspected(desk: Desk) -> None:
    """P0 is ours, and something at its head may be at fault."""
    desk.tell(Assigned({P0: 1}))
    assert desk.tell(Ready(P0, 1, {STREAM.name: 5}, suspected=True))[0] == Examine(P0, 1, 5)


def test_a_suspected_partition_is_not_read_before_it_was_examined() -> None:
    desk = Desk(STREAM, LANES)
    suspected(desk)
    assert not of(desk.said, Seek)
    desk.deliver(part(P0, [5]))
    desk.applied(1)
    desk.finished(P0, 5)
    assert desk.engine.is_done(P0, 1, 6)
    assert of(desk.tell(Examined(P0, 1)), Seek) == [Seek(P0, 1, 6)]


def test_standing_back_stops_reading_and_lets_what_is_there_come_to_its_end() -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P1)
    desk.deliver(part(P1, [0, 1], keys={0: b"k", 1: b"k"}))
    assert of(desk.tell(StandBack()), Pause) == [Pause(frozenset({P1}))]
    assert desk.engine.causes() == {PauseCause.SUSPECTS}
    desk.applied(1)
    assert desk.started(desk.finished(P1, 0)) == [1]
    assert not desk.engine.is_at_rest()
    desk.finished(P1, 1)
    assert not desk.engine.is_at_rest(), "both handlers have yet to come back"
    desk.returned(2)
    assert desk.engine.is_at_rest()
    assert of(desk.tell(GoOn()), Resume) == [Resume(frozenset({P1}))]


def test_what_is_handled_alone_does_not_wait_for_company() -> None:
    """A batch is usually worth a wait: more may come."""
    desk = Desk(patient := StreamTrack("patient", batch_max=100, batch_wait_ms=10_000))
    desk.tell(Assigned({P0: 1}))
    desk.tell(Ready(P0, 1, {patient.name: 0}, suspected=True))
    desk.tell(StandBack())
    assert desk.batches(desk.deliver(part(P0, [0]))) == [{P0: [0]}]


def test_a_partition_that_comes_meanwhile_is_paused_before_it_is_sought() -> None:
    """Between the two the client would read, and hand over what is then in flight beside the suspect."""
    desk = Desk(STREAM)
    suspected(desk)
    desk.tell(StandBack())
    said = [*desk.tell(Assigned({P1: 1})), *desk.tell(Ready(P1, 1, {STREAM.name: 0}))]
    said = [action for action in said if not isinstance(action, Commit)]
    assert said == [TakeOver(P1, 1), Pause(frozenset({P1})), Seek(P1, 1, 0)]


def test_a_partition_that_is_lost_meanwhile_is_examined_by_its_next_life() -> None:
    desk = Desk(STREAM)
    suspected(desk)
    assert of(desk.tell(Fenced(P0, 1)), TakeOver) == [TakeOver(P0, 1)]
    assert desk.engine.is_done(P0, 1, 0) is None
    assert not of(desk.tell(Examined(P0, 1)), Seek)
    assert of(desk.tell(Ready(P0, 1, {STREAM.name: 5}, suspected=True)), Examine) == [Examine(P0, 1, 5)]


def test_a_stop_begins_nothing_that_is_handed_over_one_by_one() -> None:
    desk = Desk(STREAM)
    suspected(desk)
    desk.tell(StandBack())
    desk.tell(Quiet())
    assert desk.batches(desk.deliver(part(P0, [5]))) == []
    assert not desk.engine.is_done(P0, 1, 6)
