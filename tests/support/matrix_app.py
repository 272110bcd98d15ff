"""The app that the crash matrix kills: one handler for each kind of handling.

Nothing in its tables refuses a second effect: a repeat shows as a second line in the journal, a wrong sum, a second id
in the topic, or a second call at the provider.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.provider import look_up
from tidegate.consumers import (
    App,
    Asked,
    Context,
    Done,
    Event,
    Json,
    NotDone,
    RetryPolicy,
    header,
    idempotent_key,
    probe,
    review,
)
from tidegate.inbox.effect_rules import ProbeAnswer
from tidegate.inbox.points import Point, reach

T = TypeVar("T")

TABLES: Final = (
    "CREATE TABLE public.sums (id text PRIMARY KEY, times bigint NOT NULL)",
    "CREATE TABLE public.checked (id text PRIMARY KEY)",
    "CREATE TABLE public.journal (place bigint GENERATED ALWAYS AS IDENTITY, id text NOT NULL)",
)

AT_ONCE: Final = RetryPolicy(attempts_max=2, base_s=0.01, in_place_max_s=0.0)
"""Every second attempt goes by the slow way."""

CALL_S: Final = 1.0
MARGIN_S: Final = 0.5
"""Short, so that what was in doubt is settled soon."""


@dataclass(frozen=True)
class Numbered:
    """An event, and the command that it leads to."""

    number: int


class Sums(Numbered):
    """Counted by a projection."""


class Checked(Numbered):
    """Refused by a projection."""


class Note(Numbered):
    """Nothing but a claim."""


class Book(Numbered):
    """Writes through the handler's own transaction."""


class Tell(Numbered):
    """Is told to others."""


class Keyed(Numbered):
    """Calls a provider that knows keys."""


class Probed(Numbered):
    """Calls a provider that can be asked."""


class Reviewed(Numbered):
    """Calls a provider that knows nothing."""


class Unsaid(Numbered):
    """Calls a provider that can be asked, and forgets to say what it answered."""


class Refused(Numbered):
    """Fails for good."""


class Later(Numbered):
    """Fails at its first attempt."""


class Again(Numbered):
    """Fails at its first attempt, and writes at its second."""


class Twice(Numbered):
    """Fails at every attempt, the second one on the slow way."""


@dataclass(frozen=True)
class Picky(Numbered):
    """Cannot be decoded while CRASH_PICKY is set."""

    def __post_init__(self) -> None:
        if "CRASH_PICKY" in os.environ:
            raise ValueError("not now")


@dataclass(frozen=True)
class Told:
    """What others are told."""

    id: str


TOPIC: Final = os.environ.get("CRASH_TOPIC", "crash")
OUT_TOPIC: Final = os.environ.get("CRASH_OUT_TOPIC", "crash-out")
PROVIDER: Final = int(os.environ.get("CRASH_PROVIDER", "1"))
"""Its port."""

app = App("matrix", owner="tests")
consumer = app.consumer(
    os.environ.get("CRASH_CONSUMER", "crash"), topics=[TOPIC], codec=Json(types=[Told]), event_id=header("id")
)


@consumer.projection("sums", on=Sums)
async def sums(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
    """Count each id."""
    await tx.execute(
        text("INSERT INTO public.sums VALUES (:id, 1) ON CONFLICT (id) DO UPDATE SET times = sums.times + 1"),
        [{"id": event.id_text} for event in events],
    )


@consumer.projection("checked", on=Checked)
async def checked(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
    """Refuse every event."""
    await tx.execute(text("INSERT INTO public.checked VALUES (:id)"), [{"id": event.id_text} for event in events])
    raise ValueError("refused")


def itself(event: Event[T]) -> T:
    """The event says all that the command needs."""
    return event.value


for kind in (Note, Book, Tell, Keyed, Probed, Unsaid, Refused, Picky):
    consumer.command(kind.__name__.lower(), on=kind)(itself)
consumer.command("reviewed", on=Reviewed, effects=["reviewed"])(itself)
"""One at a time, by default: so many can one kill put to review."""
for kind in (Later, Again, Twice):
    consumer.command(kind.__name__.lower(), on=kind, retry=AT_ONCE)(itself)


@app.handler(Note)
async def note(command: Note, ctx: Context) -> None:
    """Do nothing."""


@app.handler(Picky)
async def picky(command: Picky, ctx: Context) -> None:
    """Do nothing."""


@app.handler(Book)
async def book(command: Book, ctx: Context) -> None:
    """Write a line."""
    await ctx.tx.execute(text("INSERT INTO public.journal (id) VALUES (:id)"), {"id": ctx.event.id_text})


@app.handler(Tell)
async def tell(command: Tell, ctx: Context) -> None:
    """Publish."""
    await ctx.publish(OUT_TOPIC, Told(ctx.event.id_text), key="k")


@app.handler(Refused)
async def refused(command: Refused, ctx: Context) -> None:
    """Say no."""
    raise ValueError("refused")


@app.handler(Later)
async def later(command: Later, ctx: Context) -> None:
    """Not now."""
    if ctx.attempt == 1:
        raise ConnectionResetError("not now")


@app.handler(Again)
async def again(command: Again, ctx: Context) -> None:
    """Not now, and then with a transaction."""
    if ctx.attempt == 1:
        raise ConnectionResetError("not now")
    await ctx.tx.execute(text("INSERT INTO public.journal (id) VALUES (:id)"), {"id": ctx.event.id_text})


@app.handler(Twice)
async def twice(command: Twice, ctx: Context) -> None:
    """Never."""
    raise ConnectionResetError("never")


async def ask(asked: Asked) -> ProbeAnswer:
    """The provider knows what it did."""
    found = await look_up(PROVIDER, asked.operation_id)
    return NotDone() if found is None else Done(found, found)


def send(name: str, key: str, operation: str) -> str:
    """One call. Only where keys are the rule it carries one: a repeat elsewhere would be a second effect."""
    body = json.dumps({"operation": operation})
    line = http.client.HTTPConnection("127.0.0.1", PROVIDER)
    line.request("POST", "/do", body, {"Idempotency-Key": key} if name == "keyed" else {})
    reach(Point.IN_CALL, name)  # the request has left this process
    answer: dict[str, str] = json.loads(line.getresponse().read())
    line.close()
    return answer["id"]


EFFECTS: Final = {
    "keyed": idempotent_key(valid_s=86_400, then=review()),
    "probed": probe(ask),
    "reviewed": review(),
    "unsaid": probe(ask),
}
for name, rule in EFFECTS.items():
    app.effect(name, rule=rule, deadline_s=CALL_S, margin_s=MARGIN_S, provider="stand-in")


async def pay(name: str, ctx: Context) -> None:
    """Call the provider, once."""
    async with ctx.effect(name, request=ctx.event.id_text) as effect:
        if not effect.is_done:
            answer = await asyncio.to_thread(send, name, effect.key, ctx.event.id_text)
            effect.complete(answer, answer)


@app.handler(Keyed)
async def keyed(command: Keyed, ctx: Context) -> None:
    """By key."""
    await pay("keyed", ctx)


@app.handler(Probed)
async def probed(command: Probed, ctx: Context) -> None:
    """By question."""
    await pay("probed", ctx)


@app.handler(Reviewed)
async def reviewed(command: Reviewed, ctx: Context) -> None:
    """By a person."""
    await pay("reviewed", ctx)


@app.handler(Unsaid)
async def unsaid(command: Unsaid, ctx: Context) -> None:
    """By question, which the reconciler asks: whose outcome nobody said waits and is not tried again."""
    async with ctx.effect("unsaid", request=ctx.event.id_text) as effect:
        if not effect.is_done:
            await asyncio.to_thread(send, "unsaid", effect.key, ctx.event.id_text)
