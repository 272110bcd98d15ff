"""Backfills beside a live worker, on a real broker and a real database."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import sqlalchemy as sa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters, write
from tests.support.running import Sent, Stage, committed, reader, table_of
from tidegate.consumers import App, Context, Event, RetryLater, Scope, header, idempotent_key, write_newer
from tidegate.consumers.backfill.backfiller import Backfiller, Planned
from tidegate.consumers.backfill.order import Order
from tidegate.consumers.backfill.oversight import listed
from tidegate.consumers.layers import load
from tidegate.dlq.acting import Errand, steps
from tidegate.dlq.deeds import discarding
from tidegate.dlq.permission import Gate, NotKnown, NotPermitted
from tidegate.dlq.reach import Caller, Grant, unlimited
from tidegate.dlq.verbs import Role
from tidegate.inbox.backfills import Run
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.errors import ConfigurationError, FatalError, OwnershipLost
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables
from tidegate.inbox.versions import run_version

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)
KEPT = {"retention.ms": "-1"}
"""The records' times are long ago: a broker that looks at them would take them away."""

AGES = 10_000_000
"""Minutes: markers of transactions have the time at which they are written."""


def at(minutes: float) -> int:
    """Milliseconds since 1970, so many minutes after noon."""
    return round((NOON + minutes * MINUTE).timestamp() * 1000)


class Operator:
    """Somebody who backfills."""

    def __init__(self, stage: Stage, app: App, backfiller: Backfiller, gate: Gate) -> None:
        self.stage = stage
        self.app = app
        self.backfiller = backfiller
        (self.consumer,) = app.consumers
        self.gate = gate

    def order(self, handler: str = "do", since: float = 0, until: float = 60, **more: Any) -> Order:
        window = {"since": NOON + since * MINUTE, "until": NOON + until * MINUTE}
        asked: dict[str, Any] = {"actor": "tests", "reason": "again", "rate": 10_000, **window, **more}
        return Order(consumer=self.consumer, handler=handler, **asked)

    async def plans(self, *arguments: Any, **more: Any) -> Planned:
        return await self.backfiller.plan(self.order(*arguments, **more))

    async def does(self, *arguments: Any, **more: Any) -> Run:
        run = await self.backfiller.start(self.order(*arguments, **more))
        return await self.goes_on(run.id)

    async def goes_on(self, number: int, stop: asyncio.Event | None = None) -> Run:
        return await self.backfiller.go_on(number, actor="tests", reason="again", stop=stop or asyncio.Event())


@asynccontextmanager
async def operator(stage: Stage, app: App, caller: Caller | None = None) -> AsyncGenerator[Operator]:
    """At a desk of their own: no worker's connections are used."""
    settings = load({"TIDEGATE_DATABASE_URL": stage.url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": stage.bootstrap}).settings
    database = Database(stage.url, member="backfill", settings=DatabaseSettings(pool_max=4, tx_pool_max=4))
    try:
        gate = Gate(Store(database, tables()), caller or unlimited("tests"))
        yield Operator(stage, app, Backfiller(app, settings, gate.store, gate.caller), gate)
    finally:
        await database.close()


def facts(run: Run) -> tuple[int, int, int, int, int]:
    """read, handled, skipped, refused, failed."""
    counts = run.counts
    return (counts.read, counts.handled, counts.skipped, counts.refused, counts.failed)


async def effects(stage: Stage) -> list[str]:
    return [row[0] for row in await stage.rows("SELECT id FROM public.effect ORDER BY id")]


async def test_a_command_handles_what_was_not_handled_and_says_what_was(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    await stage.send(name, *[Sent(f"e{n}", key=f"k{n % 3}".encode(), timestamp_ms=at(n)) for n in range(10)])
    worker = await stage.ready(app)
    await worker.until_counted("events", "do", "completed", n=10)
    await worker.until(committed(stage, 10))
    await stage.execute(  # as if four had never been handled
        "DELETE FROM tidegate.claim_1 WHERE ctid IN (SELECT ctid FROM tidegate.claim_1 LIMIT 4)",
        "DELETE FROM public.effect",
    )
    before = await live(stage, app)
    async with operator(stage, app) as who:
        planned = await who.plans()
        assert [(part.start_offset, part.end_offset) for part in planned.parts] == [(0, 10)]
        (tally,) = planned.tallies.values()
        assert (tally.handled, dict(tally.causes)) == (4, {"handled_before": 6})
        assert await effects(stage) == []
        run = await who.does()
        assert facts(run) == (10, 4, 6, 0, 0)
        assert run.ended_at is not None
        assert len(await effects(stage)) == 4
        again = await who.does()
        assert facts(again) == (10, 0, 10, 0, 0)
        assert facts(await who.goes_on(run.id)) == facts(run)
    assert len(await effects(stage)) == 4
    assert await live(stage, app) == before


async def live(stage: Stage, app: App) -> list[tuple[Any, ...]]:
    """All that says where the live group is."""
    (consumer,) = app.consumers
    fences = await stage.rows("SELECT consumer, topic, partition, epoch, kafka_offset, wanted FROM tidegate.fence")
    checkpoints = await stage.rows("SELECT * FROM tidegate.checkpoint ORDER BY 1, 2, 3, 4")
    assert {row[0] for row in fences} == {consumer}
    return [*fences, *checkpoints]


def view(app: App, **options: Any) -> sa.Table:
    """A projection `view` that keeps, for each key, the value with the highest version."""
    (consumer,) = app.consumers.values()
    table = sa.Table(
        "view", sa.MetaData(schema="public"), sa.Column("id", sa.Text, primary_key=True), sa.Column("n", sa.BigInteger)
    )

    @consumer.projection("view", only_if_newer=True, **options)
    async def project(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> int:
        if any(event.value.get("bad") for event in events):
            raise ValueError("a bad event")
        rows = [{"id": (event.key or b"").decode(), "n": event.value["n"]} for event in events]
        return await write_newer(tx, table, rows, key=["id"], version="n")

    return table


VIEW = "CREATE TABLE public.view (id text PRIMARY KEY, n bigint)"


async def test_a_projections_run_has_claims_of_its_own_and_puts_no_old_value_back(stage: Stage, topic: Topic) -> None:
    """A backfill of a projection applies old events again beside the live ones, and the newest value of a key stays.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: assembly.py binds the run's projection with the declared version instead of the run's own
    """
    name = topic(partitions=2, config=KEPT)
    app = reader(name)
    view(app)
    await stage.execute(VIEW)
    records = [Sent(f"e{n}", {"n": n}, f"k{n % 4}".encode(), n % 2, timestamp_ms=at(n)) for n in range(20)]
    await stage.send(name, *records)
    worker = await stage.ready(app)
    await worker.until_counted("events", "view", "completed", n=20)
    await worker.until(committed(stage, 10, 0))
    await worker.until(committed(stage, 10, 1))
    await stage.execute("DELETE FROM public.view WHERE id = 'k1'")
    await stage.execute("UPDATE public.view SET n = 100 WHERE id = 'k2'")
    before = await live(stage, app)
    async with operator(stage, app) as who:
        run = await who.does("view")
        assert facts(run) == (20, 20, 0, 0, 0)
        assert facts(await who.does("view")) == (20, 20, 0, 0, 0)
    assert dict(await stage.rows("SELECT id, n FROM public.view")) == {"k0": 16, "k1": 17, "k2": 100, "k3": 19}
    versions = await stage.rows("SELECT version, count(*) FROM tidegate.claim_1 GROUP BY 1 ORDER BY 1")
    assert versions == [(1, 20), (run_version(1), 20), (run_version(2), 20)]
    assert await live(stage, app) == before


async def test_what_a_run_of_a_projection_left_behind_is_tried_again_by_the_live_worker(
    stage: Stage, topic: Topic
) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    view(app, on_failure="block")
    await stage.execute(VIEW)
    await stage.send(name, *[Sent(f"e{n}", {"n": n}, b"k%d" % n, timestamp_ms=at(n)) for n in range(3)])
    worker = await stage.ready(app)
    await worker.until_counted("events", "view", "completed", n=3)
    await stage.execute("DELETE FROM public.view")
    await stage.execute("ALTER TABLE public.view ADD CONSTRAINT no CHECK (n <> 1)")
    async with operator(stage, app) as who:
        run = await who.does("view")
    assert facts(run) == (3, 2, 0, 0, 1)
    assert run.counts.causes == {"dead": 1}
    rows = await stage.rows("SELECT id_text, state, version, alone FROM tidegate.failure")
    assert rows == [("e1", "dead", run_version(run.id), True)]
    await stage.send(name, Sent("e3", {"n": 3}, b"k1", timestamp_ms=at(3)))
    await worker.until_counted("events", "view", "completed", n=4)  # its key is free
    await stage.execute("ALTER TABLE public.view DROP CONSTRAINT no")
    await stage.replay()
    await worker.until(lambda: _none(stage, "SELECT count(*) FROM tidegate.failure"))
    claimed = await stage.value("SELECT count(*) FROM tidegate.claim_1 WHERE version = $1", run_version(run.id))
    assert claimed == 3
    assert await stage.rows("SELECT id, n FROM public.view ORDER BY id") == [("k0", 0), ("k1", 3), ("k2", 2)]


async def _none(stage: Stage, query: str) -> bool:
    return await stage.value(query) == 0


async def test_the_window_is_told_by_time_and_its_end_stands_at_the_start(stage: Stage, topic: Topic) -> None:
    """Times between records, at records, before the first and behind the last; a partition without any.

    Case: B39
    Parts: real (Kafka, PostgreSQL)
    Red when: order.py ends a part at the log's beginning where no record is of the window's end or later
    """
    name = topic(partitions=2, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(10 * n)) for n in range(5)])
    async with operator(stage, app) as who:
        for since, until, window in [
            (-5, 100, (0, 5)), (10, 30, (1, 3)), (5, 15, (1, 2)), (11, 19, (2, 2)), (41, 100, (5, 5)), (-9, -1, (0, 0)),
        ]:  # fmt: skip
            planned = await who.plans(since=since, until=until)
            parts = {part.partition.number: (part.start_offset, part.end_offset) for part in planned.parts}
            assert parts == {0: window, 1: (0, 0)}
        run = await who.backfiller.start(who.order(until=10_000))
        await stage.send(name, Sent("late", timestamp_ms=at(50)))
        assert facts(await who.goes_on(run.id)) == (5, 5, 0, 0, 0)
    assert await effects(stage) == [f"e{n}" for n in range(5)]


async def run_once(stage: Stage, app: App) -> None:
    """So that the database knows the app's handlers."""
    worker = await stage.ready(app)
    assert await worker.stop() == 0


async def test_a_window_that_ends_in_transaction_markers_ends(stage: Stage, topic: Topic) -> None:
    """What counts is the position: behind the last record there are markers and an aborted record only.

    Case: B53
    Parts: real (Kafka, PostgreSQL)
    Red when: reading.py moves on to behind the last record that it saw, not to the stretch's position
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    await asyncio.to_thread(write_transactions, stage.bootstrap, name)
    async with operator(stage, app) as who:
        planned = await who.plans(until=AGES)
        (part,) = planned.parts
        assert (part.start_offset, part.end_offset) == (0, 5)  # two records, a marker, an aborted one, a marker
        async with asyncio.timeout(30):
            run = await who.does(until=AGES)
    assert facts(run) == (2, 2, 0, 0, 0)
    assert await effects(stage) == ["a", "b"]


def write_transactions(bootstrap: str, topic: str) -> None:
    """Two records that are committed, one that is not."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(20)
    for ids, end in (("ab", producer.commit_transaction), ("c", producer.abort_transaction)):
        producer.begin_transaction()
        for id_ in ids:
            producer.produce(topic, b"{}", b"k", headers={"id": id_, "type": "Thing"}, timestamp=at(1))
        assert producer.flush(20) == 0
        end(20)


async def test_records_of_a_time_outside_are_left_out_among_the_windows_offsets(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    times = {"in1": 10, "early": 1, "in2": 20, "future": 90, "in3": 30}
    await stage.send(name, *[Sent(id_, timestamp_ms=at(minute)) for id_, minute in times.items()])
    async with operator(stage, app) as who:
        run = await who.does(since=5, until=100)
        assert await effects(stage) == ["future", "in1", "in2", "in3"]
        assert (facts(run), run.counts.causes) == ((5, 4, 1, 0, 0), {"outside_window": 1})


async def test_what_retention_took_meanwhile_is_counted(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(n)) for n in range(6)])
    async with operator(stage, app) as who:
        run = await who.backfiller.start(who.order())
        await asyncio.to_thread(delete_records, stage.bootstrap, name, 4)
        run = await who.goes_on(run.id)
    assert (facts(run), run.counts.causes) == ((6, 2, 0, 0, 4), {"retention": 4})
    assert await effects(stage) == ["e4", "e5"]


def delete_records(bootstrap: str, topic: str, below: int) -> None:
    """As retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deleted: dict[TopicPartition, Any] = cast("Any", admin.delete_records([TopicPartition(topic, 0, below)]))
    for future in deleted.values():
        future.result(20)


async def test_a_parked_keys_events_queue_up(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        if command.says.get("wait"):
            raise RetryLater("not now", after_s=3600)
        await write(command, ctx)

    at_desk(app, act)
    await table_of(stage)
    await run_once(stage, app)
    await stage.send(
        name,
        Sent("a1", {"wait": True}, b"a", timestamp_ms=at(1)), Sent("a2", {}, b"a", timestamp_ms=at(2)),
        Sent("b1", {}, b"b", timestamp_ms=at(3)), Sent("none", {}, None, timestamp_ms=at(4)),
    )  # fmt: skip
    async with operator(stage, app) as who:
        run = await who.does(until=2)
        assert (facts(run), run.counts.causes) == ((1, 0, 0, 0, 1), {"queued": 1})
        run = await who.does()
    assert facts(run) == (4, 2, 1, 0, 1)
    assert run.counts.causes == {"queued": 1, "in_inbox": 1}
    assert await effects(stage) == ["b1", "none"]
    assert [row[:2] for row in await stage.failures("do")] == [("a1", "queued"), ("a2", "queued")]


async def test_what_is_older_than_the_inbox_remembers_is_refused_unless_forced(stage: Stage, topic: Topic) -> None:
    """Below the handler's place at the oldest claims' birth nobody can tell what was handled.

    Case: B40
    Parts: real (Kafka, PostgreSQL)
    Red when: ownership.py writes no births, or sifting.py leaves out the look at them
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name, start="latest")
    at_desk(app, write)
    await table_of(stage)
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(n)) for n in range(3)])
    worker = await stage.ready(app)
    await worker.until(committed(stage, 3))  # its claims begin behind these three
    assert await worker.stop() == 0
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(n)) for n in range(3, 6)])
    await stage.execute(
        "INSERT INTO tidegate.restored (consumer, topic, partition, until_offset, declared_by)"
        f" SELECT DISTINCT consumer, '{name}', 0, 5, 'tests' FROM tidegate.handler",
    )
    async with operator(stage, app) as who:
        planned = await who.plans()
        (tally,) = planned.tallies.values()
        assert (tally.handled, dict(tally.causes)) == (1, {"too_old": 3, "after_restore": 2})
        run = await who.does()
        assert (facts(run), await effects(stage)) == ((6, 1, 0, 5, 0), ["e5"])
        forced = await who.does(force=True)
        assert facts(forced) == (6, 5, 1, 0, 0)
    assert await effects(stage) == [f"e{n}" for n in range(6)]


async def test_what_nobody_can_read_becomes_a_letter_once(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    letters(app, topic)
    await run_once(stage, app)
    await stage.send(name, Sent("a", b"{no json", timestamp_ms=at(1)), Sent("b", timestamp_ms=at(2)))
    async with operator(stage, app) as who:
        run = await who.does()
        assert (facts(run), run.counts.causes) == ((2, 1, 0, 0, 1), {"unreadable": 1})
        run = await who.does()
        assert (facts(run), run.counts.causes) == ((2, 0, 2, 0, 0), {"handled_before": 1, "in_inbox": 1})
    assert [row[1:] for row in await stage.failures("")] == [("dead", "undecodable")]
    worker = await stage.ready(app)
    await worker.until_counted("outbox_published", "delivered", n=1)


async def test_only_a_tenants_events_count(stage: Stage, topic: Topic) -> None:
    """Whose events count is said, and looked at in each record.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: sifting.py takes all events where a tenant is named
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name, scope=Scope(tenant=header("tenant")))
    at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    whose = {"a1": b"A", "b1": b"B", "a2": b"A", "none": None}
    await stage.send(
        name, *[Sent(id_, headers=(("tenant", t),) if t else (), timestamp_ms=at(1)) for id_, t in whose.items()],
        Sent("bad", b"{", headers=(("tenant", b"B"),), timestamp_ms=at(1)),
    )  # fmt: skip
    async with operator(stage, app) as who:
        with pytest.raises(ConfigurationError, match="whose events count"):
            await who.does()
        with pytest.raises(ConfigurationError, match="whose events count"):
            await who.does(tenant="A", all_tenants=True)
        run = await who.does(tenant="A")
        assert (facts(run), run.counts.causes) == ((5, 2, 3, 0, 0), {"other_tenant": 3})
        assert await effects(stage) == ["a1", "a2"]
        assert facts(await who.does(all_tenants=True)) == (5, 2, 2, 0, 1)


async def test_the_wrong_place_is_refused_before_anything_is_read(stage: Stage, topic: Topic) -> None:
    """Another cluster, a topic that only looks like one of the consumer's, a handler that it does not have.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: order.py matches topics by prefix, or backfiller.py does not compare the cluster's id
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await run_once(stage, app)
    async with operator(stage, app) as who:
        for more, text_ in (
            ({"cluster": "elsewhere"}, "this is cluster"), ({"topics": (name[:-1],)}, "no topic of"),
            ({"topics": (".*",)}, "no topic of"), ({"handler": "dont"}, "no handler 'dont'"),
            ({"since": 2, "until": 1}, "ends before it begins"),
        ):  # fmt: skip
            with pytest.raises(ConfigurationError, match=text_):
                await who.does(**more)
        run = await who.backfiller.start(who.order())
        await stage.execute("UPDATE tidegate.backfill SET cluster_id = 'elsewhere'")
        with pytest.raises(ConfigurationError, match="go on where it was started"):
            await who.goes_on(run.id)


async def test_a_group_of_its_name_with_members_is_refused(stage: Stage, topic: Topic) -> None:
    """Somebody consumes under the name that the backfill would read by.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: backfiller.py does not ask for the group's members
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    await stage.send(name, Sent("a", timestamp_ms=at(1)))
    async with operator(stage, app) as who:
        run = await who.backfiller.start(who.order())
        intruder = reader(name, consumer=run.group)
        at_desk(intruder)
        worker = await stage.ready(intruder)
        with pytest.raises(FatalError, match="1 live members"):
            await who.goes_on(run.id)
        assert await effects(stage) == []
        assert await worker.stop() == 0
        await stage.execute(f"DELETE FROM tidegate.fence WHERE consumer = '{run.group}'")
        assert facts(await who.goes_on(run.id)) == (1, 1, 0, 0, 0)


async def test_a_live_projection_without_guarded_writes_is_refused(stage: Stage, topic: Topic) -> None:
    app = reader(topic(partitions=1, config=KEPT))
    (consumer,) = app.consumers.values()

    @consumer.projection("plain")
    async def plain(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None: ...

    await run_once(stage, app)
    async with operator(stage, app) as who:
        with pytest.raises(ConfigurationError, match="only_if_newer=True"):
            await who.plans("plain")


async def test_who_may_not_is_denied_and_both_stand_in_the_audit(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    mine, theirs = frozenset({"do"}), frozenset({"other"})
    admin = Caller("tests", (Grant(role=Role.ADMIN, tenants=None, handlers=mine),))
    helper = Caller("tests", (Grant(role=Role.OPERATOR, tenants=None, handlers=mine),))
    stranger = Caller("tests", (Grant(role=Role.ADMIN, tenants=None, handlers=theirs),))
    tenants = Caller("tests", (Grant(role=Role.ADMIN, tenants=frozenset({"A"})),))
    async with operator(stage, app, admin) as who:
        run = await who.does()
        assert [found.id for found in await listed(who.gate)] == [run.id]
    async with operator(stage, app, helper) as who:
        for act in (who.plans(), who.does(), who.goes_on(run.id)):
            with pytest.raises(NotPermitted):
                await act
    for caller in (stranger, tenants):
        async with operator(stage, app, caller) as who:
            with pytest.raises(NotKnown):
                await who.plans()
            with pytest.raises(ConfigurationError, match="there is no backfill"):
                await who.goes_on(run.id)
            assert await listed(who.gate) == []
    lines = await stage.rows(
        "SELECT allowed, handler, tenant, details->>'why', details->>'backfill', details->>'ended' FROM tidegate.audit"
        " WHERE act = 'backfill' ORDER BY id"
    )
    number = str(run.id)
    allowed = [(True, "do", "*", "again", number, ended) for ended in (None, "true")]
    denied = [(False, "do", "*", "again", at_all, None) for at_all in (None, None, number, None, None)]
    assert lines == allowed + denied


async def test_a_second_process_takes_it_over_and_the_first_writes_nothing_more(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    desk = at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(n)) for n in range(3)])
    desk.shut("e1")
    async with operator(stage, app) as first, operator(stage, app) as second:
        run = await first.backfiller.start(first.order())
        working = asyncio.ensure_future(first.goes_on(run.id))
        while "e1" not in desk.came:
            await asyncio.sleep(0.01)
        also = asyncio.ensure_future(second.goes_on(run.id))
        while desk.came.count("e1") < 2:
            await asyncio.sleep(0.01)
        desk.open("e1")
        with pytest.raises(OwnershipLost):
            await working
        assert facts(await also) == (3, 3, 0, 0, 0)
    assert await effects(stage) == ["e0", "e1", "e2"]
    assert await stage.value("SELECT count(*) FROM tidegate.fence WHERE consumer LIKE '%backfill%'") == 0


async def test_asked_to_stop_it_ends_behind_what_is_in_hand(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    desk = at_desk(app, write)
    await table_of(stage)
    await run_once(stage, app)
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(n)) for n in range(6)])
    desk.shut("e2")
    stop = asyncio.Event()
    async with operator(stage, app) as who:
        run = await who.backfiller.start(who.order(rate=8))
        working = asyncio.ensure_future(who.goes_on(run.id, stop))
        while "e2" not in desk.came:
            await asyncio.sleep(0.01)
        stop.set()
        desk.open("e2")
        stopped = await working
        assert stopped.ended_at is None
        assert facts(stopped) == (4, 4, 0, 0, 0)
        assert facts(await who.goes_on(run.id)) == (6, 6, 0, 0, 0)
    assert await effects(stage) == [f"e{n}" for n in range(6)]


async def test_one_event_in_both_ways_at_once_has_one_effect(stage: Stage, topic: Topic) -> None:
    """The live worker and the backfill run the same handler for one event; one claim comes back.

    Case: B42
    Parts: real (Kafka, PostgreSQL)
    Red when: assembly.py binds the command under another handler id than the live worker's
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    desk = at_desk(app, write)
    await table_of(stage)
    worker = await stage.ready(app)
    desk.shut("e")
    await stage.send(name, Sent("e", timestamp_ms=at(1)))
    await worker.until(lambda: desk.calls["e"] == 1)
    async with operator(stage, app) as who:
        working = asyncio.ensure_future(who.does())
        await worker.until(lambda: desk.calls["e"] == 2)
        desk.open("e")
        run = await working
        assert facts(run) == (1, 1, 0, 0, 0)
    await worker.until(lambda: worker.events("do", "completed") + worker.events("do", "skipped_duplicate") == 1)
    assert await effects(stage) == ["e"]


async def test_a_call_that_was_made_is_not_made_again(stage: Stage, topic: Topic) -> None:
    """The ledger is the live worker's: where only the claim is gone, the call's result is there.

    Case: B40
    Parts: real (Kafka, PostgreSQL)
    Red when: assembly.py gives the effects the run's group as their consumer, so that their owner is another one
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    app.effect("charge", rule=idempotent_key(valid_s=3600), deadline_s=1)
    calls: list[str] = []

    async def act(command: Do, ctx: Context) -> None:
        async with ctx.effect("charge", request=command.says) as effect:
            if not effect.is_done:
                calls.append(command.id)
                effect.complete("charged", command.id)
        await ctx.publish("told", {"id": command.id})

    at_desk(app, act)
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(n)) for n in range(2)])
    worker = await stage.ready(app)
    await worker.until_counted("events", "do", "completed", n=2)
    await stage.execute("DELETE FROM tidegate.claim_1")
    await stage.send(name, Sent("e2", timestamp_ms=at(2)))
    await worker.until_counted("events", "do", "completed", n=3)
    async with operator(stage, app) as who:
        run = await who.does()
        assert facts(run) == (3, 2, 1, 0, 0)
        await stage.execute("DELETE FROM tidegate.claim_1", "DELETE FROM tidegate.effect")
        assert facts(await who.does(since=1, until=2)) == (1, 1, 0, 0, 0)
    assert calls == ["e0", "e1", "e2", "e1"]
    (consumer,) = app.consumers
    rows = await stage.rows("SELECT consumer, owner, state FROM tidegate.effect")
    assert rows == [(consumer, f"{consumer}/do", "completed")]


async def test_too_many_that_wait_hold_it_back(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1, config=KEPT)
    app = reader(name)

    async def act(command: Do, ctx: Context) -> None:
        raise RetryLater("not now", after_s=3600)

    at_desk(app, act, parked_max=8)
    await run_once(stage, app)
    await stage.send(name, *[Sent(f"e{n}", key=None, timestamp_ms=at(n)) for n in range(9)])
    stop = asyncio.Event()
    heard: list[str] = []

    def waits(why: str) -> None:
        heard.append(why)
        stop.set()

    async with operator(stage, app) as who:
        run = await who.backfiller.start(who.order(rate=4))
        stopped = await who.backfiller.go_on(run.id, actor="tests", reason="again", stop=stop, waits=waits)
    assert facts(stopped) == (2, 0, 0, 0, 2)
    assert heard == ["2 events of the handler wait already: the rest comes when there are fewer than 2"]


async def test_a_run_applies_what_is_dead_for_the_live_version_and_not_what_was_discarded(
    stage: Stage, topic: Topic
) -> None:
    """The bug that let them die may be repaired; what a person does not want is wanted by no run.

    Case: B40
    Parts: real (Kafka, PostgreSQL)
    Red when: sifting.py does not look at the live version's discarded rows
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    view(app)
    await stage.execute(VIEW, "ALTER TABLE public.view ADD CONSTRAINT no CHECK (n IN (0, 3))")
    await stage.send(name, *[Sent(f"e{n}", {"n": n}, b"k%d" % n, timestamp_ms=at(n)) for n in range(4)])
    worker = await stage.ready(app)
    await worker.until_counted("events", "view", "completed", n=2)
    await worker.until(committed(stage, 4))
    await stage.execute("ALTER TABLE public.view DROP CONSTRAINT no")
    async with operator(stage, app) as who:
        (discarded, _) = [row[0] for row in await stage.rows("SELECT id FROM tidegate.failure ORDER BY id")]
        errand = Errand(actor="tests", reason="not wanted", references=(str(discarded),), dry_run=False)
        assert [step.done async for step in steps(who.gate.store, discarding(), errand, who.gate.caller)]
        run = await who.does("view")
    assert (facts(run), run.counts.causes) == ((4, 3, 1, 0, 0), {"discarded": 1})
    rows = await stage.rows("SELECT id_text, state, version FROM tidegate.failure ORDER BY id")
    assert rows == [("e1", "discarded", 1), ("e2", "dead", 1)]
    assert await stage.rows("SELECT id, n FROM public.view ORDER BY id") == [("k0", 0), ("k2", 2), ("k3", 3)]


@pytest.mark.parametrize(("rate", "options"), [(0.1, {}), (10_000, {"rate_per_s": 0.1})], ids=["ordered", "declared"])
async def test_it_handles_no_more_than_its_rate_and_a_stop_does_not_wait_for_it(
    stage: Stage, topic: Topic, rate: float, options: dict[str, Any]
) -> None:
    """One event in ten seconds: while the journal is looked at a hundred times, no second one is handled.

    Case: B39
    Parts: real (Kafka, PostgreSQL)
    Red when: running.py does not pause between two chunks, or backfiller.py leaves out the command's own rate
    """
    name = topic(partitions=1, config=KEPT)
    app = reader(name)
    at_desk(app, write, **options)
    await table_of(stage)
    await run_once(stage, app)
    await stage.send(name, *[Sent(f"e{n}", timestamp_ms=at(n)) for n in range(3)])
    stop = asyncio.Event()
    read = "SELECT read FROM tidegate.backfill"
    async with operator(stage, app) as who:
        run = await who.backfiller.start(who.order(rate=rate))
        working = asyncio.ensure_future(who.goes_on(run.id, stop))
        while not await stage.value(read):
            assert not working.done()
        for _ in range(100):
            assert await stage.value(read) == 1
        stop.set()
        assert facts(await working) == (1, 1, 0, 0, 0)
    assert await effects(stage) == ["e0"]
