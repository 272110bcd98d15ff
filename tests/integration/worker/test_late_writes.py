"""What a handler function's thread does after its deadline is refused, also where others keep the transaction open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support import running
from tests.support.running import Sent, letters_of, reader, table_of
from tidegate.consumers import BlockingTx, Event

DEADLINE_S = 0.3
"""Of the handler that is late: it waits until its second run began, whenever that is."""


async def test_a_late_write_never_joins_what_others_commit(
    database_url: str, kafka_bootstrap: str, topic: Topic
) -> None:
    """1. `late` passes its deadline and leaves the shared transaction. 2. `other` keeps that open. 3. `late`'s thread
    goes on and writes: refused. 4. The transaction commits for `other`. 5. `late` runs again, and writes once.
    """
    name = topic(partitions=1)
    app = reader(name)
    topic(partitions=1, name=letters_of(name, app))
    (consumer,) = app.consumers.values()
    runs, written_late = 0, threading.Event()
    others_turn = asyncio.Event()
    loop = asyncio.get_running_loop()

    @consumer.projection("a-late", deadline_s=DEADLINE_S)
    def late(events: Sequence[Event[dict[str, Any]]], tx: BlockingTx) -> None:
        nonlocal runs
        runs += 1
        try:
            if runs == 1:
                asyncio.run_coroutine_threadsafe(others_turn.wait(), loop).result()
            for event in events:
                tx.execute(text("INSERT INTO public.effect VALUES (:id, 1)"), {"id": event.id_text})
        finally:
            written_late.set()

    @consumer.projection("b-other")
    async def other(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        others_turn.set()
        await asyncio.to_thread(written_late.wait)

    async with running.stage(database_url, kafka_bootstrap) as stage:
        await table_of(stage)
        await stage.send(name, Sent("a"))
        worker = await stage.start(app)
        await worker.until_counted("events", "a-late", "completed", n=1)
        await worker.until_counted("events", "b-other", "completed", n=1)
        assert runs == 2
        assert await stage.value("SELECT count(*) FROM public.effect") == 1
