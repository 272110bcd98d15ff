"""The order of a key's events in a read model, when one of them fails and comes later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import (
    BlockingTx,
    Event,
    RetryPolicy,
    TransientError,
    stop_on,
    write_newer,
    write_newer_blocking,
)
from tidegate.inbox.errors import FatalError

IN_THE_QUEUE = RetryPolicy(base_s=0.01, in_place_max_s=0.0)
"""Every wait is spent as a row."""

STATUS = sa.Table(
    "order_status",
    sa.MetaData(schema="public"),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


def rows_of(events: Sequence[Event[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"id": (event.key or b"").decode(), "version": event.value["v"]} for event in events]


async def test_an_event_that_comes_behind_a_newer_one_changes_nothing_and_is_counted(
    stage: Stage, topic: Topic
) -> None:
    """Version 1 fails twice and comes back behind version 2: the read model shows version 2, one write was stale.

    Case: B37
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/newer.py `statement_of` leaves out `where=`
    """
    await stage.execute("CREATE TABLE public.order_status (id text PRIMARY KEY, version int NOT NULL)")
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()
    calls = Counter[int]()

    @consumer.projection("status", retry=IN_THE_QUEUE)
    async def status(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> int:
        for event in events:
            calls[event.value["v"]] += 1
            if event.value["v"] == 1 and calls[1] <= 3:
                raise TransientError("not now")
        return await write_newer(tx, STATUS, rows_of(events), key=["id"], version="version")

    await stage.send(name, Sent("a", {"v": 1}), Sent("b", {"v": 2}))
    worker = await stage.start(app)
    await worker.until_counted("stale_skipped", "status", n=1)
    await worker.until_counted("events", "status", "completed", n=2)
    assert await stage.rows("SELECT id, version FROM public.order_status") == [("k", 2)]
    assert await stage.failures() == []
    assert worker.metrics.value("parked", "status") >= 1


async def test_a_plain_function_writes_what_is_newer_too(stage: Stage, topic: Topic) -> None:
    await stage.execute("CREATE TABLE public.order_status (id text PRIMARY KEY, version int NOT NULL)")
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()

    @consumer.projection("status")
    def status(events: Sequence[Event[dict[str, Any]]], tx: BlockingTx) -> int:
        return write_newer_blocking(tx, STATUS, rows_of(events), key=["id"], version="version")

    await stage.send(name, Sent("a", {"v": 2}), Sent("b", {"v": 1}), Sent("c", {"v": 3}))
    worker = await stage.start(app)
    await worker.until_counted("events", "status", "completed", n=3)
    assert await stage.rows("SELECT id, version FROM public.order_status") == [("k", 3)]
    assert worker.metrics.value("stale_skipped", "status") == 1


async def test_under_block_nothing_of_a_key_overtakes_an_event_that_is_tried_again(stage: Stage, topic: Topic) -> None:
    """What came behind it, in its batch and in later ones, is applied behind it, in order; other keys don't wait.

    Case: B37
    Parts: real (Kafka, PostgreSQL)
    Red when: projections/fates.py `in_order` gives back `fates` as they are
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()
    open_gate = False

    @consumer.projection(
        "effects", on_failure="block", retry=RetryPolicy(attempts_max=1_000, cap_s=0.05, in_place_max_s=0)
    )
    async def effects(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        if any(event.id_text == "a1" for event in events) and not open_gate:
            raise TransientError("not now")
        await note(events, tx)

    await stage.send(
        name,
        *(Sent(f"a{n}", {"n": n}, key=b"a") for n in range(5)),
        *(Sent(f"b{n}", {"n": n}, key=b"b") for n in range(5)),
    )
    worker = await stage.start(app)
    await worker.until_counted("events", "effects", "completed", n=6)
    await stage.send(name, Sent("a5", {"n": 5}, key=b"a"), Sent("b5", {"n": 5}, key=b"b"))
    await worker.until_counted("events", "effects", "completed", n=7)
    open_gate = True
    await worker.until_counted("events", "effects", "completed", n=12)
    await stage.send(name, Sent("a6", {"n": 6}, key=b"a"))
    await worker.until_counted("events", "effects", "completed", n=13)
    landed = await stage.rows("SELECT id FROM public.effect ORDER BY xmin::text::bigint, n")
    assert [row[0] for row in landed if row[0].startswith("a")] == [f"a{n}" for n in range(7)]
    assert await stage.failures() == []
    assert await stage.rows("SELECT sum(waiting) FROM tidegate.parked_key") == [(0,)]


async def test_what_stops_the_process_does_so_from_the_queue_too_and_says_why(stage: Stage, topic: Topic) -> None:
    """Found here: the error came out of the queue's tasks in a group, and was told as a bug of ours."""
    name = topic(partitions=1)
    app = reader(name)
    (consumer,) = app.consumers.values()
    calls = Counter[str]()

    @consumer.projection("books", retry=IN_THE_QUEUE, rules=[stop_on(KeyError, because="the books are wrong")])
    async def books(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        calls["all"] += 1
        if calls["all"] <= 3:
            raise TransientError("not now")
        raise KeyError("account")

    await stage.send(name, Sent("a"))
    worker = await stage.start(app)
    ended = await worker.ends()
    assert isinstance(ended, FatalError)
    assert "unexpected" not in str(ended)
    assert await stage.failures() == [("a", "queued", "retry")]
