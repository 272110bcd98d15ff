"""The example shop, all that its team writes: revenue by day is added up, and orders on account get an invoice.

Nothing in here knows of repeats, offsets, retries or dead letters.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from .. import App, Avro, Context, Event, Scope, header

app = App("shop", owner="shop-team")

orders = app.consumer(
    "billing",
    topics=["shop.orders"],
    codec=Avro(),
    event_id=header("ce_id"),
    scope=Scope(tenant=header("tenant"), brand=header("brand")),
)


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """An event: what happened. `coupon` is new in schema 2."""

    order_id: str
    customer: str
    cents: int
    on_account: bool
    placed_at: datetime.datetime
    coupon: str | None = None


# A projection: a batch of events becomes a read model, in one transaction.


@orders.projection("revenue-by-day", version=1, freshness_s=60)
async def revenue_by_day(events: Sequence[Event[OrderPlaced]], tx: AsyncConnection) -> None:
    """Add the batch's orders to their days."""
    placed = Counter((event.tenant, event.value.placed_at.date()) for event in events)
    cents: Counter[tuple[str | None, datetime.date]] = Counter()
    for event in events:
        cents[event.tenant, event.value.placed_at.date()] += event.value.cents
    days = [{"tenant": day[0], "day": day[1], "orders": placed[day], "cents": cents[day]} for day in sorted(placed)]
    await tx.execute(ADD_TO_DAY, days)


ADD_TO_DAY = text("""
    INSERT INTO revenue_by_day AS old VALUES (:tenant, :day, :orders, :cents) ON CONFLICT (tenant, day)
    DO UPDATE SET orders = old.orders + excluded.orders, cents = old.cents + excluded.cents
""")


# A command: an event leads to something that is to be done, and its one handler does it.


@dataclass(frozen=True, slots=True)
class SendInvoice:
    """A command: what is to be done."""

    order_id: str
    customer: str
    cents: int


@dataclass(frozen=True, slots=True)
class InvoiceSent:
    """The event that we publish."""

    invoice: str
    order_id: str
    cents: int


@orders.command("send-invoice", on=OrderPlaced)
def invoice_for(event: Event[OrderPlaced]) -> SendInvoice | None:
    """Orders on account get an invoice; the others are paid already."""
    order = event.value
    return SendInvoice(order.order_id, order.customer, order.cents) if order.on_account else None


@app.handler(SendInvoice)
async def send_invoice(command: SendInvoice, ctx: Context, invoices: InvoiceClient) -> None:
    """Issue it, write it down, tell the others: the row and the record land together, once."""
    number = await invoices.issue(command.order_id, command.customer)
    row = {"number": number, "order_id": command.order_id, "cents": command.cents}
    await ctx.tx.execute(text("INSERT INTO invoice VALUES (:number, :order_id, :cents)"), row)
    await ctx.publish("shop.invoices", InvoiceSent(number, command.order_id, command.cents), key=command.customer)


class AccountClosed(Exception):
    """The business says no, and no retry will change that."""


class InvoiceClient:
    """Stands for the invoice service. The order's id is its idempotency key: asked again, it gives the same number."""

    async def issue(self, order_id: str, customer: str) -> str:
        """The invoice's number. Raises AccountClosed."""
        if customer == "closed":
            raise AccountClosed("this customer's account is closed")
        return f"INV-{order_id}"


@app.lifespan
async def clients() -> AsyncIterator[InvoiceClient]:
    """What handlers ask for by type; here it would open and close connections."""
    yield InvoiceClient()
