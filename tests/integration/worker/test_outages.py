"""The database is away, the client is dead, the loop is blocked: the worker says so, and loses nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, write
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import Context, Event
from tidegate.inbox.errors import FatalError

EVENTS = 500


async def test_a_database_that_is_away_costs_no_event_no_attempt_and_no_letter(stage: Stage, topic: Topic) -> None:
    """It goes while 500 events arrive, for a command with a transaction, one without, and a projection; it comes back,
    and each event has its effect once, in the order of its key.

    Case: B35
    Parts: real (Kafka, PostgreSQL)
    Red when: consumers/worker/attempts.py `_decision` takes every dependency for one that answers (`if False` for
      its question)
    """
    await table_of(stage)
    name = topic(partitions=4)
    app = reader(name)
    (consumer,) = app.consumers.values()

    async def act(command: Do, ctx: Context) -> None:
        if command.says["n"] % 2:
            await write(command, ctx)

    desk = at_desk(app, act)

    @consumer.projection("projected")
    async def project(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        await note(events, tx)

    worker = await stage.ready(app)
    held = [Sent("first", {"n": 1}, key=b"first")]
    desk.shut("first")
    await stage.send(name, *held)
    await worker.until(lambda: "first" in desk.inside)
    await stage.close_database()
    desk.open("first")
    await stage.send(name, *(record(n) for n in range(EVENTS)))
    await worker.until(lambda: "postgresql" in worker.board.dependencies_away)
    await worker.until(lambda: worker.metrics.value("partitions_paused", "dependency") == 4)
    assert "postgresql is away" in str(worker.board.ready().body["reasons"])
    assert worker.board.live(5).ok
    await stage.open_database()
    await worker.until_counted("events", "do", "completed", n=EVENTS + 1)
    await worker.until_counted("events", "projected", "completed", n=EVENTS + 1)
    await worker.until(lambda: worker.board.ready().ok)
    assert await stage.failures() == []
    assert worker.metrics.value("retries", "do") == worker.metrics.value("retries", "projected") == 0
    found = await stage.rows("SELECT id, count(*)::int FROM public.effect GROUP BY id")
    twice = {str(n): 2 if n % 2 else 1 for n in range(EVENTS)}
    assert dict(found) == {**twice, "first": 2}
    for key in range(20):
        went = [int(id_) for id_ in dict.fromkeys(desk.went) if id_ != "first" and int(id_) % 20 == key]
        assert went == sorted(went)


def record(n: int) -> Sent:
    """The n-th event, one of twenty keys."""
    return Sent(str(n), {"n": n}, key=f"k{n % 20}".encode(), partition=n % 4)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_fatal_error_of_the_client_ends_the_worker_at_once(stage: Stage, topic: Topic, protocol: str) -> None:
    """Two members under one static id: Kafka shuts one of them out for good, and that one leaves and says why.

    Case: B12
    Parts: real (Kafka, PostgreSQL)
    Red when: worker.py `fatal` passes instead of hopping to `fail`
    """
    name = topic(partitions=1)
    app = reader(name)
    at_desk(app)
    variables = {"TIDEGATE_KAFKA_GROUP_INSTANCE_ID": "one", "TIDEGATE_KAFKA_GROUP_PROTOCOL": protocol}
    first = await stage.ready(app, variables=variables)
    second = await stage.start(app, variables=variables)
    out, stays = (second, first) if protocol == "consumer" else (first, second)
    ended = await out.ends()
    assert isinstance(ended, FatalError)
    assert "instance" in str(ended)
    assert ended.exit_code != 0
    assert not out.board.live(30).ok
    await stage.send(name, Sent("a"))
    await stays.until_counted("events", "do", "completed", n=1)


async def test_a_handler_that_blocks_the_loop_beyond_the_poll_interval_loses_nothing(
    stage: Stage, topic: Topic, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka is polled all the same, so nobody is put out of the group; the log names handler, topic, partition, offset.

    Case: B16
    Parts: real (Kafka, PostgreSQL)
    Red when: watching.py `_watch` leaves `running=` out of its warning
    """
    name = topic(partitions=1)
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        if command.id == "slow":
            time.sleep(8)

    desk = at_desk(app, act)
    variables = {"TIDEGATE_KAFKA_CLIENT_MAX_POLL_INTERVAL_MS": "6000", "TIDEGATE_KAFKA_GROUP_PROTOCOL": "classic",
                 "TIDEGATE_KAFKA_CLIENT_SESSION_TIMEOUT_MS": "6000"}  # fmt: skip
    worker = await stage.ready(app, variables=variables)
    await stage.send(name, Sent("before"), Sent("slow"), Sent("after"))
    await worker.until_counted("events", "do", "completed", n=3)
    assert desk.calls == {"before": 1, "slow": 1, "after": 1}
    assert worker.metrics.value("rebalances", "lost") == worker.metrics.value("rebalances", "revoked") == 0
    assert worker.metrics.value("rebalances", "assigned") == 1
    logged = capsys.readouterr().out
    assert "handler_blocks_the_loop" in logged
    assert f"do at {name}/0@1" in logged


async def test_a_blocked_handler_in_front_of_a_backlog_keeps_the_memory_bounded(stage: Stage, topic: Topic) -> None:
    """Nine partitions of large records, and nobody gets on: they are paused, and no more than the window is held.

    Case: B15
    Parts: real (Kafka, PostgreSQL)
    Red when: engine/window.py `add` leaves `window_bytes_max` out of `full`
    """
    name = topic(partitions=9)
    app = reader(name)
    desk = at_desk(app, concurrency=1)
    ids = [f"e{n}" for n in range(450)]
    desk.shut(ids[0])
    gate = desk.gates[ids[0]]
    desk.gates.update(dict.fromkeys(ids, gate))
    body = b'{"x":"' + b"x" * 100_000 + b'"}'
    for start in range(0, len(ids), 90):
        await stage.send(name, *(Sent(ids[n], body, key=None, partition=n % 9) for n in range(start, start + 90)))
    variables = {"TIDEGATE_WORKER_WINDOW_BYTES_MAX": str(4 * 1024 * 1024)}
    worker = await stage.start(app, variables=variables)
    await worker.until(lambda: worker.metrics.value("partitions_paused", "window_full") == 9)
    most = 0.0

    async def quiet() -> bool:
        nonlocal most
        most = max(most, worker.metrics.value("window_bytes"))
        consumed = sum(worker.metrics.value("records_consumed", name, str(n)) for n in range(9))
        return consumed < len(ids) and most >= 4 * 1024 * 1024

    await worker.until(quiet)
    assert most <= 1.5 * 4 * 1024 * 1024
    gate.set()
    await worker.until_counted("events", "do", "completed", n=len(ids))
    await worker.until(lambda: worker.metrics.value("partitions_paused", "window_full") == 0)
    assert await worker.stop() == 0
