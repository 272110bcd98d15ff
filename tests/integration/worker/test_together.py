"""Two workers at once, and workers that are cut off: one effect for each event, and no connection is left dirty."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import App, Event, TransientError


@pytest.mark.parametrize("first_ends", ["commits", "raises"])
async def test_two_workers_that_get_one_id_at_once_make_one_effect(stage: Stage, topic: Topic, first_ends: str) -> None:
    """The second waits for the first one's claim: where that commits it is a repeat, where it is undone it runs.

    Case: B50
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/verdicts.py `sort_out` keeps every event in `self.fresh`
    """
    await table_of(stage)
    name = topic(partitions=2)
    first = reader(name)
    second = reader(name, consumer=next(iter(first.consumers)))
    gate, runs = asyncio.Event(), list[int]()

    def declare(app: App) -> None:
        (consumer,) = app.consumers.values()

        @consumer.projection("effects")
        async def effects(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
            await note(events, tx)
            runs.append(events[0].partition)
            if len(runs) == 1:
                await gate.wait()
                if first_ends == "raises":
                    raise TransientError("undone")

    declare(first)
    declare(second)
    workers = [await stage.start(first), await stage.start(second)]
    await workers[0].until(lambda: [w.board.assigned for w in workers] == [1, 1])
    for worker in workers:
        await worker.until_ready()
    await stage.send(name, Sent("same", partition=0))
    await workers[0].until(lambda: len(runs) == 1)
    await stage.send(name, Sent("same", partition=1 - runs[0]), Sent("same", partition=runs[0]))

    async def waits() -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(await stage.value(query) >= 1)

    await workers[0].until(waits)
    gate.set()
    await workers[0].until(lambda: sum(w.events("effects", "skipped_duplicate") for w in workers) == 2)
    assert sum(w.events("effects", "completed") for w in workers) == 1
    assert await stage.value("SELECT count(*) FROM public.effect") == 1
    assert len(runs) == (1 if first_ends == "commits" else 2)
    assert await stage.failures() == []


async def test_a_worker_that_is_cut_off_anywhere_leaves_no_open_transaction_and_no_second_effect(
    stage: Stage, topic: Topic
) -> None:
    """Cancelled at random moments of its batches: its sessions end, and the next worker goes on exactly.

    Case: B47
    Parts: real (Kafka, PostgreSQL)
    Red when: worker/run.py `run_consumer` leaves out `store.database.close`
    """
    await table_of(stage)
    name = topic(partitions=2)
    app = reader(name)
    (consumer,) = app.consumers.values()
    consumer.projection("effects", batch_max=3)(note)
    chance = random.Random(47)
    for first in range(0, 600, 120):
        await stage.send(name, *(Sent(f"e{n}", {"n": n}, partition=n % 2) for n in range(first, first + 120)))
        worker = await stage.start(app)
        await worker.until(lambda w=worker: w.events("effects", "completed") > 0)
        await asyncio.sleep(chance.uniform(0, 0.05))  # the moment of the cut, not a wait for anything
        await worker.kill()
        assert await sessions(stage) == []
    worker = await stage.start(app)

    async def all_there() -> bool:
        return bool(await stage.value("SELECT count(*) FROM public.effect") >= 600)

    await worker.until(all_there)
    assert await worker.stop() == 0
    assert await stage.value("SELECT count(DISTINCT id) FROM public.effect") == 600
    assert await stage.value("SELECT count(*) FROM public.effect") == 600
    assert await sessions(stage) == []


async def sessions(stage: Stage) -> list[tuple[str, str]]:
    """State and last statement of every session of a worker, once those that are ending have ended."""
    query = (
        "SELECT state, query FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'tidegate%'"
    )
    found = await stage.rows(query)
    deadline_s = time.monotonic() + 5
    while found and time.monotonic() < deadline_s:
        await asyncio.sleep(0.01)
        found = await stage.rows(query)
    return [(state, statement) for state, statement in found]
