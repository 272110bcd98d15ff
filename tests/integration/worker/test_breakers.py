"""Too many dead in a row hold their handler's events back, undone; a provider that does not answer is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import Context, Event
from tidegate.dlq.policy import BreakerPolicy
from tidegate.inbox.effect_rules import idempotent_key

LETTERS_MAX = 5
HOLD = BreakerPolicy(row_max=LETTERS_MAX, retry_after_s=3_600.0)
SOON = BreakerPolicy(row_max=LETTERS_MAX, retry_after_s=0.3)
LATER = BreakerPolicy(row_max=LETTERS_MAX, retry_after_s=3.0)
"""Time enough to look before one is tried."""


def things(n: int, first: int = 0) -> list[Sent]:
    """Events of as many keys."""
    return [Sent(f"e{i}", {"n": i}, key=b"k%d" % i) for i in range(first, first + n)]


async def no_more_letters(stage: Stage, *, at_most: int = LETTERS_MAX) -> None:
    assert await stage.value("SELECT count(*) FROM tidegate.failure") <= at_most
    assert await stage.value("SELECT count(*) FROM tidegate.outbox WHERE kind = 'letter'") <= at_most


async def test_a_bug_that_fails_every_command_halts_before_the_letter_that_is_too_many(
    stage: Stage, topic: Topic
) -> None:
    """A handler that always fails: a handful of letters, then nothing moves, and health says why.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/commands.py `_until_admitted` does not ask `admits`
    """
    app = reader(topic())
    letters(app, topic)
    bug = True

    async def act(command: Do, ctx: Context) -> None:
        if bug:
            raise ValueError("a bug")
        await write(command, ctx)

    await table_of(stage)
    desk = at_desk(app, act, breaker=SOON)
    worker = await stage.ready(app)
    await stage.send(app.consumers[worker.consumer].topics[0], *things(40))
    await worker.until(lambda: worker.metrics.value("breaker_open", "do") == 1)
    assert any(
        reason.startswith("do is held back: 6 events in a row would be dead") for reason in _reasons(worker.board)
    )
    await no_more_letters(stage)
    tried = sum(desk.calls.values())
    await worker.until(lambda: sum(desk.calls.values()) >= tried + 3)
    assert worker.events("do", "failed") == LETTERS_MAX, (
        "one is tried again and again, and none of the tries is a letter"
    )
    bug = False
    await worker.until(lambda: worker.events("do", "completed") == 40 - LETTERS_MAX)
    assert worker.metrics.value("breaker_open", "do") == 0
    assert worker.board.ready().ok
    await no_more_letters(stage)
    assert await stage.value("SELECT count(DISTINCT id) FROM public.effect") == 40 - LETTERS_MAX


async def test_what_a_breaker_holds_back_is_read_again_after_a_stop(stage: Stage, topic: Topic) -> None:
    app = reader(topic())
    letters(app, topic)
    desk = at_desk(app, _fail, breaker=HOLD)
    worker = await stage.ready(app)
    await stage.send(app.consumers[worker.consumer].topics[0], *things(20))
    await worker.until(lambda: worker.metrics.value("breaker_open", "do") == 1)
    assert await worker.stop() == 0, "nobody is waited for"
    assert await stage.value("SELECT sum(next_offset) FROM tidegate.checkpoint") <= LETTERS_MAX
    desk.calls.clear()
    again = await stage.ready(app)
    await again.until(lambda: len(desk.calls) >= 20 - 2 * LETTERS_MAX)


async def test_a_replay_before_the_repair_writes_no_flood_of_further_letters(stage: Stage, topic: Topic) -> None:
    app = reader(topic())
    letters(app, topic)
    at_desk(app, _fail, breaker=None)
    worker = await stage.ready(app)
    await stage.send(app.consumers[worker.consumer].topics[0], *things(20))
    await worker.until_counted("events", "do", "failed", n=20)
    await worker.stop()
    again = reader(app.consumers[worker.consumer].topics[0], consumer=worker.consumer)
    at_desk(again, _fail, breaker=HOLD)
    later = await stage.ready(again)
    await stage.replay()
    await later.until(lambda: later.metrics.value("breaker_open", "do") == 1)
    await later.until_counted("events", "do", "failed", n=LETTERS_MAX)
    assert await stage.value("SELECT count(*) FROM tidegate.failure WHERE state = 'queued'") == 20 - LETTERS_MAX
    assert await later.stop() == 0


async def test_a_projection_that_always_fails_halts_too(stage: Stage, topic: Topic) -> None:
    app = reader(topic())
    letters(app, topic)
    bug = True
    (consumer,) = app.consumers.values()
    await table_of(stage)

    @consumer.projection("sums", version=1, on="Thing", breaker=SOON)
    async def sums(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        if bug:
            raise ValueError("a bug")
        await note(events, tx)

    worker = await stage.ready(app)
    await stage.send(consumer.topics[0], *things(40))
    await worker.until(lambda: worker.metrics.value("breaker_open", "sums") == 1)
    await no_more_letters(stage)
    bug = False
    await worker.until(lambda: worker.metrics.value("breaker_open", "sums") == 0)
    await worker.until_counted("events", "sums", "completed", n=40)
    await no_more_letters(stage, at_most=0)


async def test_a_flood_of_records_that_cannot_be_read_halts_too(stage: Stage, topic: Topic) -> None:
    """A codec that was changed on one side only: a hundred letters, and nothing is lost of the rest.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/receiving.py `_one` does not ask `_is_admitted`
    """
    app = reader(topic())
    letters(app, topic)
    at_desk(app)
    worker = await stage.ready(app, variables={"TIDEGATE_KAFKA_CLIENT_FETCH_MESSAGE_MAX_BYTES": "2000"})
    for n in range(0, 300, 20):
        await stage.send(app.consumers[worker.consumer].topics[0], *[Sent(f"e{i}", b"{") for i in range(n, n + 20)])
    await worker.until(lambda: worker.metrics.value("breaker_open", "records") == 1)
    assert any(reason.startswith("records is held back") for reason in _reasons(worker.board))
    await no_more_letters(stage, at_most=100)
    stands = await stage.value("SELECT max(next_offset) FROM tidegate.checkpoint")
    assert stands == await stage.value("SELECT count(*) FROM tidegate.failure"), "no offset passes what is not saved"
    assert await worker.stop() == 0


async def test_a_replay_of_records_that_still_cannot_be_read_writes_no_flood_of_further_letters(
    stage: Stage, topic: Topic
) -> None:
    """180 letters that came among good events; whoever replays them before the repair gets a row of new ones at most.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/slow_way.py `_handle` ends what cannot be read by `_ends.end_as`
    """
    app = reader(topic(partitions=1))
    letters(app, topic)
    at_desk(app)
    worker = await stage.ready(app)
    (name,) = app.consumers[worker.consumer].topics
    for at in (1, 2):
        await stage.send(name, *[Sent(f"bad{at}-{n}", b"{", key=b"%d" % n) for n in range(90)])
        await worker.until(lambda at=at: worker.metrics.value("dead", "", "undecodable") == 90 * at)
        await stage.send(name, *things(200, first=200 * at))
        await worker.until(lambda at=at: worker.events("do", "completed") == 200 * at)
    await stage.replay()
    await worker.until(lambda: worker.metrics.value("breaker_open", "records") == 1)
    assert any(reason.startswith("records is held back") for reason in _reasons(worker.board))
    assert await worker.stop() == 0
    assert await stage.value("SELECT count(*) FROM tidegate.failure WHERE state = 'queued'") >= 80
    assert await stage.value("SELECT count(*) FROM tidegate.outbox WHERE kind = 'letter'") <= 180 + 100


async def test_a_bug_in_what_is_sent_halts_before_the_letter_that_is_too_many(stage: Stage, topic: Topic) -> None:
    """The handler comes back well each time; only the database refuses what it sends. A repair comes with a restart.

    Case: B35, B36
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/completing.py `_split` writes it without `_admitted`
    """
    out, bug = topic(), True
    app = reader(topic())
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        await ctx.publish("no\x00topic" if bug else out, {"about": command.id}, key=command.id)

    at_desk(app, act, breaker=HOLD, concurrency=1)
    worker = await stage.ready(app)
    (name,) = app.consumers[worker.consumer].topics
    for n in range(LETTERS_MAX):  # one by one: what comes back meanwhile may end the row, as `conflicts` says
        await stage.send(name, *things(1, first=n))
        await worker.until(lambda n=n: worker.events("do", "failed") == n + 1)
    await stage.send(name, *things(1, first=LETTERS_MAX))
    await worker.until(lambda: worker.metrics.value("breaker_open", "do") == 1)
    await stage.send(name, *things(20 - LETTERS_MAX - 1, first=LETTERS_MAX + 1))
    await no_more_letters(stage)
    assert await worker.stop() == 0
    bug = False
    again = await stage.ready(app)
    await again.until(lambda: again.events("do", "completed") == 20 - LETTERS_MAX)
    await no_more_letters(stage)


async def test_a_breaker_that_a_replay_opened_closes_though_its_rows_are_gone(stage: Stage, topic: Topic) -> None:
    app = reader(topic())
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        if command.says["n"] < 20:
            raise ValueError("a bug")

    at_desk(app, act, breaker=SOON)
    worker = await stage.ready(app)
    (name,) = app.consumers[worker.consumer].topics
    for n in range(0, 10, LETTERS_MAX):
        await stage.send(name, *things(LETTERS_MAX, first=n))
        await worker.until(lambda n=n: worker.events("do", "failed") == n + LETTERS_MAX)
        await stage.send(name, *things(1, first=100 + n))
        await worker.until(lambda n=n: worker.events("do", "completed") == n // LETTERS_MAX + 1)
    await stage.replay()
    await worker.until(lambda: worker.metrics.value("breaker_open", "do") == 1)
    await stage.execute(
        "UPDATE tidegate.failure SET state = 'dead', due = NULL, row_version = row_version + 1 WHERE state = 'queued'"
    )
    sent = 200

    async def closed() -> bool:
        nonlocal sent
        await stage.send(name, *things(1, first=sent))
        sent += 1
        return worker.metrics.value("breaker_open", "do") == 0

    await worker.until(closed)
    assert worker.board.ready().ok


async def test_one_handlers_breaker_leaves_the_other_handlers_alone(stage: Stage, topic: Topic) -> None:
    app = reader(topic())
    letters(app, topic)
    at_desk(app, _fail, breaker=HOLD)
    (consumer,) = app.consumers.values()
    await table_of(stage)
    consumer.projection("sums", version=1, on="Thing")(note)
    worker = await stage.ready(app)
    await stage.send(consumer.topics[0], *things(30))
    await worker.until_counted("events", "sums", "completed", n=30)
    await worker.until(lambda: worker.metrics.value("breaker_open", "do") == 1)


async def test_failures_with_successes_between_them_are_no_row(stage: Stage, topic: Topic) -> None:
    """Failures that come soon behind each other are looked at together: the breaker is told what came between.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/commands.py `_look_at` tells the breaker of a good end at once, whatever waits
    """
    app = reader(topic(partitions=1))
    letters(app, topic)

    async def act(command: Do, ctx: Context) -> None:
        if int(command.id[1:]) % 2:
            raise ValueError("odd")

    at_desk(app, act, breaker=BreakerPolicy(row_max=2, retry_after_s=3_600.0), concurrency=10)
    worker = await stage.ready(app)
    await stage.send(app.consumers[worker.consumer].topics[0], *things(40))
    await worker.until_counted("events", "do", "failed", n=20)
    await worker.until_counted("events", "do", "completed", n=20)
    assert worker.metrics.value("breaker_open", "do") == 0


async def test_a_person_who_has_looked_lets_the_letters_go(stage: Stage, topic: Topic) -> None:
    app = reader(topic())
    letters(app, topic)
    at_desk(app, _fail, breaker=BreakerPolicy(row_max=15, retry_after_s=3_600.0))
    worker = await stage.ready(app)
    await stage.send(app.consumers[worker.consumer].topics[0], *things(20))
    await worker.until(lambda: worker.metrics.value("breaker_open", "do") == 1)

    async def shared() -> bool:
        return await stage.value("SELECT state FROM tidegate.breaker") == "open"

    await worker.until(shared)
    assert await stage.value("SELECT name FROM tidegate.breaker") == f"dead/{worker.consumer}/do"
    await stage.execute(
        "UPDATE tidegate.breaker SET state = 'closed', opened_at = NULL, retry_at = NULL, changes = changes + 1"
    )
    await worker.until_counted("events", "do", "failed", n=20)


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError()])
async def test_a_provider_that_does_not_answer_is_left_alone_and_no_other_handler_waits(
    stage: Stage, topic: Topic, error: Exception
) -> None:
    """The events of its handler wait without an attempt counted; nobody else's do."""
    app = reader(topic())
    letters(app, topic)
    away = True
    calls: list[str] = []
    app.effect("send", rule=idempotent_key(valid_s=3_600.0), deadline_s=5.0, provider="billing")

    async def act(command: Do, ctx: Context) -> None:
        async with ctx.effect("send") as effect:
            calls.append(command.id)
            if away:
                raise error
            effect.complete()

    at_desk(app, act)
    (consumer,) = app.consumers.values()
    await table_of(stage)
    consumer.projection("sums", version=1, on="Thing")(note)
    variables = {"TIDEGATE_EFFECTS_PROVIDER_FAILURES_MAX": "3", "TIDEGATE_EFFECTS_PROVIDER_RETRY_AFTER_S": "1"}
    worker = await stage.ready(app, variables=variables)
    await stage.send(consumer.topics[0], *things(10))
    await worker.until(lambda: worker.metrics.value("provider_away", "billing") == 1)
    assert any("provider:billing is held back" in reason for reason in _reasons(worker.board))
    await stage.send(consumer.topics[0], *things(10, first=10))
    await worker.until_counted("events", "sums", "completed", n=20)
    before = len(calls)
    away = False
    await worker.until(lambda: worker.metrics.value("provider_away", "billing") == 0)
    await worker.until_counted("events", "do", "completed", n=20)
    assert before <= 16 + 3, "what was under way, and single tries"
    assert await stage.failures("do") == []


async def _fail(command: Do, ctx: Context) -> None:
    raise ValueError("a bug")


def _reasons(board: Any) -> list[str]:
    return list(board.ready().body["reasons"])


@pytest.mark.parametrize("at_once", [1, 20], ids=["one by one", "in one group"])
async def test_conflicts_that_are_found_while_claiming_are_held_back_like_any_other_dead(
    stage: Stage, topic: Topic, at_once: int
) -> None:
    """Another worker claims each id with other bytes while the handler runs: only the claim finds out.

    One by one, each handler has come back well before its own conflict is found, and that must not end the row. The
    next one comes back behind that: what is under way meanwhile may end the row, as `conflicts` says.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/conflicts.py `admitted` asks nobody
    """
    app = reader(topic())
    letters(app, topic)
    bug = True

    async def act(command: Do, ctx: Context) -> None:
        if bug:
            await stage.execute(
                "INSERT INTO tidegate.claim_1 (handler, version, event_id, payload_hash8)"
                f" SELECT h.id, 0, '\\x{ctx.event.event_id.hex()}', 1 FROM tidegate.handler h WHERE h.name = 'do'"
                " ON CONFLICT DO NOTHING"
            )
            arrived.append(command.id)
            if len(arrived) >= at_once:
                all_there.set()
            await all_there.wait()
            if at_once == 1:
                before = len(arrived) - 1
                await worker.until(lambda: worker.events("do", "failed") == before or is_open())

    def is_open() -> bool:
        return worker.metrics.value("breaker_open", "do") == 1

    arrived: list[str] = []
    all_there = asyncio.Event()
    at_desk(app, act, breaker=LATER, concurrency=at_once)
    worker = await stage.ready(app)
    (name,) = app.consumers[worker.consumer].topics
    await stage.send(name, *things(20))
    await worker.until(is_open)
    await worker.until(lambda: worker.events("do", "failed") == LETTERS_MAX)
    await no_more_letters(stage)
    assert {row[2] for row in await stage.failures()} == {"conflict"}
    bug = False
    await stage.execute("DELETE FROM tidegate.claim_1 WHERE payload_hash8 = 1")
    await worker.until(lambda: worker.events("do", "completed") == 20 - LETTERS_MAX)
    await no_more_letters(stage)
    assert await worker.stop() == 0
