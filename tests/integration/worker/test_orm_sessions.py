"""`ctx.session`: what an ORM session holds commits with the event's claim, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import ForeignKey, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters
from tests.support.running import Sent, Stage, reader
from tidegate.consumers import BlockingContext, BlockingTx, CallNext, Context, Event, Handling, RetryPolicy

PUBLIC = {"schema": "public"}


class Mapping(DeclarativeBase):
    """What is mapped here."""


class Order(Mapping):
    """An order and its lines."""

    __tablename__ = "shop_order"
    __table_args__ = PUBLIC
    id: Mapped[str] = mapped_column(primary_key=True)
    lines: Mapped[list[Line]] = relationship(back_populates="order", cascade="all, delete-orphan")


class Line(Mapping):
    """A line of an order; no two of one name."""

    __tablename__ = "shop_line"
    __table_args__ = PUBLIC
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey("public.shop_order.id"))
    name: Mapped[str] = mapped_column(unique=True)
    order: Mapped[Order] = relationship(back_populates="lines")


@pytest.fixture
async def shop(stage: Stage) -> Stage:
    """The mapped tables."""
    await stage.execute(
        "CREATE TABLE public.shop_order (id text PRIMARY KEY)",
        "CREATE TABLE public.shop_line (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
        " order_id text REFERENCES public.shop_order, name text UNIQUE)",
    )
    return stage


async def lines(stage: Stage) -> list[tuple[str, str]]:
    return [
        tuple(row) for row in await stage.rows("SELECT order_id, name FROM public.shop_line ORDER BY order_id, name")
    ]


async def test_what_the_session_holds_commits_with_the_claim_and_needs_no_flush(shop: Stage, topic: Topic) -> None:
    """Objects, their relations, what was read before: one session for a handling, on the transaction of `ctx.tx`."""
    name = topic()
    app = reader(name)
    same: list[bool] = []

    async def place(command: Do, ctx: Context) -> None:
        session = await ctx.session
        assert (
            await ctx.tx.scalar(text("SELECT count(*) FROM public.shop_order WHERE id = :id"), {"id": command.id})
        ) == 0
        session.add(Order(id=command.id, lines=[Line(name=f"{command.id}-{n}") for n in range(2)]))
        await session.flush()
        found = await session.scalar(select(Order).where(Order.id == command.id))
        same.append(found is not None and await ctx.session is session)
        session.add(Line(order_id=command.id, name=f"{command.id}-late"))

    at_desk(app, place)
    worker = await shop.ready(app)
    await shop.send(name, Sent("a"), Sent("b"))
    await worker.until(lambda: worker.events("do", "completed") == 2)
    assert same == [True, True]
    assert await lines(shop) == [(o, f"{o}-{n}") for o in ("a", "b") for n in ("0", "1", "late")]


async def test_a_failure_undoes_it_also_one_that_only_the_last_flush_meets(shop: Stage, topic: Topic) -> None:
    """The handler has returned; what the database then says is its event's failure, and nothing of it stays."""
    name = topic()
    app = reader(name)
    letters(app, topic)

    async def place(command: Do, ctx: Context) -> None:
        session = await ctx.session
        session.add(Order(id=command.id, lines=[Line(name="the same")]))
        if command.id == "raised":
            await session.flush()
            raise ValueError("no")

    at_desk(app, place)
    worker = await shop.ready(app)
    await shop.send(name, Sent("raised"), Sent("first"), Sent("second"))
    await worker.until(lambda: worker.events("do", "completed") == 1 and worker.events("do", "failed") == 2)
    assert await shop.rows("SELECT id FROM public.shop_order") == [("first",)]
    types = await shop.rows("SELECT id_text, exception_type FROM tidegate.failure ORDER BY id")
    assert types[0] == ("raised", "ValueError")
    assert (types[1][0], types[1][1].rpartition(".")[2]) == ("second", "IntegrityError")


@pytest.mark.parametrize("way", ["commit", "begin", "rollback"])
async def test_the_session_does_not_end_the_transaction(way: str, shop: Stage, topic: Topic) -> None:
    """A commit is refused, a rollback leaves nothing to be claimed; both say what to do. A savepoint is fine."""
    name = topic()
    app = reader(name)
    letters(app, topic)

    async def place(command: Do, ctx: Context) -> None:
        session = await ctx.session
        async with session.begin_nested():
            session.add(Order(id=command.id))
        if command.id == "bad" and way == "commit":
            await session.commit()
        if command.id == "bad" and way == "rollback":
            await session.rollback()

    async def begin(command: Do, ctx: Context) -> None:
        session = await ctx.session
        if command.id == "bad":
            async with session.begin():
                session.add(Order(id=command.id))
        else:
            session.add(Order(id=command.id))

    at_desk(app, begin if way == "begin" else place)
    worker = await shop.ready(app)
    await shop.send(name, Sent("bad"), Sent("good"))
    await worker.until(lambda: worker.events("do", "completed") == 1 and worker.events("do", "failed") == 1)
    assert await shop.rows("SELECT id FROM public.shop_order") == [("good",)]
    why = await shop.value("SELECT message FROM tidegate.failure")
    assert ("was rolled back" if way == "rollback" else "committed by the framework") in why


async def test_nobody_uses_it_behind_its_handling(shop: Stage, topic: Topic) -> None:
    name = topic()
    app = reader(name)
    kept: list[AsyncSession] = []

    async def place(command: Do, ctx: Context) -> None:
        kept.append(await ctx.session)
        kept[0].add(Order(id=command.id))

    at_desk(app, place)
    worker = await shop.ready(app)
    await shop.send(name, Sent("a"))
    await worker.until(lambda: worker.events("do", "completed") == 1)
    with pytest.raises(Exception, match="permanently closed"):
        await kept[0].execute(text("SELECT 1"))


async def test_projections_have_one_through_a_middleware_and_def_handlers_are_told_why_not(
    shop: Stage, topic: Topic
) -> None:
    name = topic()
    app = reader(name)
    (consumer,) = app.consumers.values()
    letters(app, topic)

    @app.middleware
    async def orders(ctx: Handling, call_next: CallNext) -> object:
        if ctx.handler == "projection":
            session = await ctx.session
            session.add_all(Order(id=event.id_text) for event in ctx.events)
        return await call_next()

    @consumer.projection("projection", retry=RetryPolicy(attempts_max=1))
    def project(events: Sequence[Event[dict[str, Any]]], tx: BlockingTx | AsyncConnection) -> None:
        return None

    @app.handler(Do)
    def do(command: Do, ctx: BlockingContext) -> None:
        ctx.session  # noqa: B018 - asking is enough  # pyright: ignore[reportAttributeAccessIssue] - it has none, and says so

    @consumer.command("do", on="Thing")
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    worker = await shop.ready(app)
    await shop.send(name, Sent("a"))
    await worker.until(lambda: worker.events("projection", "completed") == 1 and worker.events("do", "failed") == 1)
    assert await shop.rows("SELECT id FROM public.shop_order") == [("a",)]
    assert "belongs to the event loop" in await shop.value("SELECT message FROM tidegate.failure")
