"""A provider that does not answer is left alone by the whole fleet, and tried by one call at a time."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from tidegate.inbox import breaker_rows
from tidegate.inbox.breaker_phase import Phase
from tidegate.inbox.clock import ManualClock, SystemClock
from tidegate.inbox.database import Database
from tidegate.inbox.effect_rules import Effect, review
from tidegate.inbox.errors import DependencyError, EffectUnknown
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.provider_breakers import LOOK_S, BreakerGate, ProviderAway, ProviderBreakers, ProviderPolicy
from tidegate.inbox.store import Store
from tidegate.inbox.tables import Tables

POLICY = ProviderPolicy(failures_max=3, retry_after_s=30.0)


class Replica:
    """One process's breakers, with a clock of its own."""

    def __init__(self, store: Store) -> None:
        self.clock = ManualClock()
        self.told: list[Phase] = []
        self.breakers = ProviderBreakers(store, self.clock, POLICY, lambda _, phase, why: self.told.append(phase))

    async def lets(self, provider: str = "billing") -> bool:
        try:
            await self.breakers.allow(provider)
        except ProviderAway:
            return False
        return True

    async def fails(self, n: int = 1) -> None:
        for _ in range(n):
            await self.breakers.report("billing", ok=False, why="ReadTimeout")

    async def learns(self) -> None:
        """A second goes by."""
        self.clock.advance(LOOK_S)
        await self.lets()


@pytest.fixture
def store(db: Database, t: Tables) -> Store:
    """The inbox."""
    return Store(db, t)


async def elapse(store: Store, seconds: float = 31.0) -> None:
    """Time passes for the row."""
    async with store.transaction() as conn:
        await conn.execute(
            sa.text("UPDATE tidegate.breaker SET retry_at = retry_at - make_interval(secs => :seconds)"),
            {"seconds": seconds},
        )


async def state(store: Store) -> tuple[str, str]:
    async with store.transaction() as conn:
        (row,) = await breaker_rows.listed(conn, store.tables)
    return row["state"], row["why"]


async def opened(store: Store, *replicas: Replica) -> None:
    """The first one finds that the provider is away; all know."""
    await replicas[0].lets()
    await replicas[0].fails(3)
    for replica in replicas:
        await replica.learns()
        assert not await replica.lets()


async def test_failures_in_a_row_open_it_and_a_good_answer_between_them_does_not(store: Store) -> None:
    one = Replica(store)
    await one.fails(2)
    await one.breakers.report("billing", ok=True)
    await one.fails(2)
    assert await one.lets()
    await one.fails(1)
    with pytest.raises(DependencyError, match="provider:billing: its breaker is open") as caught:
        await one.breakers.allow("billing")
    assert caught.value.dependency == "provider:billing"
    assert await state(store) == ("open", "3 calls in a row without an answer, the last one: ReadTimeout")
    assert await one.lets("shipping"), "another provider is none of its business"


async def test_other_replicas_learn_within_a_second_and_ask_no_more_often(store: Store) -> None:
    one, other = Replica(store), Replica(store)
    assert await other.lets()
    await opened(store, one)
    assert await other.lets(), "its look is not a second old"
    other.clock.advance(LOOK_S)
    assert not await other.lets()
    assert other.told == [Phase.OPEN]


async def test_exactly_one_call_of_the_fleet_is_tried(store: Store) -> None:
    replicas = [Replica(store) for _ in range(4)]
    await opened(store, *replicas)
    await elapse(store)
    for replica in replicas:
        replica.clock.advance(31)
    tries = await asyncio.gather(*(replica.lets() for replica in replicas for _ in range(3)))
    assert sum(tries) == 1


async def test_a_try_that_is_answered_closes_it_for_all(store: Store) -> None:
    one, other = Replica(store), Replica(store)
    await opened(store, one, other)
    await elapse(store)
    one.clock.advance(31)
    assert await one.lets()
    await one.breakers.report("billing", ok=True)
    assert await state(store) == ("closed", "")
    await other.learns()
    assert await other.lets()
    assert one.told == [Phase.OPEN, Phase.HALF_OPEN, Phase.CLOSED]
    assert other.told[-1] is Phase.CLOSED


async def test_a_try_that_fails_keeps_it_open_for_as_long_again(store: Store) -> None:
    one = Replica(store)
    await opened(store, one)
    await elapse(store)
    one.clock.advance(31)
    assert await one.lets()
    await one.fails()
    assert await state(store) == ("open", "ReadTimeout")
    one.clock.advance(29)
    assert not await one.lets()


async def test_a_try_of_a_killed_replica_lapses(store: Store) -> None:
    killed, other = Replica(store), Replica(store)
    await opened(store, killed, other)
    await elapse(store)
    killed.clock.advance(31)
    assert await killed.lets()
    await other.learns()
    other.clock.advance(31)
    assert not await other.lets(), "by the database's clock the try is still under way"
    await elapse(store)
    other.clock.advance(LOOK_S)
    assert await other.lets()


async def test_late_answers_neither_close_it_nor_end_anothers_try(store: Store) -> None:
    one, other = Replica(store), Replica(store)
    await opened(store, one, other)
    await one.breakers.report("billing", ok=True)
    assert await state(store) != ("closed", "")
    await elapse(store)
    other.clock.advance(31)
    assert await other.lets()
    await one.fails(5)
    await other.breakers.report("billing", ok=True)
    assert await state(store) == ("closed", "")


async def test_a_clock_that_jumped_back_does_not_keep_it_open_for_as_long(store: Store) -> None:
    one = Replica(store)
    await opened(store, one)
    await elapse(store, -3_600)
    fresh = Replica(store)
    assert await fresh.lets()


async def test_no_provider_is_never_away(store: Store) -> None:
    one = Replica(store)
    for _ in range(5):
        await one.breakers.report("", ok=False)
    assert await one.lets("")


async def test_a_database_that_is_away_takes_no_answer_with_it(store: Store) -> None:
    one = Replica(store)
    async with store.transaction() as conn:
        await conn.execute(sa.text("ALTER TABLE tidegate.breaker RENAME TO gone"))
    await one.fails(4)


def effect() -> Effect:
    return Effect("send-invoice", review(), deadline_s=1.0, provider="billing")


async def test_calls_of_the_ledger_go_through_the_breaker_of_their_provider(store: Store) -> None:
    """A provider that times out is left alone after a few calls, without an intent for any of those that follow."""
    breakers = ProviderBreakers(store, SystemClock(), ProviderPolicy(failures_max=2, retry_after_s=60.0))
    gate = BreakerGate(breakers)
    ledger = Ledger(store, gate=gate)

    async def call(operation_id: str, error: Exception | None) -> None:
        async with ledger.effect(effect(), operation_id, owner="web") as made:
            if error is not None:
                raise error
            made.complete()

    await call("1", None)
    for operation_id, error in (("2", TimeoutError()), ("3", KeyError("a bug says nothing")), ("4", TimeoutError())):
        with pytest.raises(EffectUnknown):
            await call(operation_id, error)
    await gate.settle()
    with pytest.raises(ProviderAway):
        await call("5", None)
    await ledger.close()
    async with store.look() as conn:
        intents = (await conn.execute(sa.text("SELECT operation_id FROM tidegate.effect ORDER BY id"))).scalars().all()
    assert intents == ["1", "2", "3", "4"]
