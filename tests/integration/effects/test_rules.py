"""Each rule on a real PostgreSQL, in front of a service that counts what it did."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from tests.support.calling import asking, audited, count, do, keyed, of, pass_by, probed, reviewed, value, whose
from tests.support.provider import Answered, Behaviour, Provider
from tidegate.inbox import effect_findings, effects
from tidegate.inbox.effect_findings import Finding
from tidegate.inbox.effect_judging import UNSURE_MAX
from tidegate.inbox.effect_meeting import PROBES_MAX
from tidegate.inbox.effect_rules import Asked, CannotTell, Done, Effect, NotDone, idempotent_key, probe
from tidegate.inbox.effect_states import Resolution
from tidegate.inbox.errors import EffectPending, EffectUnknown, RecordError
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store


async def test_a_repeat_gets_the_stored_result_and_calls_nobody(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    for effect in (keyed(), probed(service), reviewed()):
        assert await do(ledger, effect, service) == {"id": "x-op-1-1"}
    assert service.requests == {"op-1": 1}
    assert await value(store, "state") == "completed"
    assert await value(store, "external_id") == "x-op-1-1"


def answered(error: BaseException) -> bool:
    """An SDK's own exception, of which the table knows nothing."""
    return isinstance(error, Answered)


async def test_what_surely_was_not_done_is_called_again_under_every_rule(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.script = lambda operation, n: Behaviour(works=n > 1, status=429 if n == 1 else 200)
    for n, effect in enumerate((keyed(), probed(service), reviewed())):
        not_done = Effect(effect.name, effect.rule, 5.0, not_done=answered)
        with pytest.raises(Answered):
            await do(ledger, not_done, service, f"op-{n}")
        assert await value(store, "state", f"op-{n}") == "failed"
        assert await do(ledger, not_done, service, f"op-{n}") == {"id": f"x-op-{n}-1"}
        assert await value(store, "attempts", f"op-{n}") == 2
    assert not service.doubled
    assert service.probes == {}


# ----------------------------------------------------------------------------------------------------- idempotent_key


async def test_an_answer_that_got_lost_is_asked_for_with_the_same_key(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    with pytest.raises(ConnectionResetError):
        await do(ledger, keyed(), service)
    assert await value(store, "state") == "unknown"
    assert await do(ledger, keyed(), service) == {"id": "x-op-1-1"}
    assert service.requests == {"op-1": 2}
    assert service.done == {"op-1": 1}
    assert len(service.keys["op-1"]) == 1


async def test_a_refusal_behind_a_lost_answer_does_not_say_that_nothing_was_done(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    """Attempt 1 was done and its answer lost, attempt 2 is refused for overload: the operation is not "not done"."""
    effect = keyed(deadline_s=5.0, not_done=answered)
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    with pytest.raises(ConnectionResetError):
        await do(ledger, effect, service)
    service.honours_keys = False
    service.script = lambda operation, n: Behaviour(works=False, status=429)
    with pytest.raises(Answered):
        await do(ledger, effect, service)
    assert await value(store, "state") == "unknown"
    assert await value(store, "in_doubt") is True


async def test_a_key_that_is_too_old_goes_by_what_was_declared_for_then(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    then_probe = Effect("charge", idempotent_key(valid_s=60, then=asking(service)), 5.0, margin_s=0.0)
    then_review = Effect("charge", idempotent_key(valid_s=60), 5.0, margin_s=0.0)
    for operation, effect in (("op-p", then_probe), ("op-r", then_review)):
        with pytest.raises(ConnectionResetError):
            await do(ledger, effect, service, operation)
    await pass_by(store, 56.0)
    assert await do(ledger, then_probe, service, "op-p") == {"id": "x-op-p-1"}
    with pytest.raises(EffectUnknown, match="too old"):
        await do(ledger, then_review, service, "op-r")
    assert service.requests == {"op-p": 1, "op-r": 1}


# -------------------------------------------------------------------------------------------------------------- probe


async def test_a_service_that_can_be_asked_is_asked_before_a_repeat(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.honours_keys = False
    service.script = lambda operation, n: Behaviour(resets=True)
    effect = probed(service)
    with pytest.raises(EffectPending) as pending:
        await do(ledger, effect, service)
    assert isinstance(pending.value.__cause__, ConnectionResetError)
    await pass_by(store)
    assert await do(ledger, effect, service) == {"id": "x-op-1-1"}
    assert service.done == {"op-1": 1}
    assert await value(store, "resolution") == "done"
    assert await do(ledger, effect, service) == {"id": "x-op-1-1"}
    assert service.probes == {"op-1": 1}


async def test_a_probe_waits_for_the_calls_deadline_and_margin(ledger: Ledger, service: Provider) -> None:
    service.script = lambda operation, n: Behaviour(resets=True)
    effect = probed(service, deadline_s=5.0, margin_s=5.0)
    dues: list[datetime.datetime] = []
    for _ in range(2):
        with pytest.raises(EffectPending) as pending:
            await do(ledger, effect, service)
        dues.append(pending.value.due)
    assert datetime.timedelta(0) <= dues[0] - dues[1] < datetime.timedelta(seconds=1), "it is the row's, not a new one"
    assert service.probes == {}


async def test_what_the_service_says_it_did_not_do_is_called_again(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.script = lambda operation, n: Behaviour(works=n > 2, resets=n <= 2)
    effect = probed(service)
    for n in range(2):
        with pytest.raises(EffectPending):
            await do(ledger, effect, service)
        await pass_by(store)
        assert await value(store, "unsure") == n + 1
    assert await do(ledger, effect, service) == {"id": "x-op-1-1"}
    assert service.done == {"op-1": 1}


async def test_a_service_that_cannot_tell_is_asked_now_and_then_until_a_person_is(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.script = lambda operation, n: Behaviour(resets=True)
    service.probe_status = 503
    effect = probed(service)
    with pytest.raises(EffectPending):
        await do(ledger, effect, service)
    for n in range(1, PROBES_MAX):
        await pass_by(store)
        with pytest.raises(EffectPending, match="not known yet"):
            await do(ledger, effect, service)
        assert service.probes == {"op-1": n}
        with pytest.raises(EffectPending):
            await do(ledger, effect, service)
        assert service.probes == {"op-1": n}, "not before it is due"
    await pass_by(store)
    with pytest.raises(EffectUnknown, match="HTTP 503"):
        await do(ledger, effect, service)
    service.probe_status = 200
    await pass_by(store)
    assert await do(ledger, effect, service) == {"id": "x-op-1-1"}, "asked again once somebody wants it again"
    assert service.requests == {"op-1": 1}


BAD_ANSWERS = {"nothing": None, "a truth": True, "no JSON": Done(object()), "too much": Done("x" * 100_000)}


@pytest.mark.parametrize("what", BAD_ANSWERS)
async def test_a_probe_that_answers_nonsense_could_not_tell(
    ledger: Ledger, service: Provider, store: Store, what: str
) -> None:
    service.script = lambda operation, n: Behaviour(resets=True)

    def nonsense(asked: Asked) -> NotDone:
        answer: object = BAD_ANSWERS[what]
        return answer  # type: ignore[return-value] - that is the point

    effect = Effect("charge", probe(nonsense), 1.0, margin_s=0.0)
    with pytest.raises(EffectPending):
        await do(ledger, effect, service)
    await pass_by(store)
    with pytest.raises(EffectPending, match="could not tell"):
        await do(ledger, effect, service)
    assert service.requests == {"op-1": 1}


async def test_a_probe_that_hangs_could_not_tell(ledger: Ledger, service: Provider, store: Store) -> None:
    service.script = lambda operation, n: Behaviour(resets=True)

    async def hanging(asked: Asked) -> CannotTell:
        await asyncio.Event().wait()
        return CannotTell()

    effect = Effect("charge", probe(hanging), 0.2, margin_s=0.0)
    with pytest.raises(EffectPending):
        await do(ledger, effect, service)
    await pass_by(store)
    with pytest.raises(EffectPending, match="in time"):
        await do(ledger, effect, service)


async def test_a_probe_that_raises_outside_a_worker_tells_its_caller(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.script = lambda operation, n: Behaviour(resets=True)

    async def broken(asked: Asked) -> NotDone:
        raise ZeroDivisionError

    effect = Effect("charge", probe(broken), 1.0, margin_s=0.0)
    with pytest.raises(EffectPending):
        await do(ledger, effect, service)
    await pass_by(store)
    with pytest.raises(ZeroDivisionError):
        await do(ledger, effect, service)
    assert service.requests == {"op-1": 1}


async def test_a_service_that_never_answers_and_never_does_it_ends_with_a_person(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    """A loop of calls and probes that nobody counts would never end."""
    service.script = lambda operation, n: Behaviour(works=False, resets=True)
    effect = probed(service)
    for _ in range(UNSURE_MAX):
        with pytest.raises(EffectPending):
            await do(ledger, effect, service)
        await pass_by(store)
    with pytest.raises(EffectUnknown, match=f"{UNSURE_MAX} calls in a row"):
        await do(ledger, effect, service)
    assert service.requests == {"op-1": UNSURE_MAX}


# ------------------------------------------------------------------------------------------------------------- review


async def test_what_nobody_can_know_waits_for_a_person(ledger: Ledger, service: Provider, store: Store) -> None:
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    for _ in range(2):
        with pytest.raises(EffectUnknown):
            await do(ledger, reviewed(), service)
    assert service.requests == {"op-1": 1}
    assert await value(store, "state") == "unknown"


async def find_out(store: Store, finding: Finding) -> bool:
    """What a person enters."""
    effect_id = await value(store, "id")
    async with store.transaction() as conn:
        row = await effects.read(conn, store.tables, effect_id)
        assert row is not None
        return await effect_findings.resolve(conn, store.tables, row, finding)


async def in_doubt(ledger: Ledger, service: Provider) -> None:
    """A call whose answer got lost."""
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    with pytest.raises(EffectUnknown):
        await do(ledger, reviewed(), service)


async def test_a_person_who_found_it_done_says_with_what_result(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    await in_doubt(ledger, service)
    assert await find_out(store, Finding(Resolution.DONE, '{"id": "x-op-1-1"}', "x-op-1-1"))
    assert await do(ledger, reviewed(), service) == {"id": "x-op-1-1"}
    assert service.done == {"op-1": 1}


@pytest.mark.parametrize("new_key", [True, False])
async def test_a_person_who_found_it_not_done_says_whether_the_key_is_kept(
    ledger: Ledger, service: Provider, store: Store, new_key: bool
) -> None:
    await in_doubt(ledger, service)
    service.done.clear()
    assert await find_out(store, Finding(Resolution.NOT_DONE, new_key=new_key))
    if not new_key:
        service.honours_keys = False
    await do(ledger, reviewed(), service)
    assert service.requests == {"op-1": 2}
    assert len(service.keys["op-1"]) == (2 if new_key else 1)
    assert await value(store, "key_no") == int(new_key)
    assert await value(store, "unsure") == 0


async def test_what_a_person_discarded_is_never_called(ledger: Ledger, service: Provider, store: Store) -> None:
    await in_doubt(ledger, service)
    assert await find_out(store, Finding(Resolution.DISCARDED))
    with pytest.raises(RecordError, match="discarded"):
        await do(ledger, reviewed(), service)
    assert service.requests == {"op-1": 1}


async def test_a_call_that_may_be_under_way_cannot_be_resolved(ledger: Ledger, store: Store) -> None:
    async with ledger.effect(reviewed(deadline_s=60), "op-1", owner="tests") as effect:
        assert not await find_out(store, Finding(Resolution.NOT_DONE))
        effect.complete()
    assert not await find_out(store, Finding(Resolution.NOT_DONE)), "nor one that is known"


# ------------------------------------------------------------------------------------------------------ contradictions


async def test_the_same_operation_with_another_request_is_never_called(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    """A contradiction for review, not a quiet hit."""
    await do(ledger, keyed(), service, request={"cents": 5})
    with pytest.raises(EffectUnknown, match="another request"):
        await do(ledger, keyed(), service, request={"cents": 6})
    assert await do(ledger, keyed(), service, request={"cents": 5}) == {"id": "x-op-1-1"}
    assert service.requests == {"op-1": 1}


async def test_the_same_id_of_another_owner_scope_or_effect_is_another_operation(
    ledger: Ledger, service: Provider, store: Store
) -> None:
    service.honours_keys = False
    other = Effect("refund", keyed().rule, 5.0)
    await do(ledger, keyed(), service)
    await do(ledger, keyed(), service, scope="t2")
    await do(ledger, keyed(), service, owner="others")
    await do(ledger, other, service)
    assert service.requests == {"op-1": 4}
    assert len(service.keys["op-1"]) == 4
    assert await count(store) == 4


async def test_a_row_knows_what_to_find_it_by(ledger: Ledger, store: Store) -> None:
    long = "o" * 6_000
    async with ledger.call(of(keyed(), "op\x00-1", whose())) as effect:
        effect.complete()
    async with ledger.effect(keyed(), long, owner="web", tenant="t1", brand="b", correlation_id="c-1") as effect:
        effect.complete({"n": 1})
    assert await value(store, "owner", "op\ufffd-1") == "tests/bill"
    async with store.look() as conn:
        found = await conn.execute(
            store.tables.sql("SELECT owner, tenant, brand, correlation_id FROM {effect} WHERE owner = 'web'")
        )
        assert [tuple(row) for row in found] == [("web", "t1", "b", "c-1")]
    assert await audited(store) == []
