"""What became of calls that nobody knows the end of: their services are asked, and the events behind them run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.support.review_desk import ReviewDesk
from tidegate.consumers import App
from tidegate.consumers.worker.effects import asker
from tidegate.consumers.worker.handling import Mediator
from tidegate.consumers.worker.reconciling import NOTHING, Reconciler
from tidegate.inbox.clock import SystemClock
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

    def __init__(self, desk: ReviewDesk, threads: ThreadPoolExecutor) -> None:
        self.desk = desk
        self.provider = Provider()
        self.told: list[Waiting] = []
        self.results: list[str] = []
        self.woken = 0
        self.ledgers: list[Ledger] = []
        self._mediator = Mediator(App("tests", owner="tests"), (self.provider,), threads)

    def reconciler(
        self, rule: EffectRule, *, holder: str = "one", deadline_s: float = 5.0, alert_age_s: float = 3_600.0
    ) -> Reconciler:
        """Of effect `send-invoice` under this rule."""
        ledger = Ledger(self.desk.store, ask=asker(self._mediator))
        self.ledgers.append(ledger)
        effect = Effect("send-invoice", rule, deadline_s, "billing")
        return Reconciler(
            self.desk.store, "billing", list(self.desk.graveyard.handlers.values()), ledger,
            {effect.name: effect}, SystemClock(), holder,
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
    with ThreadPoolExecutor(2) as threads:
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


async def _elapse(world: World) -> None:
    """The time of the next question has come."""
    await _sql(world, "UPDATE tidegate.effect SET due = clock_timestamp() - interval '1 second'")


async def _sql(world: World, statement: str) -> None:
    async with world.desk.store.transaction() as conn:
        await conn.execute(sa.text(statement))
