"""The board: what is alive, what is ready, and every reason why not. Time is given."""

from __future__ import annotations

from tidegate.consumers.health import HealthBoard
from tidegate.inbox.clock import ManualClock


def board() -> tuple[HealthBoard, ManualClock]:
    clock = ManualClock()
    return HealthBoard(clock.monotonic_s), clock


def test_liveness_is_the_poll_loop_and_never_a_dependency() -> None:
    """Database, registry and broker away for three minutes: no restart is asked for.

    Case: B58
    Parts: real (health board), manual clock
    Red when: health.py `live` adds `self._away` to its reasons
    """
    health, clock = board()
    health.polled_at = clock.monotonic_s
    health.away("database")
    health.away("broker")
    clock.advance(180)
    assert health.live(30).ok
    assert not health.ready().ok


def test_liveness_fails_when_the_poll_loop_hangs_or_the_client_is_dead() -> None:
    """A fatal client error is not polled over for ever.

    Case: B12
    Parts: real (health board), manual clock
    Red when: health.py `live` leaves `fatal` out of its reasons
    """
    health, clock = board()
    turned_at = clock.monotonic_s()
    health.polled_at = lambda: turned_at
    assert health.live(30).ok
    clock.advance(31)
    assert not health.live(30).ok
    health.polled_at = clock.monotonic_s
    assert health.live(30).ok
    health.fatal = "_FENCED"
    assert "_FENCED" in str(health.live(30).body)
    assert not health.live(30).ok


def test_before_the_client_started_it_is_alive_but_not_ready() -> None:
    health, clock = board()
    clock.advance(600)  # the database is away, and the worker waits for it before it joins the group
    assert health.live(30).ok
    assert health.ready().body["reasons"] == ["no assignment yet"]


def test_a_subscription_error_is_latched_until_it_is_cleared() -> None:
    """A topic that does not exist keeps the process unready, by name, until it exists.

    Case: B12
    Parts: real (health board), manual clock
    Red when: health.py `ready` leaves `topics` out of its reasons
    """
    health, clock = board()
    health.assigned = 4
    assert health.ready().ok
    health.topic_error("shop.orders", "unknown topic or partition")
    for _ in range(5):
        clock.advance(60)
        answer = health.ready()
        assert not answer.ok
        assert "shop.orders" in answer.body["reasons"][0]
    health.topic_error("shop.orders", None)
    assert health.ready().ok


def test_a_member_without_partitions_is_ready() -> None:
    health, _ = board()
    health.assigned = 0  # the group answered: there are more members than partitions
    assert health.ready().ok


def test_every_reason_is_told_at_once() -> None:
    health, clock = board()
    health.away("database")
    clock.advance(5)
    health.away("database")  # said again: the outage began with the first
    health.topic_error("t", "forbidden")
    health.stopping = True
    health.fatal = "gone"
    reasons = health.ready().body["reasons"]
    assert reasons == ["stopping", "fatal: gone", "no assignment yet", "database is away for 5 s", "topic t: forbidden"]
    health.back("database")
    assert health.dependencies_away == {}


def test_what_holds_events_back_on_purpose_is_said_with_its_reason() -> None:
    health, _ = board()
    health.assigned = 1
    health.hold("bill", "101 events in a row would be dead, 100 may be")
    assert health.ready().body["reasons"] == ["bill is held back: 101 events in a row would be dead, 100 may be"]
    assert health.ready().body["held_back"] == {"bill": "101 events in a row would be dead, 100 may be"}
    health.let_go("bill")
    assert health.ready().ok
