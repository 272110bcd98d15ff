"""Batches of projections: applied once, with their claims and checkpoints, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.running import ID, Sent, Stage, unique
from tidegate.consumers import App, Event, Json, header

EFFECTS = "CREATE TABLE public.effect (id text, n int)"


async def note(events: Sequence[Event[dict[str, int]]], tx: AsyncConnection) -> None:
    for event in events:
        await tx.execute(
            text("INSERT INTO public.effect VALUES (:id, :n)"), {"id": event.id_text, "n": event.value.get("n", 0)}
        )


async def test_a_batch_is_applied_with_its_claims_and_its_checkpoint(stage: Stage, topic: Topic) -> None:
    await stage.execute(EFFECTS)
    name = topic(partitions=1)
    app = App("shop", owner="tests")
    things = app.consumer(unique("things"), topics=[name], codec=Json(), event_id=header(ID))
    things.projection("effects")(note)
    await stage.send(name, *(Sent(f"e{n}", {"n": n}) for n in range(5)), Sent("e1", {"n": 1}))
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=5)
    await worker.until_counted("dedup_hits", "effects", n=1)
    assert await stage.rows("SELECT id, n FROM public.effect ORDER BY n") == [(f"e{n}", n) for n in range(5)]
    assert await stage.checkpoints("effects") == {0: 6}
    assert await worker.stop() == 0
