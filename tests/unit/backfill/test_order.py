"""A window of time as offsets, and what an order may ask for."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, Event, Json, Scope, header, position
from tidegate.consumers.app import Consumer
from tidegate.consumers.backfill.order import Frame, Order, part_of, problems_of
from tidegate.inbox.event import Partition

P = Partition("orders", 0)
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("ends", "since", "until", "window"),
    [
        ((0, 10), 2, 7, (2, 7)),
        ((0, 10), None, None, (10, 10)),  # every record is older
        ((0, 10), 3, None, (3, 10)),  # none is of the end or later: the log's end counts
        ((5, 10), 2, 7, (5, 7)),  # retention was quicker
        ((8, 10), 2, 7, (8, 8)),  # and took all of it
        ((0, 0), None, None, (0, 0)),
        ((0, 4), 2, 9, (2, 4)),  # written between the two questions: not in it
        ((0, 4), 7, 9, (4, 4)),
    ],
)
def test_a_window_lies_within_the_log(
    ends: tuple[int, int], since: int | None, until: int | None, window: tuple[int, int]
) -> None:
    part = part_of(P, 3, ends, since, until)
    assert (part.start_offset, part.next_offset, part.end_offset) == (window[0], *window)
    assert (part.incarnation, part.chunk_end) == (3, None)


def shop(**options: Any) -> Consumer:
    app = App("shop", owner="tests")
    consumer = app.consumer("orders", topics=["a.events", "b"], codec=Json(), event_id=position(), **options)

    @consumer.projection("plain")
    async def plain(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None: ...

    @consumer.projection("guarded", only_if_newer=True)
    async def guarded(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None: ...

    return consumer


def order(handler: str = "guarded", hours: float = 1, **more: Any) -> Order:
    until = NOON + datetime.timedelta(hours=hours)
    return Order(consumer="orders", handler=handler, since=NOON, until=until, actor="me", reason="why", **more)


def keys(asked: Order, consumer: Consumer) -> list[str]:
    return [problem.key for problem in problems_of(asked, consumer)]


def test_what_fits_has_no_problems() -> None:
    assert keys(order(), shop()) == []
    assert keys(order(topics=("b",)), shop()) == []


def test_all_that_is_wrong_is_said_at_once() -> None:
    asked = order("gone", hours=0, topics=("a-events", "b"), rate=0)
    assert keys(asked, shop()) == ["--handler", "--to", "--topic", "--rate"]


def test_names_are_literal() -> None:
    """A topic is no pattern: `a.events` is not `a-events`, and a part of a name is none.

    Case: B42
    Parts: none
    Red when: order.py asks whether a topic's name begins with the one that was given
    """
    assert keys(order(topics=("a-events", "a", "a.*")), shop()) == ["--topic"] * 3


def test_a_projection_has_to_say_that_its_writes_are_guarded() -> None:
    (problem,) = problems_of(order("plain"), shop())
    assert "only_if_newer=True" in problem.fix


def test_whose_events_count_is_said_where_events_have_tenants() -> None:
    scoped = shop(scope=Scope(tenant=header("tenant")))
    assert keys(order(), scoped) == ["--tenant"]
    assert keys(order(tenant="A", all_tenants=True), scoped) == ["--tenant"]
    assert keys(order(tenant="A"), scoped) == keys(order(all_tenants=True), scoped) == []
    assert keys(order(tenant="A"), shop()) == ["--tenant"]


def test_the_journal_keeps_what_decides() -> None:
    frame = Frame.of(order(tenant="A", force=True).wanted())
    assert frame == Frame(1_772_366_400_000, 1_772_370_000_000, "A", force=True)
