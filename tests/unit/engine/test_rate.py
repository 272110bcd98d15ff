"""A handler's rate: heads of lanes wait for their turn without a place, and a tick comes when it is theirs."""

from __future__ import annotations

from tests.support.engine_desk import P0, Desk, of, part
from tidegate.consumers.engine.signals import Drained, LaneTrack, Quiet

SLOW = LaneTrack("lanes", concurrency=100, rate_per_s=2)


def test_no_more_begin_than_the_rate_allows_and_a_tick_brings_the_next() -> None:
    desk = Desk(SLOW)
    desk.live(P0)
    desk.deliver(part(P0, range(4)))
    assert desk.started() == [0]
    assert desk.engine.wake_at_s() == desk.now_s + 0.5
    assert desk.started(desk.after(0.4)) == []
    assert desk.started(desk.after(0.1)) == [1]
    assert desk.started(desk.after(0.5)) == [2]


def test_whoever_waits_for_its_turn_takes_no_place_and_holds_up_no_stop() -> None:
    desk = Desk(SLOW)
    desk.live(P0)
    desk.deliver(part(P0, range(4)))
    desk.returned(1)
    desk.finished(P0, 0)
    assert of(desk.tell(Quiet()), Drained)
    assert desk.started() == [0]


def test_queued_rows_and_events_share_the_rate() -> None:
    desk = Desk(SLOW)
    desk.live(P0)
    assert desk.engine.turn_in_s(SLOW.name, desk.now_s) == 0.0
    desk.deliver(part(P0, [0]))
    assert desk.started() == []
    assert desk.engine.turn_in_s(SLOW.name, desk.now_s) == 0.5
    assert desk.started(desk.after(0.5)) == [0]


def test_a_handler_without_a_rate_never_waits() -> None:
    desk = Desk(LaneTrack("lanes", concurrency=2))
    desk.live(P0)
    assert [desk.engine.turn_in_s("lanes", desk.now_s) for _ in range(1_000)] == [0.0] * 1_000
    desk.deliver(part(P0, range(3)))
    assert desk.started() == [0, 1]
