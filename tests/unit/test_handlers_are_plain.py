"""Handlers are plain functions: a unit test calls them, and neither Kafka nor PostgreSQL nor a worker is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, BlockingContext, Context, Effect, Event, Json, header


@dataclass(frozen=True)
class OrderPlaced:
    order_id: str
    amount: int


class PaymentFailed(BaseModel):
    order_id: str
    reason: str


@dataclass(frozen=True)
class SendInvoice:
    order_id: str
    amount: int


@dataclass(frozen=True)
class Remind:
    order_id: str


@dataclass
class InvoiceClient:
    sent: list[str] = field(default_factory=list[str])
    open: bool = True

    async def send(self, order_id: str) -> str:
        self.sent.append(order_id)
        return f"invoice of {order_id}"


app = App("billing", owner="payments-team")
orders = app.consumer("billing-orders", topics=["shop.orders"], codec=Json(), event_id=header("ce_id"))


@orders.projection("revenue")
async def revenue(events: Sequence[Event[OrderPlaced]], tx: AsyncConnection) -> None:
    await tx.execute(text("UPDATE revenue SET amount = amount + :n"), [{"n": event.value.amount} for event in events])


@orders.command("send-invoice")
def to_invoice(event: Event[OrderPlaced]) -> SendInvoice | None:
    return SendInvoice(event.value.order_id, event.value.amount) if event.value.amount else None


@orders.command("remind")
def to_reminder(event: Event[PaymentFailed]) -> Remind:
    return Remind(event.value.order_id)


@app.handler(SendInvoice)
async def send_invoice(command: SendInvoice, ctx: Context, invoices: InvoiceClient) -> None:
    written = await invoices.send(command.order_id)
    await ctx.publish("shop.invoices", {"text": written, "operation": ctx.operation_id}, key=command.order_id)


@app.handler(Remind)
def remind(command: Remind, ctx: BlockingContext) -> None:
    ctx.publish("shop.reminders", {"order_id": command.order_id})


@app.lifespan
async def clients() -> AsyncIterator[InvoiceClient]:
    client = InvoiceClient()
    yield client
    client.open = False


class Called:
    """A call that nobody made before: what a handler's test puts in place of `ctx.effect(...)`."""

    def __init__(self) -> None:
        self.key, self.attempt, self.timeout_s = "key-1", 1, 5.0
        self.is_done = False
        self.result: Any = None
        self.external_id: str | None = None

    def complete(self, result: Any = None, external_id: str | None = None) -> None:
        self.result, self.external_id = result, external_id

    def refused(self, why: str) -> None:
        """Nobody asks."""

    def __enter__(self) -> Called:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is written down."""

    async def __aenter__(self) -> Called:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is written down."""


class Ctx:
    """What a test gives a handler: it writes down what was published."""

    def __init__(self, event: Event[Any]) -> None:
        self.event, self.attempt = event, 1
        self.operation_id = self.correlation_id = event.id_text
        self.tx: Any = None
        self.session: Any = None
        self.published: list[tuple[str, object]] = []

    def effect(self, effect: str | Effect, **_: object) -> Called:
        return Called()

    async def publish(self, topic: str, value: object, **_: object) -> None:
        self.published.append((topic, value))


class BlockingCtx:
    """The same for a `def` handler."""

    def __init__(self, event: Event[Any]) -> None:
        self.event, self.attempt = event, 1
        self.operation_id = self.correlation_id = event.id_text
        self.tx: Any = None
        self.published: list[tuple[str, object]] = []

    def effect(self, effect: str | Effect, **_: object) -> Called:
        return Called()

    def publish(self, topic: str, value: object, **_: object) -> None:
        self.published.append((topic, value))


class Tx:
    def __init__(self) -> None:
        self.executed: list[object] = []

    async def execute(self, statement: object, parameters: object) -> None:
        self.executed.append(parameters)


def test_a_trigger_makes_a_command_out_of_an_event() -> None:
    assert to_invoice(Event(OrderPlaced("o1", 7))) == SendInvoice("o1", 7)
    assert to_invoice(Event(OrderPlaced("o1", 0))) is None
    assert to_reminder(Event(PaymentFailed(order_id="o2", reason="card"))) == Remind("o2")


async def test_a_handler_is_called_with_what_it_asks_for() -> None:
    ctx, invoices = Ctx(Event(OrderPlaced("o1", 7), id_text="e1")), InvoiceClient()
    await send_invoice(SendInvoice("o1", 7), ctx, invoices)
    assert invoices.sent == ["o1"]
    assert ctx.published == [("shop.invoices", {"text": "invoice of o1", "operation": "e1"})]


def test_a_blocking_handler_needs_no_loop() -> None:
    ctx = BlockingCtx(Event(PaymentFailed(order_id="o2", reason="card")))
    remind(Remind("o2"), ctx)
    assert ctx.published == [("shop.reminders", {"order_id": "o2"})]


async def test_a_projection_gets_its_events_and_a_connection() -> None:
    tx = Tx()
    await revenue([Event(OrderPlaced("o1", 7)), Event(OrderPlaced("o2", 5))], cast(AsyncConnection, tx))
    assert tx.executed == [[{"n": 7}, {"n": 5}]]


def test_payload_types_are_read_from_annotations() -> None:
    assert app.problems() == []
    assert orders.payload_types() == {OrderPlaced, PaymentFailed}
    assert isinstance(Ctx(Event(1)), Context)


async def test_resources_live_as_long_as_the_app_runs_also_when_it_ends_badly() -> None:
    async with app.open_resources() as (client,):
        assert isinstance(client, InvoiceClient)
        assert client.open
    assert not client.open
    with pytest.raises(KeyError):
        async with app.open_resources() as (client,):
            raise KeyError
    assert isinstance(client, InvoiceClient)
    assert not client.open


def test_an_override_holds_inside_its_block_only() -> None:
    fake = InvoiceClient()
    with app.override(InvoiceClient, fake):
        assert app.overrides == {InvoiceClient: fake}
    assert app.overrides == {}
