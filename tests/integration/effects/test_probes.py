"""Whoever asks a service, an attempt or the reconciler: the call's end is the same, and so is what is left of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from tests.support.calling import do_for, of, pass_by, probed, value, whose
from tests.support.provider import Behaviour, Provider
from tidegate.consumers.worker.reconciling import Reconciler
from tidegate.inbox import audit
from tidegate.inbox.clock import SystemClock
from tidegate.inbox.effect_judging import UNSURE_MAX
from tidegate.inbox.effect_rows import Call, Origin
from tidegate.inbox.effect_rules import Effect
from tidegate.inbox.errors import EffectPending, EffectUnknown
from tidegate.inbox.event import Partition
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store

Look: TypeAlias = Callable[[], Awaitable[None]]
"""What happens between two attempts."""

BILLING = whose(origin=Origin("billing", Partition("shop.orders", 0)))


def looks(store: Store, ledger: Ledger, effect: Effect) -> dict[str, Look]:
    reconciler = Reconciler(
        store, "billing", [], ledger, {effect.name: effect}, SystemClock(), "one", every_s=0.0, alert_age_s=3_600.0,
        told=lambda waits: None, probed=lambda result: None, woke=lambda: None,
    )  # fmt: skip

    async def nobody() -> None: ...

    async def reconcile() -> None:
        await reconciler.keep()
        await reconciler.round()

    return {"an attempt": nobody, "the reconciler": reconcile}


async def attempt(ledger: Ledger, service: Provider, call: Call) -> Any:
    (ended,) = await do_for(ledger, service, [call])
    return ended


@pytest.mark.parametrize("who", ["an attempt", "the reconciler"])
async def test_a_service_that_never_answers_and_never_does_it_ends_with_a_person_whoever_asks(
    store: Store, ledger: Ledger, service: Provider, who: str
) -> None:
    service.script = lambda operation, n: Behaviour(works=False, resets=True)
    effect = probed(service, deadline_s=5.0)
    look, call = looks(store, ledger, effect)[who], of(effect, owner=BILLING)
    for n in range(UNSURE_MAX):
        assert isinstance(await attempt(ledger, service, call), EffectPending), n
        await pass_by(store)
        await look()
    ended = await attempt(ledger, service, call)
    assert isinstance(ended, EffectUnknown)
    assert f"{UNSURE_MAX} calls in a row" in str(ended)
    assert service.requests == {"op-1": UNSURE_MAX}
    assert service.probes == {"op-1": UNSURE_MAX - 1}


@pytest.mark.parametrize("works", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("who", ["an attempt", "the reconciler"])
async def test_what_a_probe_found_stands_in_the_audit_whoever_asks(
    store: Store, ledger: Ledger, service: Provider, who: str, works: bool
) -> None:
    service.script = lambda operation, n: Behaviour(works=works or n > 1, resets=n == 1)
    effect = probed(service, deadline_s=5.0)
    look, call = looks(store, ledger, effect)[who], of(effect, owner=BILLING)
    assert isinstance(await attempt(ledger, service, call), EffectPending)
    await pass_by(store)
    await look()
    assert await attempt(ledger, service, call) == {"id": "x-op-1-1"}
    async with store.look() as conn:
        (entry,) = await audit.read(conn, store.tables)
    line = entry.line
    assert (line.act, line.actor, line.consumer, line.handler) == ("effect_probed", "tidegate", "billing", "tests/bill")
    assert line.operation_id == "op-1"
    assert line.details == {
        "effect_id": await value(store, "id"),
        "effect": "charge",
        "found": "done" if works else "not_done",
        "external_id": "x-op-1-1" if works else None,
        "events": 0,
    }
