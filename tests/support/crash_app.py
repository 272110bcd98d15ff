"""The app that crash tests kill: two projections in one transaction, a command that writes, a command that publishes.

Its effects are told apart on purpose: nothing in these tables refuses a second effect, so a repeat shows as a wrong
sum, a second line in the journal, or a second id in the topic.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, Context, Event, Json, RetryPolicy, header

TABLES: Final = (
    "CREATE TABLE public.sums (customer text PRIMARY KEY, total bigint NOT NULL)",
    "CREATE TABLE public.counts (customer text PRIMARY KEY, n bigint NOT NULL)",
    "CREATE TABLE public.journal (place bigint GENERATED ALWAYS AS IDENTITY, id text, customer text, amount bigint)",
    "CREATE TABLE public.brake (place text PRIMARY KEY, seconds float8 NOT NULL)",
    """CREATE FUNCTION public.brake() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         PERFORM pg_catalog.pg_sleep(seconds) FROM public.brake WHERE place = TG_ARGV[0]; RETURN NULL; END $$""",
    """CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT OR UPDATE ON public.sums
         DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.brake('commit')""",
    """CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON public.journal
         DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.brake('commit-of-book')""",
    """CREATE TRIGGER slow_checkpoint AFTER UPDATE ON tidegate.checkpoint
         FOR EACH STATEMENT EXECUTE FUNCTION public.brake('checkpoint')""",
)
"""To be made behind `tidegate migrate`. A row in `brake` makes every transaction sleep at its place: where a test can
look at it, stop its process, or end its session, knowing where it stands."""

BRAKES: Final = ("sums", "book", "commit", "commit-of-book", "checkpoint")

MANY: Final = RetryPolicy(attempts_max=50, cap_s=1.0)
"""Tests end sessions by the dozen, as no database does: five ends in a row are no reason to give an event up."""

DEADLINE_S: Final = 300.0
"""A brake is no slow handler: what it holds up is ended by what the test does, not by a deadline."""


@dataclass(frozen=True)
class Order:
    """Taken by every handler; `poison` names the one that refuses it."""

    customer: str
    amount: int
    number: int
    poison: str


@dataclass(frozen=True)
class Refund:
    """Taken by all but `announce`, so that its commit point moves over events that are not its own."""

    customer: str
    amount: int
    number: int
    poison: str


@dataclass(frozen=True)
class Book:
    """Write it into the journal."""

    id: str
    customer: str
    amount: int
    poison: str


@dataclass(frozen=True)
class Announce:
    """Tell others."""

    id: str
    customer: str
    number: int
    poison: str


@dataclass(frozen=True)
class Announcement:
    """What others are told."""

    id: str
    customer: str
    number: int


TOPIC: Final = os.environ.get("CRASH_TOPIC", "crash")
OUT_TOPIC: Final = os.environ.get("CRASH_OUT_TOPIC", "crash-out")

app = App("crash", owner="tests")
consumer = app.consumer(
    os.environ.get("CRASH_CONSUMER", "crash"), topics=[TOPIC], codec=Json(types=[Announcement]), event_id=header("id")
)


def refuse(poison: str, handler: str) -> None:
    """The business says no."""
    if poison == handler:
        raise ValueError("refused")


async def brake(tx: AsyncConnection, place: str) -> None:
    """Sleep in the database if the test asks for it."""
    await tx.execute(text("SELECT pg_sleep(seconds) FROM public.brake WHERE place = :place"), {"place": place})


@consumer.projection("sums", deadline_s=DEADLINE_S)
async def sums(events: Sequence[Event[Order | Refund]], tx: AsyncConnection) -> None:
    """What each customer owes."""
    totals: Counter[str] = Counter()
    for event in events:
        refuse(event.value.poison, "sums")
        totals[event.value.customer] += event.value.amount
    await tx.execute(
        text("""
            INSERT INTO public.sums (customer, total) VALUES (:customer, :total)
            ON CONFLICT (customer) DO UPDATE SET total = sums.total + excluded.total
        """),
        [{"customer": customer, "total": total} for customer, total in sorted(totals.items())],
    )
    await brake(tx, "sums")


@consumer.projection("counts", deadline_s=DEADLINE_S)
async def counts(events: Sequence[Event[Order | Refund]], tx: AsyncConnection) -> None:
    """How often each customer came."""
    numbers: Counter[str] = Counter()
    for event in events:
        refuse(event.value.poison, "counts")
        numbers[event.value.customer] += 1
    await tx.execute(
        text("""
            INSERT INTO public.counts (customer, n) VALUES (:customer, :n)
            ON CONFLICT (customer) DO UPDATE SET n = counts.n + excluded.n
        """),
        [{"customer": customer, "n": n} for customer, n in sorted(numbers.items())],
    )


@consumer.command("book", on=(Order, Refund), deadline_s=DEADLINE_S, retry=MANY)
def to_book(event: Event[Order | Refund]) -> Book:
    """Every event is written down."""
    return Book(event.id_text, event.value.customer, event.value.amount, event.value.poison)


@app.handler(Book)
async def book(command: Book, ctx: Context) -> None:
    """Write through the handler's own transaction; a moment of other work lies in it, as in a real one."""
    tx = await ctx.tx
    await tx.execute(
        text("INSERT INTO public.journal (id, customer, amount) VALUES (:id, :customer, :amount) RETURNING *"),
        {"id": command.id, "customer": command.customer, "amount": command.amount},
    )
    refuse(command.poison, "book")
    await asyncio.sleep(0.001)
    await brake(tx, "book")


@consumer.command("announce", on=Order, retry=MANY)
def to_announce(event: Event[Order]) -> Announce:
    """Orders are told to others."""
    return Announce(event.id_text, event.value.customer, event.value.number, event.value.poison)


@app.handler(Announce)
async def announce(command: Announce, ctx: Context) -> None:
    """Publish by the outbox."""
    refuse(command.poison, "announce")
    announcement = Announcement(command.id, command.customer, command.number)
    await ctx.publish(OUT_TOPIC, announcement, key=command.customer)
