"""Commands that wait for their next attempt: without a place, without a task, and without anything written."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import Context, Event
from tidegate.dlq.policy import RetryPolicy
from tidegate.inbox.errors import RetryLater

LONG = RetryPolicy(cap_s=3_600.0, age_max_s=86_400.0, in_place_max_s=3_600.0)
"""Whatever a handler wishes for is waited for in memory."""

AN_HOUR = RetryLater("not yet", after_s=3_000.0)
SOON = RetryLater("not yet", after_s=0.3)


async def test_who_waits_for_the_next_attempt_is_read_again_after_a_stop(stage: Stage, topic: Topic) -> None:
    """Nothing of it is written: the next owner begins with its first attempt. Its key's next event waits behind it."""
    app = reader(topic(partitions=1))
    seen: list[tuple[str, int]] = []
    patient = True

    async def act(command: Do, ctx: Context) -> None:
        seen.append((command.id, ctx.attempt))
        if patient and command.id == "a":
            raise AN_HOUR
        await write(command, ctx)

    await table_of(stage)
    at_desk(app, act, retry=LONG)
    worker = await stage.ready(app)
    (name,) = app.consumers[worker.consumer].topics
    await stage.send(name, Sent("a", key=b"k"), Sent("b", key=b"k"), Sent("c", key=b"other"))
    await worker.until_counted("events", "do", "completed", n=1)
    await worker.until(lambda: worker.metrics.value("retries", "do") == 1)
    assert await worker.stop() == 0, "nobody is waited for"
    assert sorted(seen) == [("a", 1), ("c", 1)]
    assert await stage.failures() == []
    patient = False
    again = await stage.ready(app)
    await again.until(lambda: len(seen) == 4)
    assert seen[2:] == [("a", 1), ("b", 1)]
    await again.until(lambda: again.events("do", "completed") == 2)
    assert [row[0] for row in await stage.rows("SELECT id FROM public.effect ORDER BY written")] == ["c", "a", "b"]


async def test_a_fence_that_is_lost_while_an_event_waits_doubles_nothing(stage: Stage, topic: Topic) -> None:
    """Somebody's epoch stands in the fence row when the next event is written: all is read again, also the one that
    rests, whose id is in flight until its own next attempt is over.
    """
    app = reader(topic(partitions=1))
    seen: list[tuple[str, int]] = []

    async def act(command: Do, ctx: Context) -> None:
        seen.append((command.id, ctx.attempt))
        if seen == [("a", 1)]:
            raise RetryLater("not yet", after_s=1.5)
        await write(command, ctx)

    await table_of(stage)
    at_desk(app, act, retry=LONG)
    worker = await stage.ready(app)
    (name,) = app.consumers[worker.consumer].topics
    await stage.send(name, Sent("a", key=b"k"))
    await worker.until(lambda: worker.metrics.value("retries", "do") == 1)
    await stage.execute("UPDATE tidegate.fence SET epoch = epoch + 1")
    await stage.send(name, Sent("b", key=b"other"))
    await worker.until(lambda: worker.events("do", "completed") == 2)
    assert await stage.rows("SELECT id, count(*) FROM public.effect GROUP BY id ORDER BY id") == [("a", 1), ("b", 1)]
    assert sum(id_ == "a" for id_, _ in seen) == 2


async def test_one_that_waits_leaves_its_place_and_has_one_again_for_its_next_attempt(
    stage: Stage, topic: Topic
) -> None:
    """One place: while one event waits the others go on. Its time is over while one of them runs, and it waits on."""
    app = reader(topic(partitions=1))
    attempts: list[tuple[str, int]] = []

    async def act(command: Do, ctx: Context) -> None:
        attempts.append((command.id, ctx.attempt))
        if command.id == "a" and ctx.attempt < 3:
            raise SOON

    desk = at_desk(app, act, retry=LONG, concurrency=1)
    desk.shut("b")
    worker = await stage.ready(app)
    (name,) = app.consumers[worker.consumer].topics
    await stage.send(name, *[Sent(id_, key=id_.encode()) for id_ in "abcdef"])
    await worker.until(lambda: desk.inside == {"b"})
    asyncio.get_running_loop().call_later(0.6, desk.open, "b")
    await worker.until_counted("events", "do", "completed", n=6)
    assert [number for id_, number in attempts if id_ == "a"] == [1, 2, 3]
    assert attempts.index(("b", 1)) < attempts.index(("a", 2))
    assert desk.most == 1
    assert worker.metrics.value("retries", "do") == 2


async def test_attempts_that_are_used_up_are_told_in_the_row_and_a_trigger_that_fails_at_the_second_one_too(
    stage: Stage, topic: Topic
) -> None:
    """What the trigger makes is made anew for each attempt, once, so it may fail then."""
    app = reader(topic(partitions=1))
    letters(app, topic)
    made: dict[str, int] = {}

    async def act(command: Do, ctx: Context) -> None:
        raise ConnectionResetError("the line went dead")

    def to_do(event: Event[dict[str, Any]]) -> Do:
        made[event.id_text] = made.get(event.id_text, 0) + 1
        if event.id_text == "trigger" and made[event.id_text] == 2:
            raise LookupError("its key is gone")
        return Do(event.id_text, event.value)

    (consumer,) = app.consumers.values()
    app.handler(Do)(act)
    retry = RetryPolicy(attempts_max=3, base_s=0.02)
    consumer.command("do", on="Thing", retry=retry, breaker=None)(to_do)
    worker = await stage.ready(app)
    await stage.send(consumer.topics[0], Sent("handler", key=b"h"), Sent("trigger", key=b"t"))
    await worker.until_counted("events", "do", "failed", n=2)
    rows = await stage.rows("SELECT id_text, reason, attempts, exception_type FROM tidegate.failure ORDER BY id_text")
    assert rows == [
        ("handler", "exhausted", 3, "ConnectionResetError"),
        ("trigger", "rejected", 2, "LookupError"),
    ]
    assert made == {"handler": 3, "trigger": 2}
    assert worker.metrics.value("retries", "do") == 3
