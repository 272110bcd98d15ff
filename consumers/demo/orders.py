"""What the shop's customers do, the same in every run, and what must come of it. No IO; time is an argument."""

from __future__ import annotations

import datetime
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro

from ...inbox.outcome import Reason
from .facts import Facts

ORDERS: Final = 3_000
"""Enough for many batches, few enough for a few seconds."""

FIRST_DAY: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CUSTOMERS: Final = 97
CLOSED: Final = 1_500
"""The order of a customer whose account is closed: its invoice is refused by the business."""
NEW_SCHEMA: Final = ORDERS
"""The order that comes in schema 2, which nobody has registered."""


@dataclass(frozen=True, slots=True)
class Order:
    """One order; everything about it follows from its number."""

    number: int

    @property
    def order_id(self) -> str:
        """As customers know it."""
        return f"order-{self.number:04}"

    @property
    def customer(self) -> str:
        """Who ordered."""
        return "closed" if self.number == CLOSED else f"customer-{self.number % CUSTOMERS}"

    @property
    def tenant(self) -> str:
        """Which of the shop's two tenants sold it."""
        return "north" if self.number % 3 else "south"

    @property
    def cents(self) -> int:
        """Its amount."""
        return 500 + self.number * 7_919 % 20_000

    @property
    def on_account(self) -> bool:
        """Whether it is to be paid by invoice."""
        return self.number % 3 == 0

    @property
    def placed_at(self) -> datetime.datetime:
        """Some seven minutes after the one before."""
        return FIRST_DAY + datetime.timedelta(minutes=7 * self.number)

    @property
    def schema_id(self) -> int:
        """What it is written with."""
        return 2 if self.number == NEW_SCHEMA else 1

    def value(self) -> dict[str, Any]:
        """Its content, for either schema."""
        content = {name: getattr(self, name) for name in ("order_id", "customer", "cents", "on_account", "placed_at")}
        return content | ({"coupon": "WELCOME"} if self.schema_id == 2 else {})


def streamed() -> Iterator[Order]:
    """The orders as the shop's producer sends them: one in ten twice, because it had no answer the first time."""
    for number in range(ORDERS):
        yield Order(number)
        if number % 10 == 9:
            yield Order(number - 5)
        if number == ORDERS // 2:
            yield Order(NEW_SCHEMA)


@dataclass(frozen=True, slots=True)
class Sent:
    """A record for Kafka."""

    key: bytes
    value: bytes
    headers: Mapping[str, bytes]


class Press:
    """Makes records of orders with fastavro, so that the demo's producer shares no code with what it tries."""

    def __init__(self, schemas: Mapping[int, str]) -> None:
        self._schemas = {schema_id: fastavro.parse_schema(json.loads(text)) for schema_id, text in schemas.items()}

    def record(self, order: Order) -> Sent:
        """One order in the Confluent wire format."""
        body = io.BytesIO()
        body.write(b"\0" + order.schema_id.to_bytes(4, "big"))
        fastavro.schemaless_writer(body, self._schemas[order.schema_id], order.value())
        headers = {"ce_id": f"placed-{order.number}".encode(), "tenant": order.tenant.encode(), "brand": b"tide"}
        return Sent(order.customer.encode(), body.getvalue(), headers)


def expected(sent: Iterable[Order], *, registered: bool) -> Facts:
    """What must be found once all of `sent` was handled; `registered` says whether schema 2 is known by now."""
    sent = list(sent)
    readable = {order for order in sent if registered or order.schema_id == 1}
    invoiced = sorted(order.order_id for order in readable if order.on_account and order.number != CLOSED)
    dead = [Reason.REJECTED, *([] if registered else [Reason.UNKNOWN_SCHEMA])]
    return Facts(
        revenue=_revenue(readable),
        invoices=tuple(invoiced),
        published=tuple(invoiced),
        repeats=dict.fromkeys(("revenue-by-day", "send-invoice"), len(sent) - len(set(sent))),
        dead=tuple(sorted(dead)),
        letters=tuple(sorted([Reason.REJECTED, Reason.UNKNOWN_SCHEMA])),
    )


def _revenue(orders: Iterable[Order]) -> dict[tuple[str, datetime.date], tuple[int, int]]:
    placed: Counter[tuple[str, datetime.date]] = Counter()
    cents: Counter[tuple[str, datetime.date]] = Counter()
    for order in orders:
        day = (order.tenant, order.placed_at.date())
        placed[day] += 1
        cents[day] += order.cents
    return {day: (placed[day], cents[day]) for day in placed}
