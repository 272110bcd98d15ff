"""Backfills that hold their projection's live version, on a real broker and a real database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.integration.worker.test_backfills import KEPT, Operator, at, facts, operator
from tests.services.topics import Topic
from tests.support.desk import at_desk, write
from tests.support.running import RunningWorker, Sent, Stage, committed, reader, table_of
from tidegate.consumers import App, Event
from tidegate.consumers.backfill.oversight import abandon, find, listed
from tidegate.dlq.permission import NotPermitted
from tidegate.dlq.reach import Caller, Grant
from tidegate.dlq.verbs import Role
from tidegate.inbox.errors import ConfigurationError, OwnershipLost
from tidegate.inbox.versions import run_version

TABLES = (
    "CREATE TABLE public.last (id text PRIMARY KEY, n bigint)",
    "CREATE TABLE public.seen (place bigint GENERATED ALWAYS AS IDENTITY, n bigint)",
)
ALL = {"since": -1, "until": 1e6}
"""To the log's end, whenever that is."""


def plain(app: App, **options: Any) -> None:
    """A projection `last` whose writes are not guarded: the value that comes last stands; it notes what it sees."""
    (consumer,) = app.consumers.values()

    @consumer.projection("last", **options)
    async def project(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
        for event in events:
            row = {"id": (event.key or b"").decode(), "n": event.value["n"]}
            await tx.execute(sa.text("INSERT INTO public.seen (n) VALUES (:n)"), row)
            await tx.execute(
                sa.text("INSERT INTO public.last VALUES (:id, :n) ON CONFLICT (id) DO UPDATE SET n = excluded.n"), row
            )


def records(*numbers: int, partition: int = 0) -> list[Sent]:
    return [Sent(f"e{n}", {"n": n}, f"k{n % 3}".encode(), partition, timestamp_ms=at(n)) for n in numbers]


async def seen(stage: Stage) -> list[int]:
    return [row[0] for row in await stage.rows("SELECT n FROM public.seen ORDER BY place")]


async def counts(stage: Stage, table: str, n: int) -> bool:
    return await stage.value(f"SELECT count(*) FROM public.{table}") == n


async def last(stage: Stage) -> dict[str, int]:
    return dict(await stage.rows("SELECT id, n FROM public.last"))


async def shop(stage: Stage, topic: Topic, **options: Any) -> tuple[App, str, RunningWorker]:
    """A live worker that has handled ten events, with the projection and a command that share their partition."""
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    plain(app, **options)
    at_desk(app, write)
    await table_of(stage)
    await stage.execute(*TABLES)
    await stage.send(name, *records(*range(10)))
    worker = await stage.ready(app)
    await worker.until_counted("events", "last", "completed", n=10)
    await worker.until_counted("events", "do", "completed", n=10)
    await worker.until(committed(stage, 10))
    return app, name, worker


async def begin(who: Operator, **more: Any) -> int:
    return (await who.backfiller.start(who.order("last", hold=True, **{**ALL, **more}))).id


async def test_a_held_projection_sees_everything_in_order_and_goes_on_behind_its_backfill(
    stage: Stage, topic: Topic
) -> None:
    """The live version writes nothing while old events are applied again, and other handlers go on beside it.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: checkpoint.py moves checkpoints that are held, or holds.py lets go at where the live version stood
    """
    app, name, worker = await shop(stage, topic)
    async with operator(stage, app) as who:
        with pytest.raises(ConfigurationError, match="--hold it until"):
            await who.plans("last", **ALL)
        planned = await who.plans("last", hold=True, **ALL)
        (part,) = planned.parts
        assert (part.start_offset, part.live_offset, part.end_offset) == (0, 10, 10)
        number = await begin(who)
        await stage.execute("DELETE FROM public.last")
        await stage.send(name, *records(10, 11, 12))
        await worker.until(lambda: counts(stage, "effect", 13))
        await worker.until(committed(stage, 13))
        assert (await seen(stage), await last(stage)) == (list(range(10)), {})
        assert facts(await who.goes_on(number)) == (10, 10, 0, 0, 0)
        await worker.until_counted("events", "last", "completed", n=13)
    assert await seen(stage) == [*range(10), *range(10), 10, 11, 12]
    assert await last(stage) == {"k0": 12, "k1": 10, "k2": 11}
    await stage.send(name, *records(12, 13))  # a repeat
    await worker.until_counted("events", "last", "completed", n=14)
    assert await seen(stage) == [*range(10), *range(14)]
    assert await stage.value("SELECT count(*) FROM tidegate.claim_1 WHERE version = $1", run_version(number)) == 10
    assert await stage.value("SELECT count(*) FROM public.effect") == 14  # of the command each one once


async def test_what_the_live_version_had_not_seen_is_applied_for_it(stage: Stage, topic: Topic) -> None:
    """Behind the place where it stood the run claims for the live version, so that a repeat behind the end is one.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: running.py handles all of a held part under the run's own version
    """
    app, name, worker = await shop(stage, topic)
    assert await worker.stop() == 0
    await stage.send(name, *records(10, 11, 12))
    async with operator(stage, app) as who:
        run = await who.does("last", since=8, until=ALL["until"], hold=True)
    assert facts(run) == (5, 5, 0, 0, 0)
    assert await seen(stage) == [*range(10), 8, 9, 10, 11, 12]
    versions = await stage.rows(
        "SELECT version, count(*) FROM tidegate.claim_1 WHERE version > 0 GROUP BY 1 ORDER BY 1"
    )
    assert versions == [(1, 13), (run_version(run.id), 2)]
    await stage.send(name, *records(11, 13))
    worker = await stage.ready(app)
    await worker.until_counted("events", "last", "skipped_duplicate", n=1)
    await worker.until_counted("events", "last", "completed", n=1)
    assert await seen(stage) == [*range(10), 8, 9, 10, 11, 12, 13]


async def test_it_begins_where_the_live_version_stands_if_that_is_lower(stage: Stage, topic: Topic) -> None:
    """Else what lies between the two would be handled by nobody: the live version goes on behind the end.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: held.py begins at the window's begin
    """
    app, name, worker = await shop(stage, topic)
    assert await worker.stop() == 0
    await stage.send(name, *records(10, 11, 12))
    async with operator(stage, app) as who:
        run = await who.does("last", since=12, until=ALL["until"], hold=True)
    assert facts(run) == (3, 3, 0, 0, 0)
    assert await seen(stage) == list(range(13))


async def test_a_held_version_stays_held_over_restarts_and_is_held_once(stage: Stage, topic: Topic) -> None:
    app, name, worker = await shop(stage, topic)
    async with operator(stage, app) as who:
        number = await begin(who)
        assert await worker.stop() == 0
        worker = await stage.ready(app)
        await stage.send(name, *records(10))
        await worker.until(lambda: counts(stage, "effect", 11))
        await worker.until(committed(stage, 11))
        assert await seen(stage) == list(range(10))
        with pytest.raises(ConfigurationError, match=f"backfill {number} holds the handler"):
            await begin(who)
        assert facts(await who.goes_on(number)) == (10, 10, 0, 0, 0)
        await worker.until_counted("events", "last", "completed", n=1)
        assert facts(await who.does("last", hold=True, **ALL)) == (11, 11, 0, 0, 0)
    assert await seen(stage) == [*range(10), *range(10), 10, *range(11)]


async def test_a_consumers_only_handler_is_held_over_a_restart(stage: Stage, topic: Topic) -> None:
    """Nobody else says where reading starts: it stays at what was committed, and goes back to where it may go on.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: ownership.py lets a track start behind every record where all of its handlers are held
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    plain(app)
    await stage.execute(*TABLES)
    await stage.send(name, *records(*range(10)))
    worker = await stage.ready(app)
    await worker.until_counted("events", "last", "completed", n=10)
    await worker.until(committed(stage, 10))
    async with operator(stage, app) as who:
        number = await begin(who)
        await stage.send(name, *records(10))
        await worker.until(committed(stage, 11))
        assert await worker.stop() == 0
        worker = await stage.ready(app)
        await stage.send(name, *records(11))
        await worker.until(committed(stage, 12))
        assert await seen(stage) == list(range(10))
        assert facts(await who.goes_on(number)) == (10, 10, 0, 0, 0)
        await worker.until_counted("events", "last", "completed", n=2)
        await worker.until(committed(stage, 12))
        assert worker.board.fatal is None
    assert await seen(stage) == [*range(10), *range(12)]
    assert await last(stage) == {"k0": 9, "k1": 10, "k2": 11}


async def test_what_would_put_old_values_over_new_ones_is_refused(stage: Stage, topic: Topic) -> None:
    """A window that ends below what was applied, a tenant's part of it, and a command, which needs no holding.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: held.py does not compare the window's end with where the live version stands
    """
    app, _, _ = await shop(stage, topic)
    async with operator(stage, app) as who:
        with pytest.raises(ConfigurationError, match="window ends at 5 and the handler stands at 10"):
            await begin(who, until=5)
        with pytest.raises(ConfigurationError, match="would never see the other tenants' events"):
            await begin(who, tenant="A")
        with pytest.raises(ConfigurationError, match="is a command"):
            await who.does("do", hold=True, **ALL)
        assert await listed(who.gate) == []
    assert await stage.value("SELECT count(*) FROM tidegate.checkpoint WHERE held IS NOT NULL") == 0


async def test_keys_wait_as_declared_and_what_fails_is_tried_by_the_live_worker(stage: Stage, topic: Topic) -> None:
    app, name, worker = await shop(stage, topic, on_failure="block", after_dead="hold")
    await stage.execute("ALTER TABLE public.last ADD CONSTRAINT no CHECK (n <> 4) NOT VALID")
    async with operator(stage, app) as who:
        run = await who.does("last", hold=True, **ALL)
        assert facts(run) == (10, 8, 0, 0, 2)
        assert run.counts.causes == {"dead": 1, "queued": 1}  # e4, and e7 behind it
    await stage.send(name, *records(10))
    await worker.until(lambda: counts(stage, "effect", 11))
    await worker.until(committed(stage, 11))
    rows = await stage.rows("SELECT id_text, state FROM tidegate.failure ORDER BY seq")
    assert rows == [("e4", "dead"), ("e7", "queued"), ("e10", "queued")]
    await stage.execute("ALTER TABLE public.last DROP CONSTRAINT no")
    await stage.replay()
    await worker.until(lambda: _none(stage))
    assert await last(stage) == {"k0": 9, "k1": 10, "k2": 8}


async def _none(stage: Stage) -> bool:
    return await stage.value("SELECT count(*) FROM tidegate.failure") == 0


async def test_an_abandoned_one_lets_go_and_is_gone_on_with_by_nobody(stage: Stage, topic: Topic) -> None:
    """The process that works on it writes nothing more, the live version goes on, and what was done stays done.

    Case: B39, B42
    Parts: real (Kafka, PostgreSQL)
    Red when: oversight.py leaves the fences, or lets nothing go
    """
    app, name, worker = await shop(stage, topic)
    async with operator(stage, app) as who:
        number = await begin(who, rate=8)
        stop = asyncio.Event()
        working = asyncio.ensure_future(who.goes_on(number, stop))
        await worker.until(lambda: _begun(stage, number))
        run = await abandon(who.gate, number, "not wanted any more")
        with pytest.raises(OwnershipLost):
            await working
        assert run.abandoned_at is not None
        assert 0 < run.counts.handled < 10
        handled = await stage.value("SELECT count(*) FROM tidegate.claim_1 WHERE version = $1", run_version(number))
        assert handled == run.counts.handled
        with pytest.raises(ConfigurationError, match="was abandoned"):
            await who.goes_on(number)
        with pytest.raises(ConfigurationError, match="over already"):
            await abandon(who.gate, number, "again")
        assert await stage.value("SELECT count(*) FROM tidegate.fence WHERE consumer LIKE '%backfill%'") == 0
        await stage.send(name, *records(10))
        await worker.until_counted("events", "last", "completed", n=11)
    lines = await stage.rows("SELECT allowed, details->>'backfill' FROM tidegate.audit WHERE act = 'abandon_backfill'")
    assert lines == [(True, str(number))]


async def _begun(stage: Stage, number: int) -> bool:
    return await stage.value("SELECT handled FROM tidegate.backfill WHERE id = $1", number) > 0


async def test_who_may_abandon_and_see_them(stage: Stage, topic: Topic) -> None:
    app, _, _ = await shop(stage, topic)
    mine, theirs = frozenset({"last"}), frozenset({"other"})
    async with operator(stage, app) as who:
        number = await begin(who)
    viewer = Caller("ann", (Grant(role=Role.VIEWER, tenants=None, handlers=mine),))
    stranger = Caller("eve", (Grant(role=Role.ADMIN, tenants=None, handlers=theirs),))
    nobody = Caller("joe")
    async with operator(stage, app, viewer) as who:
        assert [run.id for run in await listed(who.gate)] == [number]
        with pytest.raises(NotPermitted):
            await abandon(who.gate, number, "why not")
    async with operator(stage, app, stranger) as who:
        assert await listed(who.gate) == []
        with pytest.raises(ConfigurationError, match="there is no backfill"):
            await abandon(who.gate, number, "why not")
    async with operator(stage, app, nobody) as who:
        with pytest.raises(NotPermitted):
            await listed(who.gate)
    admin = Caller("bob", (Grant(role=Role.ADMIN, tenants=None, handlers=mine),))
    async with operator(stage, app, admin) as who:
        assert not (await find(who.gate, number)).is_over
        assert (await abandon(who.gate, number, "a mistake")).is_over
    lines = await stage.rows(
        "SELECT act, actor, allowed FROM tidegate.audit WHERE act LIKE '%backfills' OR act LIKE 'abandon%' ORDER BY id"
    )
    assert lines == [
        ("abandon_backfill", "ann", False),
        ("abandon_backfill", "eve", False),
        ("list_backfills", "joe", False),
        ("abandon_backfill", "bob", True),
    ]
