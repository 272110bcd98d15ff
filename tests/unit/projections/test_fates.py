"""Who waits for whom: the order of a key's events under `block`."""

from __future__ import annotations

import datetime
from typing import Any

from tidegate.dlq.policy import FailurePolicy
from tidegate.inbox.event import Event, Record
from tidegate.inbox.failure_rows import Verdict
from tidegate.inbox.outcome import Dead, Reason
from tidegate.projections.fates import (
    BEHIND,
    Died,
    Fate,
    ForReview,
    Later,
    conflict,
    in_order,
    is_alone,
    is_conflict,
)

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RETRIED = Later(Verdict("retry"), NOW, 1, 1)
DEAD = Died(Dead(Reason.REJECTED, "no"))
WAITS = Later(BEHIND, NOW)
BLOCK, HOLD, CONTINUE = FailurePolicy("block"), FailurePolicy("block", after_dead="hold"), FailurePolicy("continue")


def event(offset: int, key: bytes | None = b"k", topic: str = "t") -> Event[Any]:
    return Event(None, Record(topic, 0, offset, key, b"v"), event_id=b"%16d" % offset)


def ordered(events: list[Event[Any]], fates: dict[int, Fate], policy: FailurePolicy = BLOCK) -> list[Fate | None]:
    """The fates by the events' places."""
    found = in_order(events, {id(events[n]): fate for n, fate in fates.items()}, (), policy, NOW)
    return [found.get(id(event)) for event in events]


def test_behind_what_is_tried_again_its_key_waits_and_others_do_not() -> None:
    events = [event(0), event(1), event(2, b"other"), event(3, None), event(4, topic="u"), event(5)]
    assert ordered(events, {0: RETRIED}) == [RETRIED, WAITS, None, None, None, WAITS]


def test_what_is_before_it_does_not_wait() -> None:
    assert ordered([event(0), event(1), event(2)], {1: RETRIED}) == [None, RETRIED, WAITS]


def test_a_persons_event_holds_its_key_and_a_dead_one_only_where_that_is_declared() -> None:
    events = [event(0), event(1)]
    review = ForReview(Verdict("review"))
    assert ordered(events, {0: review}) == [review, WAITS]
    assert ordered(events, {0: DEAD}) == [DEAD, None]
    assert ordered(events, {0: DEAD}, HOLD) == [DEAD, WAITS]


def test_a_verdict_behind_one_that_holds_does_not_count_unless_it_is_a_conflict() -> None:
    events = [event(0), event(1), event(2)]
    contradiction = conflict(BLOCK)
    assert ordered(events, {0: RETRIED, 1: DEAD, 2: contradiction}) == [RETRIED, WAITS, contradiction]


def test_in_a_parked_key_all_wait() -> None:
    events = [event(0), event(1, b"other")]
    assert in_order(events, {}, {("t", b"k")}, BLOCK, NOW) == {id(events[0]): WAITS}


def test_an_event_without_a_key_is_alone_and_so_is_everything_where_keys_go_on() -> None:
    assert ordered([event(0, None), event(1, None)], {0: RETRIED}) == [RETRIED, None]
    assert ordered([event(0), event(1)], {0: RETRIED}, CONTINUE) == [RETRIED, None]
    assert [is_alone(event(0), BLOCK), is_alone(event(0, None), BLOCK), is_alone(event(0), CONTINUE)] == [
        False, True, True,
    ]  # fmt: skip


def test_a_conflict_is_dead_or_a_persons_as_declared() -> None:
    review = FailurePolicy("block", on_conflict="review")
    assert isinstance(conflict(BLOCK), Died)
    assert isinstance(conflict(review), ForReview)
    assert is_conflict(conflict(BLOCK))
    assert is_conflict(conflict(review))
    assert not is_conflict(DEAD)
