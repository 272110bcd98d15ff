"""What became of calls that nobody knows the end of: their services are asked, and the events behind them run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.support.review_desk import ReviewDesk
from tidegate.consumers import App
from tidegate.consumers.worker.effects import asker
from tidegate.consumers.worker.handling import Mediator
from tidegate.consumers.worker.reconciling import DUE_MAX, NOTHING, Reconciler
from tidegate.consumers.worker.threads import Threads
from tidegate.dlq import review_cases
from tidegate.inbox.clock import Clock, ManualClock, SystemClock
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.effect_rules import (
    Asked,
    CannotTell,
    Done,
    Effect,
    EffectRule,
    NotDone,
    idempotent_key,
    probe,
    review,
)
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.open_effects import Waiting
from tidegate.inbox.tables import tables


@dataclass
class Provider:
    """What the service says of each key, and what it was asked."""

    says: dict[str, object] = field(default_factory=dict[str, object])
    asked: list[Asked] = field(default_factory=list[Asked])


async def ask_provider(asked: Asked, provider: Provider) -> Any:
    """A probe with a resource."""
    provider.asked.append(asked)
    answer = provider.says.get(asked.operation_id, CannotTell("never heard of it"))
    if isinstance(answer, BaseException):
        raise answer
    if isinstance(answer, asyncio.Event):
        await answer.wait()
    return answer


def ask_blocking(asked: Asked, provider: Provider) -> Any:
    """The same as a plain function."""
    provider.asked.append(asked)
    return provider.says[asked.operation_id]


class World:
    """A database with cases, a provider, and reconcilers that a test starts."""

    def __init__(self, desk: ReviewDesk, threads: Threads) -> None:
        self.desk = desk
        self.provider = Provider()
        self.told: list[Waiting] = []
        self.results: list[str] = []
        self.woken = 0
        self.ledgers: list[Ledger] = []
        self._mediator = Mediator(App("tests", owner="tests"), (self.provider,), threads)

    def reconciler(
        self,
        rule: EffectRule,
        *,
        holder: str = "one",
        consumer: str = "billing",
        deadline_s: float = 5.0,
        alert_age_s: float = 3_600.0,
        clock: Clock | None = None,
    ) -> Reconciler:
        """Of effect `send-invoice` under this rule."""
        ledger = Ledger(self.desk.store, ask=asker(self._mediator))
        self.ledgers.append(ledger)
        effect = Effect("send-invoice", rule, deadline_s, "billing")
        return Reconciler(
            self.desk.store, consumer, list(self.desk.graveyard.handlers.values()), ledger,
            {effect.name: effect}, clock or SystemClock(), holder,
            every_s=0.001, alert_age_s=alert_age_s,
            told=self.told.append, probed=self.results.append, woke=self._woke,
        )  # fmt: skip

    def _woke(self) -> None:
        self.woken += 1


async def one_round(reconciler: Reconciler) -> None:
    """The lease, then one look."""
    await reconciler.keep()
    await reconciler.round()


async def only_round(reconciler: Reconciler) -> None:
    """The same, and the lease is free again."""
    await one_round(reconciler)
    await reconciler.give_up()


@pytest.fixture
async def world(migrated_url: str) -> AsyncIterator[World]:
    """A migrated database, empty."""
    t = tables()
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=4, tx_pool_max=1))
    with closing(Threads(2)) as threads:
        async with database.transaction() as conn:
            handlers = await register_handlers(conn, t, "billing", ["revenue", "invoices"])
        made = World(ReviewDesk(Graveyard(database, t, handlers)), threads)
        try:
            yield made
        finally:
            for ledger in made.ledgers:
                await ledger.close()
            await database.close()


@pytest.mark.parametrize("function", [ask_provider, ask_blocking])
async def test_what_was_done_is_found_and_its_event_runs_again(
    world: World, function: Callable[..., Awaitable[Any] | Any]
) -> None:
    """A call of unknown end is asked about once, and its event runs again with the result."""
    row, call = await world.desk.case(1)
    world.provider.says["o-1"] = Done({"id": "in-7"}, "in-7")
    await one_round(world.reconciler(probe(function)))
    known = await world.desk.call(call)
    assert (known["resolution"], known["result"], known["external_id"]) == ("done", {"id": "in-7"}, "in-7")
    assert await world.desk.row(row) == ("queued", 2)
    assert [(asked.operation_id, asked.key) for asked in world.provider.asked] == [("o-1", "key-o-1")]
    assert (world.results, world.woken) == (["found"], 1)
    ((act, actor, _, _, details),) = await world.desk.audit()
    assert (act, actor, details["found"], details["events"]) == ("effect_probed", "tidegate", "done", 1)


async def test_what_was_not_done_is_called_again_with_the_same_key(world: World) -> None:
    row, call = await world.desk.case(1)
    world.provider.says["o-1"] = NotDone()
    await one_round(world.reconciler(probe(ask_provider)))
    known = await world.desk.call(call)
    assert (known["resolution"], known["key"]) == ("not_done", "key-o-1")
    assert await world.desk.row(row) == ("queued", 2)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (CannotTell("ask later"), "ask later"),
        (ValueError("with a secret"), "ValueError"),
        (SystemExit(1), "HandlerLeft"),
        (KeyboardInterrupt(), "HandlerLeft"),
        (GeneratorExit(), "HandlerLeft"),
        ("nonsense", "a str instead of Done"),
        (Done(object()), "cannot be kept"),
        (asyncio.Event(), "in time"),
    ],
)
async def test_a_probe_that_cannot_tell_raises_hangs_or_babbles_is_asked_again_later(
    world: World, answer: object, why: str
) -> None:
    row, call = await world.desk.case(1)
    world.provider.says["o-1"] = answer
    reconciler = world.reconciler(probe(ask_provider), deadline_s=0.2)
    await one_round(reconciler)
    await one_round(reconciler)
    known = await world.desk.call(call)
    assert (known["state"], known["probes"]) == ("unknown", 1), "its next time has not come"
    assert why in known["error"]
    assert "secret" not in known["error"]
    assert await world.desk.row(row) == ("unknown", 1), "it stays for a person meanwhile"
    assert world.results == ["cannot_tell"]
    await _elapse(world)
    world.provider.says["o-1"] = Done(None, "in-7")
    await one_round(reconciler)
    assert (await world.desk.call(call))["resolution"] == "done"


async def test_an_intent_is_asked_about_only_after_its_deadline_and_margin(world: World) -> None:
    stale = await world.desk.effect("o-1", state="intended", due_s=-1)
    fresh = await world.desk.effect("o-2", state="intended", due_s=60)
    world.provider.says |= {"o-1": Done(1, "a"), "o-2": Done(2, "b")}
    await one_round(world.reconciler(probe(ask_provider)))
    assert (await world.desk.call(stale))["resolution"] == "done"
    assert (await world.desk.call(fresh))["state"] == "intended"


async def test_what_nobody_can_be_asked_about_stays_for_a_person(world: World) -> None:
    call = await world.desk.effect("o-1")
    await only_round(world.reconciler(review()))
    assert (await world.desk.call(call))["state"] == "unknown"


async def test_a_key_that_is_valid_is_tried_by_its_handler_and_holds_nobody_up(world: World) -> None:
    rule = idempotent_key(valid_s=3_600, then=probe(ask_provider))
    valid = await world.desk.effect("o-1", rule="idempotent_key")
    old = await world.desk.effect("o-2", rule="idempotent_key")
    await _sql(world, f"UPDATE tidegate.effect SET key_since = key_since - interval '2 hours' WHERE id = {old}")
    world.provider.says["o-2"] = Done(1, "x")
    await only_round(world.reconciler(rule))
    assert [asked.operation_id for asked in world.provider.asked] == ["o-2"]
    assert (await world.desk.call(old))["resolution"] == "done"
    assert (await world.desk.call(valid))["state"] == "unknown"


async def test_no_number_of_valid_keys_hides_a_call_that_can_be_asked_about(world: World) -> None:
    """More of them than are looked at in the minute after which all of them were looked at anew."""
    rule = idempotent_key(valid_s=86_400, then=probe(ask_provider))
    async with world.desk.store.transaction() as conn:
        await conn.execute(sa.text(MANY), {"calls": 3_200})
    old = await world.desk.effect("old", rule="idempotent_key")
    await _sql(world, f"UPDATE tidegate.effect SET key_since = key_since - interval '2 days' WHERE id = {old}")
    world.provider.says["old"] = Done(1, "x")
    clock = ManualClock()
    reconciler = world.reconciler(rule, clock=clock)
    for _ in range(64):
        await one_round(reconciler)
        clock.advance(2.0)
        if world.provider.asked:
            break
    assert [asked.operation_id for asked in world.provider.asked] == ["old"]
    assert (await world.desk.call(old))["resolution"] == "done"


async def test_calls_that_were_looked_at_are_looked_at_again_behind_the_last(world: World) -> None:
    """A key gets too old while others are looked at."""
    rule = idempotent_key(valid_s=3_600, then=probe(ask_provider))
    call = await world.desk.effect("o-1", rule="idempotent_key")
    reconciler = world.reconciler(rule)
    await one_round(reconciler)
    assert world.provider.asked == []
    await _sql(world, "UPDATE tidegate.effect SET key_since = key_since - interval '2 hours'")
    world.provider.says["o-1"] = Done(1, "x")
    await one_round(reconciler)
    assert (await world.desk.call(call))["resolution"] == "done"


async def test_more_calls_than_one_round_asks_about_are_all_asked_about(world: World) -> None:
    async with world.desk.store.transaction() as conn:
        await conn.execute(sa.text(MANY), {"calls": DUE_MAX + 1})
    reconciler = world.reconciler(probe(ask_provider))
    await one_round(reconciler)
    assert len(world.provider.asked) == DUE_MAX
    await one_round(reconciler)
    assert len({asked.operation_id for asked in world.provider.asked}) == DUE_MAX + 1


async def test_a_call_that_no_consumer_made_is_asked_about_by_one_whose_app_declares_its_effect(world: World) -> None:
    """A job's or a web request's, whose process died: nothing of its own would come back to it."""
    stale = await world.desk.effect("web-1", state="intended", owner="checkout", consumer="")
    fresh = await world.desk.effect("web-2", state="intended", owner="checkout", consumer="", due_s=60)
    other = await world.desk.effect("web-3", owner="checkout", consumer="", name="not-declared")
    world.provider.says |= {f"web-{n}": Done(n, f"x-{n}") for n in (1, 2, 3)}
    await one_round(world.reconciler(probe(ask_provider)))
    assert [asked.operation_id for asked in world.provider.asked] == ["web-1"]
    assert (await world.desk.call(stale))["resolution"] == "done"
    assert [(await world.desk.call(call))["state"] for call in (fresh, other)] == ["intended", "unknown"]
    async with world.desk.store.look() as conn:
        assert (await conn.execute(sa.text("SELECT act, consumer FROM tidegate.audit"))).all() == [
            ("effect_probed", "")
        ]


async def test_of_several_consumers_one_counts_and_asks_about_calls_that_none_made(world: World) -> None:
    await world.desk.effect("web-1", owner="checkout", consumer="")
    await world.desk.effect("web-2", owner="checkout", consumer="", name="not-declared")
    one, other = world.reconciler(probe(ask_provider)), world.reconciler(probe(ask_provider), consumer="shipping")
    await one_round(one)
    assert [counted.effects for counted in world.told] == [1]
    await one_round(other)
    assert (len(world.told), len(world.provider.asked)) == (1, 1)
    await _elapse(world)
    await one.give_up()
    await one_round(other)
    assert ([counted.effects for counted in world.told], len(world.provider.asked)) == ([1, 1], 2)


async def test_a_call_whose_process_died_is_counted_once_its_time_is_over(world: World) -> None:
    await world.desk.effect("o-1", state="intended", due_s=60)
    await world.desk.effect("web-1", state="intended", owner="checkout", consumer="", due_s=60)
    reconciler = world.reconciler(review())
    await one_round(reconciler)
    assert world.told == []
    await _elapse(world)
    await one_round(reconciler)
    assert [counted.effects for counted in world.told] == [2]


async def test_open_calls_are_found_without_reading_the_ledger(world: World) -> None:
    async with world.desk.store.transaction() as conn:
        await conn.execute(sa.text(MANY), {"calls": 100})
        await conn.execute(sa.text(MANY.replace("'unknown'", "'completed'")), {"calls": 20_000})
        await conn.execute(sa.text("ANALYZE tidegate.effect"))
    before = await _whole_reads(world)
    await one_round(world.reconciler(probe(ask_provider)))
    await review_cases.lone_effects(world.desk.gate, None)
    assert world.provider.asked
    assert await _whole_reads(world) == before


async def test_only_the_holder_of_the_lease_asks(world: World) -> None:
    await world.desk.case(1)
    world.provider.says["o-1"] = Done(1, "x")
    one, other = world.reconciler(probe(ask_provider)), world.reconciler(probe(ask_provider), holder="other")
    await one.keep()
    await one_round(other)
    assert world.provider.asked == []
    await one.give_up()
    await one_round(other)
    assert len(world.provider.asked) == 1


async def test_what_is_found_after_the_lease_was_lost_is_dropped(world: World) -> None:
    """A zombie's answer writes nothing; the next holder asks again."""
    row, call = await world.desk.case(1)
    gate = asyncio.Event()
    world.provider.says["o-1"] = gate
    reconciler = world.reconciler(probe(ask_provider))
    await reconciler.keep()
    running = asyncio.create_task(reconciler.round())
    async with asyncio.timeout(5):
        while not world.provider.asked:
            await asyncio.sleep(0)
    await _sql(world, "UPDATE tidegate.lease SET token = token + 1")
    world.provider.says["o-1"] = Done(1, "x")
    gate.set()
    await running
    assert (await world.desk.call(call))["state"] == "unknown"
    assert await world.desk.row(row) == ("unknown", 1)


async def test_an_event_that_got_its_row_after_its_call_was_known_runs_again(world: World) -> None:
    call = await world.desk.effect("o-1", state="completed")
    row = await world.desk.event(1, call)
    await _sql(world, "UPDATE tidegate.failure SET last_failed_at = clock_timestamp(), first_failed_at = '2020-01-01'")
    await one_round(world.reconciler(review()))
    assert await world.desk.row(row) == ("queued", 2)


async def test_an_event_that_contradicts_what_is_known_of_its_call_stays_for_a_person(world: World) -> None:
    call = await world.desk.effect("o-1", state="completed")
    row = await world.desk.event(1, call)
    await _sql(
        world,
        "UPDATE tidegate.failure SET last_failed_at = clock_timestamp() + interval '2 minutes',"
        " first_failed_at = '2020-01-01'",
    )
    await one_round(world.reconciler(review()))
    assert await world.desk.row(row) == ("unknown", 1)


async def test_what_waits_is_counted_by_the_holder_and_alerts_when_it_is_old(world: World) -> None:
    await world.desk.case(1)
    await world.desk.event(2)
    await _sql(world, "UPDATE tidegate.effect SET intended_at = intended_at - interval '2 hours'")
    one, other = world.reconciler(review(), alert_age_s=3_600.0), world.reconciler(review(), holder="other")
    await one_round(one)
    (counted,) = world.told
    assert (counted.effects, counted.events) == (1, 2)
    assert counted.oldest_effect_s >= 7_200
    await one_round(other)
    assert len(world.told) == 1, "whoever does not hold the lease counts nothing"
    await one.give_up()
    await one.round()
    assert world.told[-1] == NOTHING


MANY = """
INSERT INTO tidegate.effect (identity, scope, owner, name, operation_id, state, rule, provider, fingerprint, attempt_id,
                             key, consumer, deadline, due, ended_at)
SELECT decode(md5('unknown' || n), 'hex'), '', 'invoices', 'send-invoice', 'many-' || n, 'unknown', 'idempotent_key',
       'billing', decode(md5('request'), 'hex'), decode(md5('attempt' || n), 'hex'), 'key-' || n, 'billing',
       clock_timestamp() - interval '1 hour', clock_timestamp() - interval '1 hour', clock_timestamp()
  FROM generate_series(1, :calls) n
"""
"""Open calls that are due for longer than those of the desk."""


async def _whole_reads(world: World) -> int:
    """How often the ledger was read from end to end."""
    async with world.desk.store.transaction() as conn:
        await conn.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    async with world.desk.store.look() as conn:
        query = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'effect'"
        return int((await conn.execute(sa.text(query))).scalar_one())


async def _elapse(world: World) -> None:
    """The time of the next question has come."""
    await _sql(world, "UPDATE tidegate.effect SET due = clock_timestamp() - interval '1 second'")


async def _sql(world: World, statement: str) -> None:
    async with world.desk.store.transaction() as conn:
        await conn.execute(sa.text(statement))
