"""Limits of parked events through a worker: what is beyond them is dead or not written, and reading pauses before."""

from __future__ import annotations

from typing import Any

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import App, BreakerPolicy, Context, RetryPolicy

NEVER = RetryPolicy(attempts_max=100, base_s=3_600.0, cap_s=3_600.0, age_max_s=86_400.0, in_place_max_s=0.0)
"""What failed once waits in the queue for longer than any test runs."""


class Trouble:
    """A handler that fails for as long as there is trouble."""

    def __init__(self) -> None:
        self.is_there = True

    async def act(self, command: Do, ctx: Context) -> None:
        if self.is_there and command.says.get("bad"):
            raise TimeoutError
        await write(command, ctx)


async def world(stage: Stage, topic: Topic, **policy: Any) -> tuple[App, str, Trouble]:
    app, trouble = reader(topic(partitions=1)), Trouble()
    letters(app, topic)
    await table_of(stage)
    at_desk(app, trouble.act, retry=NEVER, **policy)
    (consumer,) = app.consumers.values()
    return app, consumer.topics[0], trouble


def of_key(key: str, n: int) -> list[Sent]:
    """Events of one key, of which the first fails."""
    return [Sent(f"{key}{i}", {"n": i, "bad": i == 0}, key=key.encode()) for i in range(n)]


async def due_now(stage: Stage) -> None:
    """What waits is tried at once."""
    await stage.execute(
        "UPDATE tidegate.failure SET due = clock_timestamp() WHERE state = 'queued'",
        "UPDATE tidegate.parked_key SET head_due = clock_timestamp() WHERE head_due IS NOT NULL",
    )


async def states(stage: Stage) -> list[tuple[Any, ...]]:
    return await stage.rows("SELECT id_text, state, reason FROM tidegate.failure ORDER BY record_offset")


async def test_beyond_the_limit_of_a_key_newcomers_are_dead_where_that_was_chosen(stage: Stage, topic: Topic) -> None:
    app, name, _ = await world(stage, topic, key_parked_max=3, at_limit="dead")
    worker = await stage.ready(app)
    await stage.send(name, *of_key("a", 5), *of_key("b", 2))
    await worker.until_counted("parked", "do", n=5)
    await worker.until_counted("dead", "do", "skipped_limit", n=2)
    assert [row[1:] for row in await states(stage)] == [
        ("queued", "retry"),
        ("queued", "behind"),
        ("queued", "behind"),
        ("dead", "skipped_limit"),
        ("dead", "skipped_limit"),
        ("queued", "retry"),
        ("queued", "behind"),
    ]


async def test_beyond_the_limit_of_a_key_newcomers_wait_in_memory_and_go_on_when_there_is_room(
    stage: Stage, topic: Topic
) -> None:
    """Nothing is dead, no offset passes what is not saved, other keys go on."""
    app, name, trouble = await world(stage, topic, key_parked_max=3, at_limit="pause")
    worker = await stage.ready(app)
    await stage.send(name, *of_key("a", 6), Sent("other", {}, key=b"other"))
    await worker.until_counted("parked", "do", n=3)
    await worker.until_counted("events", "do", "completed", n=1)
    assert await stage.checkpoints("do") == {0: 3}
    trouble.is_there = False
    await due_now(stage)
    await worker.until_counted("events", "do", "completed", n=7)
    assert await states(stage) == []
    assert [row[0] for row in await stage.rows("SELECT id FROM public.effect WHERE id LIKE 'a%'")] == [
        f"a{n}" for n in range(6)
    ]


async def test_events_behind_one_that_is_dead_of_a_limit_run(stage: Stage, topic: Topic) -> None:
    """Its key is not parked, so those behind it are tried: they died of the limit too, one after the other.

    Case: B32
    Parts: real (Kafka, PostgreSQL)
    Red when: consumers/worker/completing.py's _flush does not take back what was decided
    """
    app, name, _ = await world(stage, topic, parked_max=1, at_limit="dead")
    await stage.send(name, Sent("first", {"bad": True}, key=b"f"), *of_key("a", 3))
    worker = await stage.ready(app)
    await worker.until_counted("events", "do", "completed", n=2)
    assert [row[:2] for row in await states(stage)] == [("first", "queued"), ("a0", "dead")]


async def test_who_waits_beyond_a_limit_holds_no_stop_up_and_is_read_again(stage: Stage, topic: Topic) -> None:
    app, name, _ = await world(stage, topic, key_parked_max=2, at_limit="pause")
    worker = await stage.ready(app, variables={"TIDEGATE_WORKER_DRAIN_BUDGET_S": "15"})
    await stage.send(name, *of_key("a", 5))
    await worker.until_counted("parked", "do", n=2)
    assert await worker.stop() == 0
    assert await stage.checkpoints("do") == {0: 2}


async def test_letters_for_which_the_queue_has_no_room_are_held_back_by_the_breaker_too(
    stage: Stage, topic: Topic
) -> None:
    """Of 300 events ten may wait, and five in a row may be dead: the others stay in memory until there is room.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/completing.py `_dying` asks nobody
    """
    breaker = BreakerPolicy(row_max=5, retry_after_s=3_600.0)
    app, name, trouble = await world(stage, topic, parked_max=10, at_limit="dead", breaker=breaker)
    worker = await stage.ready(app)
    await stage.send(name, *[Sent(f"e{n}", {"n": n, "bad": True}, key=b"k%d" % n) for n in range(300)])
    await worker.until(lambda: "do" in worker.board.ready().body["held_back"])
    await worker.until_counted("dead", "do", "skipped_limit", n=5)
    counted = "SELECT state, count(*) FROM tidegate.failure GROUP BY 1 ORDER BY 1"
    assert await stage.rows(counted) == [("dead", 5), ("queued", 10)]
    assert await worker.stop() == 0
    assert (await stage.checkpoints("do"))[0] <= 15, "no offset passes what is not saved"
    trouble.is_there = False
    await due_now(stage)
    again = await stage.ready(app)
    await again.until_counted("events", "do", "completed", n=295)
    assert await stage.rows(counted) == [("dead", 5)]


async def test_reading_pauses_before_the_limit_of_a_handler_and_health_says_so(stage: Stage, topic: Topic) -> None:
    """Backpressure before the limit: at four fifths of it nothing more is read.

    Case: B35
    Parts: real (PostgreSQL, Kafka)
    Red when: dlq/pressure.py PRESS_SHARE is 10.0
    """
    app, name, trouble = await world(stage, topic, parked_max=10, at_limit="pause")
    worker = await stage.ready(app)
    await stage.send(name, *[Sent(f"e{n}", {"bad": True}, key=b"k%d" % n) for n in range(8)])
    await worker.until(lambda: worker.board.ready().body["held_back"] == {"parked:do": PAUSED})
    await stage.send(name, *[Sent(f"late{n}", {}, key=b"late%d" % n) for n in range(5)])
    await worker.until(lambda: worker.metrics.value("partitions_paused", "dependency") == 1)
    assert worker.events("do", "completed") == 0
    trouble.is_there = False
    await due_now(stage)
    await worker.until_counted("events", "do", "completed", n=13)
    assert worker.board.ready().ok


PAUSED = "too many of its events wait: see parked_max"
