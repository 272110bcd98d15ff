"""A database that was put back to an earlier copy: there a missing intent proves nothing."""

from __future__ import annotations

import datetime
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.services import database
from tests.support.calling import asking, do_for, keyed, pass_by, probed, reviewed, value, whose
from tests.support.provider import Answered, Behaviour, Provider
from tidegate.inbox.database import Database
from tidegate.inbox.effect_rows import Call, Origin
from tidegate.inbox.effect_rules import Effect, idempotent_key
from tidegate.inbox.errors import EffectPending, EffectUnknown
from tidegate.inbox.event import TIMESTAMP_NOT_AVAILABLE, Event, Partition, Record
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.restored import declare_restored
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

HERE = Partition("shop.orders", 0)
CREATE_TIME = 1
EFFECTS = 1_000
"""Of these, a tenth before the copy was made."""


def answered(error: BaseException) -> bool:
    return isinstance(error, Answered)


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def made_by(effect: Effect, offset: int, at: datetime.datetime | None = None) -> Call:
    written = (-1, TIMESTAMP_NOT_AVAILABLE) if at is None else (round(at.timestamp() * 1_000), CREATE_TIME)
    record = Record(HERE.topic, HERE.number, offset, None, None, (), *written)
    owner = whose(origin=Origin("tests", HERE))
    return Call.of(effect, owner, f"op-{offset}", None, event=Event(None, record))


@asynccontextmanager
async def on(url: str) -> AsyncGenerator[tuple[Store, Ledger]]:
    store = Store(Database(url, member="tests"), tables())
    ledger = Ledger(store)
    try:
        yield store, ledger
    finally:
        await ledger.close()
        await store.database.close()


def copied(url: str, postgres_url: str, name: str) -> str:
    """The database as it is now, under another name."""
    database.execute(postgres_url, f'CREATE DATABASE "{name}" TEMPLATE "{urlsplit(url).path[1:]}"')
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def declare(store: Store, until: int) -> None:
    async with store.transaction() as conn:
        await declare_restored(conn, store.tables, "tests", {HERE: until}, "tests")


@pytest.mark.parametrize("rule", ["key", "probe", "review"])
async def test_a_thousand_calls_and_a_restore_double_nothing(
    migrated_url: str, postgres_url: str, service: Provider, rule: str
) -> None:
    """The copy knows the first hundred. The rest is known to the service, by its key or by asking it, or to nobody."""
    service.honours_keys = rule == "key"
    effect = {"key": keyed(deadline_s=30), "probe": probed(service, deadline_s=30), "review": reviewed(deadline_s=30)}[
        rule
    ]
    name = urlsplit(migrated_url).path[1:] + "_copy"
    started = now() - datetime.timedelta(seconds=1)
    async with on(migrated_url) as (_, ledger):
        await do_for(ledger, service, [made_by(effect, n, started) for n in range(EFFECTS // 10)])
    copy_url = copied(migrated_url, postgres_url, name)
    try:
        async with on(migrated_url) as (_, ledger):
            await do_for(ledger, service, [made_by(effect, n, started) for n in range(EFFECTS)])
        assert service.done == {f"op-{n}": 1 for n in range(EFFECTS)}
        async with on(copy_url) as (store, ledger):
            await declare(store, EFFECTS)
            ended = await do_for(ledger, service, [made_by(effect, n, started) for n in range(EFFECTS + 10)])
            states = [await value(store, "state", f"op-{n}") for n in (0, EFFECTS - 1, EFFECTS)]
    finally:
        database.execute(postgres_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    assert not service.doubled
    assert sum(service.done.values()) == EFFECTS + 10, "what came after the restore is called"
    assert states == ["completed", {"key": "completed", "probe": "resolved", "review": "unknown"}[rule], "completed"]
    unknown = [error for error in ended if isinstance(error, EffectUnknown)]
    assert len(unknown) == (EFFECTS * 9 // 10 if rule == "review" else 0)
    assert sum(service.probes.values()) == (EFFECTS * 9 // 10 if rule == "probe" else 0)


async def test_a_call_that_failed_before_the_copy_and_was_done_behind_it_is_not_made_again(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    """The copy says "surely not done", and that was true: of the attempt that it knows."""
    service.script = lambda operation, n: Behaviour(works=False, status=429)
    effect = probed(service, deadline_s=30, not_done=answered)
    (failed,) = await do_for(ledger, service, [made_by(effect, 7)])
    assert isinstance(failed, Exception)
    assert await value(store, "state", "op-7") == "failed"
    service.script = lambda operation, n: Behaviour()
    service.done["op-7"] += 1
    service.known("op-7", "x-op-7-1")
    await pass_by(store)
    await declare(store, 100)
    assert await do_for(ledger, service, [made_by(effect, 7)]) == [{"id": "x-op-7-1"}]
    assert service.requests == {"op-7": 1}


@pytest.mark.parametrize(("age_s", "calls"), [(0.0, True), (20.0, True), (31.0, False), (-60.0, False), (None, False)])
async def test_a_keys_age_is_bounded_by_its_records(
    store: Store, ledger: Ledger, service: Provider, age_s: float | None, calls: bool
) -> None:
    """An older key falls to review, and so does one whose age nobody can know."""
    await declare(store, 100)
    effect = Effect("charge", idempotent_key(valid_s=60), 30.0, margin_s=0.0)
    at = None if age_s is None else now() - datetime.timedelta(seconds=age_s)
    (ended,) = await do_for(ledger, service, [made_by(effect, 7, at)])
    assert isinstance(ended, EffectUnknown) != calls
    assert service.requests == ({"op-7": 1} if calls else {})
    (again,) = await do_for(ledger, service, [made_by(effect, 7, at)])
    assert isinstance(again, EffectUnknown) != calls
    assert service.requests == ({"op-7": 1} if calls else {})


async def test_an_old_key_is_asked_about_where_the_service_can_be_asked(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    await declare(store, 100)
    effect = Effect("charge", idempotent_key(valid_s=60, then=asking(service)), 30.0, margin_s=0.0)
    at = now() - datetime.timedelta(hours=1)
    assert await do_for(ledger, service, [made_by(effect, 7, at)]) == [{"id": "x-op-7-1"}]
    assert service.probes == {"op-7": 1}


async def test_of_two_who_open_a_forgotten_call_one_calls(
    store: Store, ledger: Ledger, service: Provider, migrated_url: str
) -> None:
    await declare(store, 100)
    async with on(migrated_url) as (_, other):
        first = [made_by(keyed(deadline_s=30), 7, now()) for _ in range(3)]
        ended = await do_for(ledger, service, first) + await do_for(other, service, first)
    assert {type(end) for end in ended} <= {dict, EffectPending}
    assert service.done == {"op-7": 1}


async def test_behind_the_bound_a_missing_row_proves_that_nothing_was_called_for_an_events_own_operation(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    """Of an operation that other events may name too it proves nothing: see the guide."""
    await declare(store, 7)
    (below, above) = await do_for(ledger, service, [made_by(reviewed(), 6), made_by(reviewed(), 7)])
    assert isinstance(below, EffectUnknown)
    assert above == {"id": "x-op-7-1"}
