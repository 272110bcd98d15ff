"""The breakers of several replicas, and the row by which people see and close them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.desk import at_desk
from tests.support.running import reader
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.brakes import Brakes
from tidegate.dlq.policy import BreakerPolicy
from tidegate.inbox import breaker_rows
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.provider_breakers import ProviderPolicy
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

ROW = "dead/billing/do"
ROW_MAX = 2


class Fleet:
    """Replicas of one consumer on one database."""

    def __init__(self, store: Store) -> None:
        self.store = store
        app = reader("orders", consumer="billing")
        at_desk(app, breaker=BreakerPolicy(row_max=ROW_MAX, retry_after_s=60.0))
        self._consumer = app.consumers["billing"]

    def replica(self) -> Replica:
        clock = ManualClock()
        brakes = Brakes(
            self.store, self._consumer, {"do": 1}, clock, HealthBoard(), Metrics("billing"), ProviderPolicy(),
            lambda name: None, lambda name: None,
        )  # fmt: skip
        return Replica(brakes, clock)

    async def state(self) -> str:
        async with self.store.look() as conn:
            (row,) = await breaker_rows.listed(conn, self.store.tables)
        assert row["name"] == ROW
        return row["state"]

    async def person_closes(self) -> bool:
        async with self.store.transaction() as conn:
            return await breaker_rows.close(conn, self.store.tables, ROW)


class Replica:
    """It is told how its events end."""

    def __init__(self, brakes: Brakes, clock: ManualClock) -> None:
        self._clock = clock
        self._brakes = brakes
        self.look = brakes.look

    def is_open(self) -> bool:
        return self._brakes.dead.is_open("do")

    def dies_until_open(self) -> int:
        """How many letters that wrote."""
        letters = 0
        while self._brakes.dead.admits_now("do"):
            letters += 1
        return letters

    def recovers(self) -> None:
        self._clock.advance(60.0)
        assert self._brakes.dead.take_try("do")
        self._brakes.dead.fine("do")
        assert not self.is_open()


@pytest.fixture
async def fleet(migrated_url: str) -> AsyncIterator[Fleet]:
    """On a database of its own."""
    database = Database(migrated_url, member="tests", settings=DatabaseSettings(pool_max=2, tx_pool_max=1))
    try:
        yield Fleet(Store(database, tables()))
    finally:
        await database.close()


async def test_the_recovery_of_one_replica_closes_no_breaker_of_another(fleet: Fleet) -> None:
    """All of what A reads is bad, half of what B reads: B's comings and goings let A write no letter.

    Case: B35
    Parts: real (PostgreSQL)
    Red when: consumers/worker/brakes.py `_share` closes the row by `breaker_rows.close` instead of `hide`
    """
    a, b = fleet.replica(), fleet.replica()
    assert a.dies_until_open() == ROW_MAX
    await a.look()
    for _ in range(3):
        assert b.dies_until_open() == ROW_MAX
        await b.look()
        b.recovers()
        await b.look()
        await a.look()
        assert a.is_open()
        assert a.dies_until_open() == 0
        assert await fleet.state() == "open", "A's is"
        await a.look()
        assert a.is_open()
    a.recovers()
    await a.look()
    assert await fleet.state() == "closed"


async def test_a_person_closes_the_breakers_of_all_replicas_once(fleet: Fleet) -> None:
    """What opens again behind that stays open: one word lets no more letters go than one row of each replica.

    Case: B35
    Parts: real (PostgreSQL)
    Red when: consumers/worker/brakes.py `_share` goes on to know what a person closed by its earlier count
    """
    a, b = fleet.replica(), fleet.replica()
    for replica in (a, b):
        replica.dies_until_open()
        await replica.look()
    assert await fleet.person_closes()
    await a.look()
    assert not a.is_open()
    assert a.dies_until_open() == ROW_MAX
    await a.look()
    assert a.is_open()
    assert await fleet.state() == "open"
    await b.look()
    assert not b.is_open(), "also where the row is open again by then"
    for _ in range(2):
        await a.look()
        await b.look()
        assert a.is_open()
        assert a.dies_until_open() == 0
    assert await fleet.person_closes()
    await a.look()
    assert not a.is_open()


async def test_a_row_that_a_replica_left_open_when_it_died_closes_with_the_next_recovery(fleet: Fleet) -> None:
    gone, next_one = fleet.replica(), fleet.replica()
    gone.dies_until_open()
    await gone.look()
    await next_one.look()
    assert await fleet.state() == "open"
    next_one.dies_until_open()
    await next_one.look()
    assert next_one.is_open()
    next_one.recovers()
    await next_one.look()
    assert await fleet.state() == "closed"
