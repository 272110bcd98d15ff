"""Kafka's offset and the one in the fence row: what a death between the two writes leaves behind costs nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tests.services.topics import Topic
from tests.support.running import ID, RunningWorker, Sent, Stage, unique
from tidegate.consumers import App, Consumer, Event, Json, header


@dataclass(frozen=True)
class Slow:
    """Takes longer than the commits are apart."""


def slow_app(name: str) -> tuple[App, Consumer]:
    app = App("shop", owner="tests")
    things = app.consumer(unique("things"), topics=[name], codec=Json(), event_id=header(ID))

    @app.handler(Slow)
    async def slow(command: Slow) -> None:
        await asyncio.sleep(0.1)

    @things.command("slow", on="Thing")
    def to_slow(event: Event[dict[str, int]]) -> Slow:
        return Slow()

    return app, things


async def fence(stage: Stage) -> tuple[Any, ...]:
    """Epoch and offset."""
    rows = await stage.rows("SELECT epoch, coalesce(kafka_offset, -1) FROM tidegate.fence")
    return rows[0] if rows else (0, -1)


async def until_told(stage: Stage, worker: RunningWorker, offset: int) -> int:
    """Return once this was told to Kafka; the epoch at that time."""

    async def is_told() -> bool:
        done = await stage.checkpoints("slow") == {0: offset}
        return done and (await fence(stage))[1] == offset and worker.metrics.value("commits", "accepted") > 0

    await worker.until(is_told)
    return (await fence(stage))[0]


async def test_a_fence_row_that_is_ahead_of_kafka_does_not_refuse_the_commits_up_to_it(
    stage: Stage, topic: Topic
) -> None:
    """1. A worker writes 100 into the fence row. 2. It dies before it tells Kafka, and before a command's checkpoint
    follows. 3. The next one starts lower, and commits offsets below 100: it is the owner all the same.
    """
    name = topic(partitions=1)
    app, _ = slow_app(name)
    await stage.send(name, *(Sent(f"e{n}") for n in range(5)))
    worker = await stage.start(app)
    epoch = await until_told(stage, worker, 5)
    assert await worker.stop() == 0
    await stage.execute("UPDATE tidegate.fence SET kafka_offset = 100")
    await stage.send(name, *(Sent(f"e{n}") for n in range(5, 15)))
    worker = await stage.start(app)
    assert await until_told(stage, worker, 15) == epoch + 1
    assert await worker.stop() == 0


async def test_a_checkpoint_that_is_behind_kafka_is_where_reading_starts(stage: Stage, topic: Topic) -> None:
    """1. Offsets are committed while a command's own checkpoint has not followed. 2. The worker dies. 3. The next one
    starts at the checkpoint, and tells Kafka before it lowers the row.
    """
    name = topic(partitions=1)
    app, _ = slow_app(name)
    await stage.send(name, *(Sent(f"e{n}") for n in range(5)))
    worker = await stage.start(app)
    epoch = await until_told(stage, worker, 5)
    assert await worker.stop() == 0
    await stage.execute("UPDATE tidegate.checkpoint SET next_offset = 3")
    worker = await stage.start(app)
    assert await until_told(stage, worker, 5) == epoch + 1
    assert await worker.stop() == 0
