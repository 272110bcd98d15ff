"""The example's handlers are functions: called here as in any unit test, with nothing running."""

from __future__ import annotations

import datetime
from typing import Any, cast

import pytest

from tidegate.consumers import Context, Event
from tidegate.consumers.demo.shop import (
    AccountClosed,
    InvoiceClient,
    InvoiceSent,
    OrderPlaced,
    SendInvoice,
    app,
    invoice_for,
    send_invoice,
)

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def placed(*, on_account: bool) -> Event[OrderPlaced]:
    return Event(OrderPlaced("order-1", "customer-1", 500, on_account, NOW))


class Notes:
    """Stands for a Context: keeps what the handler does."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.published: list[tuple[str, object, object]] = []
        self.tx = self

    async def execute(self, _statement: object, parameters: dict[str, Any]) -> None:
        self.rows.append(parameters)

    async def publish(self, topic: str, value: object, *, key: object = None) -> None:
        self.published.append((topic, value, key))


def test_an_order_on_account_leads_to_an_invoice() -> None:
    assert invoice_for(placed(on_account=True)) == SendInvoice("order-1", "customer-1", 500)


def test_an_order_that_is_paid_leads_to_nothing() -> None:
    assert invoice_for(placed(on_account=False)) is None


async def test_an_invoice_is_issued_written_down_and_told() -> None:
    notes = Notes()
    await send_invoice(SendInvoice("order-1", "customer-1", 500), cast("Context", notes), InvoiceClient())
    assert notes.rows == [{"number": "INV-order-1", "order_id": "order-1", "cents": 500}]
    assert notes.published == [("shop.invoices", InvoiceSent("INV-order-1", "order-1", 500), "customer-1")]


async def test_a_closed_account_gets_no_invoice() -> None:
    notes = Notes()
    with pytest.raises(AccountClosed):
        await send_invoice(SendInvoice("order-1", "closed", 500), cast("Context", notes), InvoiceClient())
    assert notes.rows == []
    assert notes.published == []


def test_the_declarations_are_sound() -> None:
    assert app.problems() == []
