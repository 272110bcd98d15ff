"""Rules through the worker: the process leaves by one, one fails itself, and a wait stays within bounds."""

from __future__ import annotations

import asyncio

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import ID, Sent, Stage, committed, reader, table_of, unique
from tidegate.consumers import (
    App,
    Context,
    Json,
    RetryLater,
    RetryPolicy,
    Rule,
    fail_on,
    header,
    retry_on,
    skip_on,
    stop_on,
)
from tidegate.inbox.errors import FatalError


class Odd(Exception):
    """What rules are declared for."""


async def act(command: Do, _: Context) -> None:
    if says := command.says.get("raise"):
        raise Odd(says)


def ruled(topic_name: str, *rules: Rule) -> App:
    """A reader whose app has rules of its own."""
    app = App("tests", owner="tests", rules=rules)
    app.consumer(unique("ruled"), topics=[topic_name], codec=Json(), event_id=header(ID))
    return app


async def test_a_rule_that_stops_leaves_with_the_offset_where_it_is(stage: Stage, topic: Topic) -> None:
    """The process leaves with the rule's reason and without the record's values; started anew it finds the event.

    Case: B35, B38
    Parts: real (PostgreSQL, Kafka)
    Red when: dlq/rules.py's _ruled gives DeadNow(rule.reason, rule.because, led_by) for Then.STOP
    """
    name = topic(partitions=1)
    app = ruled(name, stop_on(Odd, because="the books do not balance"))
    letters(app, topic)
    at_desk(app, act)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", {"raise": "of 4111-test-card", "card": "4111-test-card"}, key=b"k"))
    ended = await worker.ends()
    assert isinstance(ended, FatalError)
    assert ended.exit_code == 70
    assert f"{name}/0@0: {__name__}.Odd: the books do not balance: of ***" in str(ended)
    assert await stage.failures() == []
    repaired = reader(name, consumer=next(iter(app.consumers)))
    desk = at_desk(repaired)
    again = await stage.start(repaired)
    await again.until_counted("events", "do", "completed", n=1)
    assert desk.went == ["a"]


async def test_a_rule_that_fails_itself_ends_its_event_with_a_text_that_names_it(stage: Stage, topic: Topic) -> None:
    """The event is dead and its letter says which rule; the handler's rules are asked before the app's.

    Case: B34
    Parts: real (PostgreSQL, Kafka)
    Red when: dlq/rules.py's _of_rule gives None where the condition raised
    """
    name = topic(partitions=1)
    app = ruled(name, skip_on(Odd, because="the app says so"))
    letters(app, topic)
    rules = [
        retry_on(Odd, when=lambda error: error.code == 91, because="the bank opens again"),  # Odd has no code
        fail_on(Odd, because="never asked"),
    ]
    at_desk(app, act, rules=rules)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", {"raise": "x"}, key=b"k"), Sent("b", key=b"k"))
    await worker.until(committed(stage, 2))
    ((why,),) = await stage.rows("SELECT message FROM tidegate.failure")
    assert f"rule 1 (retry on {__name__}.Odd): its condition raised AttributeError" in why
    assert worker.events("do", "completed") == 1
    assert worker.events("do", "skipped") == 0


async def test_a_wait_that_the_handler_asks_for_is_kept_within_its_policys_bounds(stage: Stage, topic: Topic) -> None:
    """It asks for an hour and waits for as long as the policy lets it: the event does not block its lane for an hour.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: dlq/retry.py's _clamped gives wish_s
    """
    name = topic(partitions=1)
    app = reader(name)
    letters(app, topic)
    calls: list[int] = []

    async def busy(command: Do, ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise RetryLater("the bank is busy", after_s=3_600)

    at_desk(app, busy, retry=RetryPolicy(cap_s=0.05))
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", key=b"k"))
    await worker.until_counted("events", "do", "completed", n=1)
    assert len(calls) == 3


async def test_a_rule_for_every_exception_buries_nothing_while_the_database_is_away(stage: Stage, topic: Topic) -> None:
    """What an outage raises in `ctx.tx` fits a rule for `Exception`; the health check is asked before the rule counts.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/attempts.py does not ask `may_be_an_outage`
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = ruled(name, fail_on(Exception, because="whatever it is"))
    letters(app, topic)
    inside, closed = asyncio.Event(), asyncio.Event()

    async def act_in_an_outage(command: Do, ctx: Context) -> None:
        if not closed.is_set():
            inside.set()
            await closed.wait()
        await write(command, ctx)

    at_desk(app, act_in_an_outage)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a"))
    await worker.until(inside.is_set)
    await stage.close_database()
    closed.set()
    await worker.until(lambda: "postgresql" in str(worker.board.ready()))
    await stage.open_database()
    await worker.until_counted("events", "do", "completed", n=1)
    assert await stage.failures() == []
    assert await stage.rows("SELECT id FROM public.effect") == [("a",)]
