"""The ledger on a real PostgreSQL, in front of a service that counts what it did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.provider import Answered, Behaviour, Provider, call, look_up, provider
from tidegate.inbox.database import Database
from tidegate.inbox.effect_rules import (
    Asked,
    CannotTell,
    Done,
    Effect,
    EffectRule,
    NotDone,
    ProbeAnswer,
    idempotent_key,
    probe,
    review,
)
from tidegate.inbox.errors import EffectPending, EffectUnknown
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store
from tidegate.inbox.tables import Tables

SHORT_S = 0.3


@pytest.fixture
def store(db: Database, t: Tables) -> Store:
    return Store(db, t)


@pytest.fixture
async def ledger(store: Store) -> AsyncIterator[Ledger]:
    opened = Ledger(store)
    yield opened
    await opened.close()


@pytest.fixture
async def service() -> AsyncIterator[Provider]:
    async with provider() as running:
        yield running


def charge(rule: EffectRule, **options: Any) -> Effect:
    given: dict[str, Any] = {"deadline_s": SHORT_S, "margin_s": 0.0, **options}
    return Effect("charge", rule, **given)


def asking(service: Provider) -> EffectRule:
    async def ask(asked: Asked) -> ProbeAnswer:
        try:
            found = await look_up(service.port, asked.operation_id)
        except Answered as error:
            return CannotTell(str(error))
        return NotDone() if found is None else Done({"id": found}, found)

    return probe(ask)


KEYED = charge(idempotent_key(valid_s=3600))
REVIEWED = charge(review())


async def do(ledger: Ledger, effect: Effect, service: Provider, operation: str = "op-1", **options: Any) -> Any:
    """What a handler does."""
    async with ledger.effect(effect, operation, owner="tests", **options) as opened:
        if not opened.is_done:
            answer = await call(service.port, operation, key=opened.key, timeout_s=opened.timeout_s)
            opened.complete({"id": answer["id"]}, answer["id"])
    return opened.result


async def state(store: Store, operation: str = "op-1") -> str:
    async with store.look() as conn:
        rows = await conn.execute(
            store.tables.sql("SELECT state FROM {effect} WHERE operation_id = :id"), {"id": operation}
        )
        return str(rows.scalar_one())


async def test_a_repeat_gets_the_stored_result_and_calls_nobody(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    assert await do(ledger, KEYED, service) == {"id": "x-op-1-1"}
    assert await do(ledger, KEYED, service) == {"id": "x-op-1-1"}
    assert service.requests == {"op-1": 1}
    assert await state(store) == "completed"


async def test_an_answer_that_got_lost_is_asked_for_with_the_same_key(ledger: Ledger, service: Provider) -> None:
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    with pytest.raises(ConnectionResetError):
        await do(ledger, KEYED, service)
    assert await do(ledger, KEYED, service) == {"id": "x-op-1-1"}
    assert service.requests == {"op-1": 2}
    assert service.done == {"op-1": 1}
    assert len(service.keys["op-1"]) == 1


async def test_a_service_that_can_be_asked_is_asked_before_a_repeat(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.honours_keys = False
    service.script = lambda operation, n: Behaviour(resets=True)
    effect = charge(asking(service))
    with pytest.raises(EffectPending) as pending:
        await do(ledger, effect, service)
    assert isinstance(pending.value.__cause__, ConnectionResetError)
    with pytest.raises(EffectPending):
        await do(ledger, effect, service)
    await until_due(store)
    assert await do(ledger, effect, service) == {"id": "x-op-1-1"}
    assert service.done == {"op-1": 1}
    assert await state(store) == "resolved"


async def test_what_nobody_can_know_waits_for_a_person(ledger: Ledger, service: Provider, store: Store) -> None:
    service.script = lambda operation, n: Behaviour(resets=True)
    for _ in range(2):
        with pytest.raises(EffectUnknown):
            await do(ledger, REVIEWED, service)
    assert service.requests == {"op-1": 1}
    assert await state(store) == "unknown"


async def until_due(store: Store, operation: str = "op-1") -> None:
    async with store.look() as conn:
        await conn.execute(
            store.tables.sql("""
                SELECT pg_sleep(greatest(0, extract(epoch FROM due - clock_timestamp()))::float8 + 0.001)
                  FROM {effect} WHERE operation_id = :id
            """),
            {"id": operation},
        )
