"""The search for the events by which a batch fails: pieces, tries, waits, and when it is cut short."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tidegate.dlq.policy import FailurePolicy
from tidegate.dlq.retry import RetryPolicy
from tidegate.dlq.rules import DeadNow, Postponed, ReviewNow, SkipNow, Transient
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.errors import FatalError, TransientError
from tidegate.inbox.event import Event, Record
from tidegate.inbox.outcome import Reason
from tidegate.projections.fates import Died, ForReview, Later
from tidegate.projections.search import SEARCH_MIN_S, Search

REJECTED = DeadNow(Reason.REJECTED)
ERROR = ValueError("no")
CONTINUE = FailurePolicy("continue")


def event(offset: int, key: bytes | None = b"k") -> Event[Any]:
    return Event(None, Record("t", 0, offset, key, b"v"), event_id=b"%16d" % offset)


class Desk:
    """A search that is told how things went."""

    def __init__(self, n: int, policy: FailurePolicy = CONTINUE, deadline_s: float = 1.0) -> None:
        self.clock = ManualClock()
        self.events = [event(offset, b"k%d" % offset) for offset in range(n)]
        self.search = Search("revenue", policy, deadline_s, self.clock)

    def one(self, decision: Any, error: Exception = ERROR) -> Any:
        """The fate of a single event that fails so; None where it has none."""
        self.search.begin(self.events)
        assert self.search.next() == self.events
        self.search.failed(decision, error)
        return self.search.known().fates.get(id(self.events[0]))


def test_what_is_no_hiccup_is_searched_in_halves_at_once() -> None:
    desk = Desk(4)
    desk.search.failed_whole(REJECTED, ERROR, desk.events)
    assert desk.search.delay_s is None
    desk.search.begin(desk.events)
    assert desk.search.next() == desk.events[:2]


def test_what_time_heals_is_tried_once_more_as_a_whole_after_a_wait() -> None:
    desk = Desk(4)
    desk.search.failed_whole(Transient(), ERROR, desk.events)
    assert desk.search.delay_s is not None
    assert [(again.event, again.attempts) for again in desk.search.again] == [(desk.events[0], 1)]
    desk.search.begin(desk.events)
    assert desk.search.next() == desk.events


def test_a_wait_that_is_too_long_for_the_others_is_spent_in_the_queue() -> None:
    desk = Desk(1, FailurePolicy("continue", RetryPolicy(in_place_max_s=0.0)))
    fate = desk.one(Transient())
    assert isinstance(fate, Later)
    assert (fate.attempts, fate.class_attempts, fate.verdict.reason) == (1, 1, "retry")
    assert fate.due > desk.clock.now()
    assert desk.search.delay_s is None


def test_all_waits_together_take_no_longer_than_the_policy_allows() -> None:
    """Each wait would fit by itself."""
    desk = Desk(1, FailurePolicy("continue", RetryPolicy(attempts_max=100, base_s=1.0, factor=1.0, in_place_max_s=3.0)))
    spent_s = 0.0
    while desk.one(Transient()) is None:
        assert desk.search.delay_s is not None
        spent_s += desk.search.delay_s
        desk.clock.advance(desk.search.delay_s)
    assert 2.0 <= spent_s <= 3.0


def test_the_last_try_says_how_often_it_was_tried() -> None:
    desk = Desk(1, FailurePolicy("continue", RetryPolicy(attempts_max=2, in_place_max_s=100.0)))
    assert desk.one(Transient(Reason.TIMEOUT)) is None
    fate = desk.one(Transient(Reason.TIMEOUT))
    assert isinstance(fate, Died)
    assert (fate.dead.reason, fate.attempts) == (Reason.TIMEOUT, 2)


def test_a_wish_of_the_handler_is_the_wait() -> None:
    desk = Desk(1)
    fate = desk.one(Transient(after_s=20.0), TransientError("busy"))
    assert isinstance(fate, Later)
    assert fate.due == desk.clock.now() + datetime.timedelta(seconds=20)


def test_each_decision_has_its_fate() -> None:
    due = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    later = Desk(1).one(Postponed(due, 7))
    assert (later.due, later.attempts, later.effect_id, later.verdict.reason) == (due, 0, 7, "pending_effect")
    review = Desk(1).one(ReviewNow("ask the bank"))
    assert isinstance(review, ForReview)
    assert (review.verdict.reason, review.verdict.message, review.effect_id) == ("review", "ask the bank", None)
    assert Desk(1).one(ReviewNow("", 7)).verdict.reason == "unknown_effect"
    dead = Desk(1).one(REJECTED)
    assert (dead.dead.reason, dead.dead.why, dead.attempts) == (Reason.REJECTED, "no", 1)
    skipping = Desk(1)
    assert skipping.one(SkipNow("closed")) is None
    assert skipping.search.known().skipped == {id(skipping.events[0]): "closed"}
    assert skipping.search.is_settled, "its claim is made in this pass already"


def test_under_stop_nothing_gets_a_fate() -> None:
    desk = Desk(1, FailurePolicy("stop", RetryPolicy(attempts_max=3, in_place_max_s=0.0)))
    assert desk.one(Transient()) is None
    assert desk.one(Transient()) is None
    with pytest.raises(FatalError, match="'revenue' failed at t/0@0"):
        desk.one(Transient())
    with pytest.raises(FatalError, match=r"\(no\), and declares on_failure='stop'"):
        Desk(1, FailurePolicy("stop")).one(REJECTED)


def test_a_search_for_what_time_heals_ends_in_the_queue_when_it_takes_too_long() -> None:
    """Each piece hangs until the deadline: those that were not told apart by then are tried one by one elsewhere."""
    desk = Desk(4, FailurePolicy("continue", RetryPolicy(attempts_max=1)))
    desk.search.begin(desk.events)
    desk.search.failed(Transient(Reason.TIMEOUT), ERROR)
    desk.search.went_well()
    desk.clock.advance(SEARCH_MIN_S + 1)
    desk.search.failed(Transient(Reason.TIMEOUT), ERROR)
    fates = desk.search.known().fates
    assert set(fates) == {id(event) for event in desk.events[2:]}
    assert all(isinstance(fate, Later) and fate.class_attempts == 0 for fate in fates.values())
    assert desk.search.next() is None


def test_a_search_for_what_never_goes_well_is_not_cut_short() -> None:
    desk = Desk(4)
    desk.search.begin(desk.events)
    desk.clock.advance(SEARCH_MIN_S + 1)
    desk.search.failed(REJECTED, ERROR)
    assert desk.search.known().fates == {}
    assert desk.search.next() == desk.events[:2]


def test_what_waits_for_its_key_is_not_run_and_comes_with_the_next_pass() -> None:
    events = [event(0, b"a"), event(1, b"a"), event(2, b"b"), event(3, None), event(4, b"a")]
    search = Search("revenue", CONTINUE, 1.0, ManualClock())
    search.begin(events)
    search.failed(Transient(), ERROR)
    assert search.next() == events[:2]
    search.failed(Transient(), ERROR)
    assert search.next() == events[:1]
    search.failed(Transient(), ERROR)
    assert search.next() == events[2:4]
    search.went_well()
    assert search.next() is None
    assert not search.is_settled
    search.begin(events)
    ran: list[Event[Any]] = []
    while (piece := search.next()) is not None:
        ran += piece
        search.went_well()
    assert [e for e in ran if e.key == b"a"] == [events[0], events[1], events[4]]
    assert len(ran) == 5
    assert search.is_settled


def test_pieces_stay_as_they_went_well_and_lose_what_left() -> None:
    desk = Desk(4)
    desk.search.failed_whole(REJECTED, ERROR, desk.events)
    desk.search.begin(desk.events)
    desk.search.went_well()
    desk.search.went_well()
    desk.search.begin(desk.events[1:])
    assert desk.search.pieces == [desk.events[1:2], desk.events[2:]]


def test_events_that_come_back_are_tried_with_all_others() -> None:
    """A conflict led them, say: the pieces were made without them."""
    desk = Desk(4)
    desk.search.begin(desk.events[1:])
    desk.search.begin(desk.events)
    assert desk.search.next() == desk.events
