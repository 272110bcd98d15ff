"""Bad input of every kind, each to a clear end: nothing is lost, and nobody else's event suffers."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from tests.services.topics import Topic
from tests.support.desk import Do, letters
from tests.support.odd_errors import odd
from tests.support.provider import Behaviour, Provider, call, provider
from tests.support.running import Sent, Stage, reader
from tidegate.consumers import (
    App,
    Context,
    Event,
    Json,
    Retry,
    RetryPolicy,
    Scope,
    Tx,
    cloudevents,
    header,
    idempotent_key,
    review,
)
from tidegate.inbox import clock

QUICK = RetryPolicy(attempts_max=3, base_s=0.001, cap_s=0.002)


def doing(app: App, handler: Any, name: str = "do", **options: Any) -> App:
    """A command of every event, and its handler."""
    (consumer,) = app.consumers.values()
    app.handler(Do)(handler)
    declared: dict[str, Any] = {"retry": QUICK, **options}

    @consumer.command(name, on="Thing", **declared)
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    return app


# ------------------------------------------------------------------------------------------------ returns nonsense


async def later() -> None:
    """What a forgotten `await` gives back."""


NONSENSE: dict[str, Callable[[], object]] = {
    "false": lambda: False,
    "number": lambda: 7,
    "text": lambda: "done",
    "class": lambda: RetryPolicy,
    "coroutine": later,
    "itself": lambda: NONSENSE,
}


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_handler_that_returns_nonsense_has_said_nothing(stage: Stage, topic: Topic, kind: str) -> None:
    """Its event is dead, with the fix in the letter; its neighbours are handled, in both kinds of function.

    Case: B36
    Parts: real (Kafka, PostgreSQL)
    Red when: dlq/outcomes.py outcome_of gives Handled() for what it does not know
    """
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)

    async def do(command: Do, ctx: Context) -> object:
        return NONSENSE.get(command.id, lambda: None)()

    def do_blocking(command: Do) -> object:
        return NONSENSE.get(command.id, lambda: None)()

    doing(app, do if kind == "async def" else do_blocking)
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in (*NONSENSE, "fine")))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "failed", n=len(NONSENSE))
    await worker.until_counted("events", "do", "completed", n=1)
    found = await stage.rows("SELECT id_text, reason, message FROM tidegate.failure ORDER BY record_offset")
    assert [(id_text, reason) for id_text, reason, _ in found] == [(id_text, "rejected") for id_text in NONSENSE]
    assert all("return" in message for _, _, message in found), found


# -------------------------------------------------------------------------------------- raises what nobody can look at


ODD = ("__module__", "__str__", "__bool__", "__cause__", "__context__", "__traceback__", "args")


@pytest.mark.parametrize("kind", ["async def", "def", "projection", "slow way"])
async def test_an_exception_that_raises_when_it_is_looked_at_is_its_events_end_like_any(
    stage: Stage, topic: Topic, kind: str
) -> None:
    """Each event is dead, with a class and a text in its letter; what comes behind is handled.

    Case: B36
    Parts: real (Kafka, PostgreSQL)
    Red when: inbox/exception_slots.py `cause_of` gives `exc.__cause__`
    """
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()

    def look(id_: str) -> None:
        if id_ in ODD:
            raise odd(id_)
        if id_ in ("exceptions", "orig"):
            raise odd(id_, of=ExceptionGroup if id_ == "exceptions" else IntegrityError)

    async def do(command: Do, ctx: Context) -> Retry | None:
        if kind == "slow way" and ctx.attempt == 1:
            return Retry("later")
        look(command.id)
        return None

    def do_blocking(command: Do) -> None:
        look(command.id)

    if kind == "projection":

        @consumer.projection("do")
        async def note_all(events: Sequence[Event[Any]], tx: Tx) -> None:
            for event in events:
                look(event.id_text)

    else:
        retry = RetryPolicy(attempts_max=3, base_s=0.001, in_place_max_s=0.0)
        doing(app, do_blocking if kind == "def" else do, retry=retry)
    ids = (*ODD, "exceptions", "orig")
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in (*ids, "fine")))
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "failed", n=len(ids))
    await worker.until_counted("events", "do", "completed", n=1)
    found = await stage.rows("SELECT id_text, reason, exception_type, message FROM tidegate.failure ORDER BY 1")
    assert [(id_text, reason) for id_text, reason, _, _ in found] == [(id_text, "rejected") for id_text in sorted(ids)]
    assert all(type_ and message for _, _, type_, message in found), found


# --------------------------------------------------------------------------------------------- a clock that jumps


REAL = datetime.datetime


class PutBack(datetime.datetime):
    """The wall clock of a machine that an operator has put back by an hour."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> PutBack:
        there = REAL.now(tz) - datetime.timedelta(hours=1)
        return cls.combine(there.date(), there.timetz())


async def test_a_clock_that_jumps_back_an_hour_delays_nothing(
    stage: Stage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event whose retry waits in the queue is due when the database's clock says so.

    Case: B37
    Parts: real (Kafka, PostgreSQL)
    Red when: inbox/clock.py SteadyClock.now gives the machine's wall clock
    """
    name = topic(partitions=1)

    async def do(command: Do, ctx: Context) -> Retry | None:
        return Retry("not yet", after_s=1.0) if ctx.attempt == 1 else None

    app = doing(reader(name), do, retry=RetryPolicy(attempts_max=3, in_place_max_s=0.0))
    await stage.send(name, Sent("a"), Sent("b"))
    worker = await stage.start(app)

    async def both_wait() -> bool:
        return await stage.failures() == [("a", "queued", "retry"), ("b", "queued", "behind")]

    await worker.until(both_wait)
    monkeypatch.setattr(clock.datetime, "datetime", PutBack)
    await worker.until_counted("events", "do", "completed", n=2)
    assert await stage.failures() == []


# -------------------------------------------------------------------------------------------- headers of any bytes


async def test_header_values_that_are_not_utf8_are_kept_as_they_came(stage: Stage, topic: Topic) -> None:
    """As an id they tell events apart by their bytes; as a correlation id or a tenant they are shown as well as can be;
    in the letter they are what they were.
    """
    name = topic(partitions=1)
    seen: list[tuple[str, str, str | None]] = []

    async def do(command: Do, ctx: Context) -> None:
        seen.append((ctx.event.id_text, ctx.event.correlation_id, ctx.event.tenant))
        if command.says.get("dead"):
            raise ValueError("no")

    app = reader(name, scope=Scope(tenant=header("tenant")))
    mailbox = letters(app, topic)
    doing(app, do)
    odd = (("correlation-id", b"\xff\xfe"), ("tenant", b"\x80"), ("note", b"\xc3\x28"), ("empty", None))
    await stage.send(
        name,
        Sent(b"\xff1", headers=odd),
        Sent(b"\xff2", headers=odd, key=b"\xfe"),
        Sent(b"\xff1", headers=odd),
        Sent(b"\xff3", {"dead": True}, headers=odd, key=b"\xfd"),
    )
    worker = await stage.start(app)
    await worker.until_counted("events", "do", "completed", n=2)
    await worker.until_counted("events", "do", "failed", n=1)
    await worker.until_counted("events", "do", "skipped_duplicate", n=1)  # the third record; ids differ in one byte
    assert all(text_.isprintable() for shown in seen for text_ in shown if text_)
    (letter,) = await stage.read(mailbox, 1)
    assert [header for header in letter.headers if header[0] in {name for name, _ in odd}] == list(odd)
    assert letter.key == b"\xfd"


async def test_a_type_that_is_not_utf8_is_a_letter_and_not_the_end(stage: Stage, topic: Topic) -> None:
    """CloudEvents in binary mode, with a type, a source and an id that no program of ours would write."""
    name = topic(partitions=1)
    app = reader(name, event_id=cloudevents(), codec=Json(type=header("ce_type")), unmatched="dead")
    letters(app, topic)

    async def do(command: Do, ctx: Context) -> None: ...

    doing(app, do)
    cloud = (("ce_source", b"s"), ("ce_specversion", b"1.0"))
    await stage.send(
        name,
        Sent(None, type=None, headers=(("ce_id", b"1"), ("ce_type", b"\xff\xfe"), *cloud)),
        Sent(None, type=None, headers=(("ce_id", b"\xff"), ("ce_type", b"Thing"), *cloud)),
        Sent(None, type=None, headers=(("ce_id", b"2"), ("ce_type", b"Thing"), *cloud), key=b"j"),
    )
    worker = await stage.start(app)

    async def ended() -> bool:
        ends = await stage.value("SELECT min(next_offset) FROM tidegate.checkpoint")
        return ends == 3

    await worker.until(ended)
    rows = await stage.value("SELECT count(*) FROM tidegate.failure")
    assert rows + worker.events("do", "completed") == 3
    assert worker.events("do", "completed") >= 1


# ------------------------------------------------------------------------------------------- calls to the outside


@pytest.fixture
async def service() -> AsyncIterator[Provider]:
    async with provider() as running:
        yield running


def calling(topic: str, handler: Any, **options: Any) -> App:
    """An app whose command makes the call `charge`."""
    app = reader(topic)
    app.effect("charge", rule=idempotent_key(valid_s=3600, then=review()), deadline_s=1.0, margin_s=0.2)
    return doing(app, handler, **options)


async def test_a_service_that_answers_200_with_an_error_inside_is_heard(
    stage: Stage, topic: Topic, service: Provider
) -> None:
    """The handler reads the answer and says `refused()`: surely not done, so the next attempt may call again.

    Case: B36
    Parts: real (Kafka, PostgreSQL, HTTP server)
    Red when: inbox/effect_call.py writes what was refused down as completed
    """
    service.script = lambda operation, n: Behaviour(works=n > 1, body=None if n > 1 else {"error": "out of paper"})
    name = topic(partitions=1)

    async def charge(command: Do, ctx: Context) -> None:
        async with ctx.effect("charge") as effect:
            if effect.is_done:
                return
            answer = await call(service.port, command.id, key=effect.key)
            if "error" in answer:
                effect.refused(answer["error"])
                raise ConnectionError(answer["error"])
            effect.complete(answer, answer["id"])

    await stage.send(name, Sent("a"))
    worker = await stage.start(calling(name, charge))
    await worker.until_counted("events", "do", "completed", n=1)
    assert (service.requests["a"], service.done["a"]) == (2, 1)
    assert await stage.rows("SELECT state, attempts FROM tidegate.effect") == [("completed", 2)]


async def test_a_call_that_is_left_running_is_never_taken_for_done(
    stage: Stage, topic: Topic, service: Provider
) -> None:
    """A handler that starts its call in a task and returns has not waited for it: a person decides, and is told why.

    Nothing is claimed. What is answered is evidence all the same: the event runs again, and makes no second call.

    Case: B34
    Parts: real (Kafka, PostgreSQL, a provider)
    Red when: consumers/worker/effects.py `_misused` does not look at `self._open`
    """
    gate = service.gates["a"] = asyncio.Event()
    left: list[asyncio.Task[None]] = []
    results: list[Any] = []
    repaired = False
    name = topic(partitions=1)

    async def charge(command: Do, ctx: Context) -> None:
        async def beside() -> None:
            async with ctx.effect("charge") as effect:
                if not effect.is_done:
                    answer = await call(service.port, command.id, key=effect.key)
                    effect.complete(answer, answer["id"])
            results.append(effect.result)

        if repaired:
            await beside()
            return
        left.append(asyncio.ensure_future(beside()))
        await service.seen.wait()

    app = calling(name, charge)
    letters(app, topic)
    await stage.send(name, Sent("a"))
    worker = await stage.start(app, variables={"TIDEGATE_EFFECTS_PROBE_EVERY_S": "0.2"})
    await worker.until_counted("events", "do", "unknown", n=1)
    why = "effect 'charge' of operation 'a' is still open at the end of its handling: await it inside the handler"
    ((state, message),) = await stage.rows("SELECT state, message FROM tidegate.failure")
    assert state == "unknown"
    assert why in message
    assert service.done == {}, "the provider is at work on it"
    claims = "SELECT count(*) FROM tidegate.claim_1 c JOIN tidegate.handler h ON h.id = c.handler WHERE h.name = 'do'"
    assert await stage.value(claims) == 0
    repaired = True
    gate.set()
    await asyncio.gather(*left)
    effect = "SELECT state, attempts, external_id FROM tidegate.effect"
    assert await stage.rows(effect) == [("completed", 1, service.external_id("a"))], "whoever left it"
    await worker.until_counted("events", "do", "completed", n=1)
    assert await stage.failures() == []
    assert await stage.value(claims) == 1
    assert results == [results[0]] * 2
    assert results[0]["id"] == service.external_id("a")
    assert (service.requests, service.done) == ({"a": 1}, {"a": 1})
    assert len(service.keys["a"]) == 1
