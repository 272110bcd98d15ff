"""The demo's own judgement: what differs is found, also where the totals are equal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tidegate.consumers.demo.facts import broken
from tidegate.consumers.demo.orders import CLOSED, NEW_SCHEMA, ORDERS, Order, expected, streamed

SENT = list(streamed())
KEPT = expected(SENT, registered=True)


def test_the_stream_holds_what_the_demo_tells_of() -> None:
    times = Counter(order.number for order in SENT)
    assert len(times) == ORDERS + 1
    assert Counter(times.values()) == {1: ORDERS + 1 - 300, 2: 300}
    assert times[NEW_SCHEMA] == times[CLOSED] == 1
    assert Order(CLOSED).on_account
    assert Order(NEW_SCHEMA).on_account


def test_what_is_as_expected_breaks_nothing() -> None:
    assert broken(KEPT, KEPT) == []
    assert KEPT.orders == ORDERS + 1
    assert KEPT.cents == sum(order.cents for order in set(SENT))


def test_a_cent_on_another_day_is_found_though_the_sum_is_right() -> None:
    first, second, *_ = sorted(KEPT.revenue)
    moved = {
        **KEPT.revenue,
        first: (KEPT.revenue[first][0], KEPT.revenue[first][1] + 1),
        second: (KEPT.revenue[second][0], KEPT.revenue[second][1] - 1),
    }
    (text,) = broken(replace(KEPT, revenue=moved), KEPT)
    assert text.startswith("euros in it: ")


def test_an_invoice_for_one_order_twice_and_for_another_never_is_found() -> None:
    invoices = (KEPT.invoices[0], *KEPT.invoices[:-1])
    (text,) = broken(replace(KEPT, invoices=invoices), KEPT)
    assert "order-0000: 2 instead of 1" in text


def test_before_the_repair_the_unread_order_is_a_dead_letter() -> None:
    before = expected(SENT, registered=False)
    assert before.orders == ORDERS
    assert sorted(before.dead) == ["rejected", "unknown_schema"]
    assert sorted(KEPT.dead) == ["rejected"]
