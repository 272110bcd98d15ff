"""`def` functions that hang keep their threads: others wait for one, and lose no time; at last the process leaves."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from tests.services.topics import Topic
from tests.support.desk import at_desk, letters
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import App, BlockingContext, BlockingTx, Event, RetryPolicy
from tidegate.consumers.worker import threads
from tidegate.inbox.errors import FatalError

ONCE = RetryPolicy(attempts_max=1)
ONE_THREAD = {"TIDEGATE_WORKER_HANDLER_THREADS_MAX": "1"}
WRITE = text("INSERT INTO public.effect VALUES (:id, 1)")


@dataclass(frozen=True)
class Block:
    """Writes in a thread."""

    id: str


class Hang:
    """Whatever hangs says so, and is let go at the test's end at the latest: a thread cannot be ended."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.free = threading.Event()


@pytest.fixture
def hang() -> Generator[Hang]:
    """One for a test."""
    hang = Hang()
    yield hang
    hang.free.set()


def in_threads(app: App, topic: Topic, hang: Hang) -> None:
    """A command whose handler is `def`; it hangs at the event `hangs`."""
    letters(app, topic)
    (consumer,) = app.consumers.values()

    @consumer.command("block", on="Thing", retry=ONCE, deadline_s=0.5)
    def block(event: Event[dict[str, Any]]) -> Block:
        return Block(event.id_text)

    @app.handler(Block)
    def carry_out(command: Block, ctx: BlockingContext) -> None:
        if command.id == "hangs":
            hang.began.set()
            hang.free.wait()
        else:
            ctx.tx.execute(WRITE, {"id": command.id})


async def test_what_a_handler_waits_for_a_thread_is_no_time_of_its_own(stage: Stage, topic: Topic, hang: Hang) -> None:
    """The one thread is kept by an event that is dead of it, and two others have waited for it for three times their
    deadline, as the death of a third event tells: they run once the thread is free.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: dlq/guard.py's past_deadline does without _whole_time
    """
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    in_threads(app, topic, hang)
    desk = at_desk(app, retry=ONCE, deadline_s=1.5)
    desk.shut("b")
    worker = await stage.ready(app, variables=ONE_THREAD)
    await stage.send(name, *(Sent(id_, key=id_.encode()) for id_ in ("hangs", "a", "b")))
    await worker.until(lambda: worker.events("do", "failed") == 1)
    assert [row[0] for row in await stage.failures("block")] == ["hangs"]
    hang.free.set()
    await worker.until(lambda: worker.events("block", "completed") == 2)
    assert sorted(await stage.rows("SELECT id FROM public.effect")) == [("a",), ("b",)]
    assert [(row[0], row[2]) for row in await stage.failures("block")] == [("hangs", "timeout")]


@pytest.mark.parametrize("who", ["command", "projection"])
async def test_a_process_whose_threads_all_hang_leaves_and_what_never_ran_is_not_dead(
    stage: Stage, topic: Topic, hang: Hang, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Who waits for a thread says so; the next process has all its threads.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: consumers/worker/threads.py's _give_up tells nobody
    """
    monkeypatch.setattr(threads, "ALL_KEPT_MAX_S", 0.2)
    await table_of(stage)
    name = topic(partitions=1)
    app = reader(name)
    in_threads(app, topic, hang)
    (consumer,) = app.consumers.values()
    waits = "block"
    if who == "projection":
        waits = "note"

        @consumer.projection("note", on="Other")
        def note(events: Sequence[Event[dict[str, Any]]], tx: BlockingTx) -> None:
            tx.execute(WRITE, [{"id": event.id_text} for event in events])

    worker = await stage.ready(app, variables=ONE_THREAD)
    await stage.send(name, Sent("hangs", key=b"h"))
    await worker.until(hang.began.is_set)
    await stage.send(name, Sent("a", key=b"a", type="Other" if who == "projection" else "Thing"))
    error = await worker.ends()
    assert isinstance(error, FatalError)
    assert "every thread for `def` functions is kept by one that does not end: " in str(error)
    assert "carry_out (1)" in str(error)
    assert [row[0] for row in await stage.failures("block")] == ["hangs"]
    assert await stage.failures("note") == []
    hang.free.set()
    worker = await stage.ready(app, variables=ONE_THREAD)
    await worker.until(lambda: worker.events(waits, "completed") == 1)
    assert await stage.rows("SELECT id FROM public.effect") == [("a",)]
