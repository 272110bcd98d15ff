"""What comes late is evidence, and two external ids are an alarm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.calling import audited, do, keyed, pass_by, probed, reviewed, value
from tests.support.provider import Provider
from tidegate.inbox import effect_findings, effects
from tidegate.inbox.effect_call import EffectCall
from tidegate.inbox.effect_findings import Finding
from tidegate.inbox.effect_rules import Effect, idempotent_key
from tidegate.inbox.effect_states import EffectState, Resolution
from tidegate.inbox.effects import Ending
from tidegate.inbox.errors import EffectMisused, EffectUnknown
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store

EFFECT = keyed(deadline_s=60)


async def begin(ledger: Ledger, effect: Effect = EFFECT) -> EffectCall:
    return await ledger.effect(effect, "op-1", owner="tests").__aenter__()


async def complete(call: EffectCall, external_id: str | None, result: object = None) -> None:
    call.complete(result, external_id)
    await call.__aexit__(None, None, None)


async def test_a_late_answer_of_an_earlier_attempt_completes_the_effect(store: Store, ledger: Ledger) -> None:
    first = await begin(ledger)
    await pass_by(store)
    second = await begin(ledger)
    assert second.attempt == 2
    await complete(first, "x-1", {"n": 1})
    assert await value(store, "state") == "completed"
    async with ledger.effect(EFFECT, "op-1", owner="tests") as repeat:
        assert repeat.result == {"n": 1}
    await complete(second, "x-1", {"n": 2})
    assert await value(store, "result") == {"n": 1}, "the first one stands"
    assert await audited(store) == []


async def test_a_second_external_id_is_an_alarm_and_the_first_one_stands(
    store: Store, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    first = await begin(ledger)
    await pass_by(store)
    second = await begin(ledger)
    await complete(second, "x-2")
    await complete(first, "x-1")
    assert await value(store, "external_id") == "x-2"
    assert await value(store, "second_external_id") == "x-1"
    assert await audited(store) == ["effect_done_twice"]
    assert "effect_done_twice" in capsys.readouterr().out
    async with store.look() as conn:
        details = await conn.scalar(store.tables.sql("SELECT details FROM {audit}"))
    assert (details["external_id"], details["second_external_id"], details["effect"]) == ("x-2", "x-1", "charge")


async def test_evidence_without_an_id_agrees_and_fills_in_what_was_missing(store: Store, ledger: Ledger) -> None:
    first = await begin(ledger)
    await pass_by(store)
    second = await begin(ledger)
    await complete(second, None)
    await complete(first, "x-1", {"n": 1})
    assert await value(store, "external_id") == "x-1"
    assert await value(store, "result") == {"n": 1}
    assert await audited(store) == []


async def resolve(
    store: Store, resolution: Resolution, external_id: str | None = None, *, new_key: bool = False
) -> None:
    effect_id = await value(store, "id")
    async with store.transaction() as conn:
        row = await effects.read(conn, store.tables, effect_id)
        assert row is not None
        assert await effect_findings.resolve(conn, store.tables, row, Finding(resolution, None, external_id, new_key))


@pytest.mark.parametrize("resolution", [Resolution.NOT_DONE, Resolution.DISCARDED])
async def test_what_was_said_not_to_be_done_and_was_is_an_alarm(
    store: Store, ledger: Ledger, resolution: Resolution
) -> None:
    first = await begin(ledger)
    await pass_by(store)
    await resolve(store, resolution)
    await complete(first, "x-1", {"n": 1})
    assert await value(store, "state") == "completed"
    assert await value(store, "resolution") is None
    assert await audited(store) == ["effect_done_after_all"]


async def test_two_calls_of_one_operation_that_both_were_answered_are_an_alarm_without_ids_too(
    store: Store, ledger: Ledger, service: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one froze, and the service said that it was not done."""
    first = await begin(ledger, probed(service, deadline_s=60))
    await pass_by(store)
    second = await begin(ledger, probed(service, deadline_s=60))
    await complete(second, None)
    for _ in range(2):
        await complete_again(first)
    assert await alarms(store) == ["effect_done_twice"], "once, however often it is said"
    assert capsys.readouterr().out.count("effect_done_twice") == 1


@pytest.mark.parametrize("new_key", [True, False])
async def test_an_answer_of_what_a_person_gave_up_is_an_alarm_while_the_next_call_is_under_way(
    store: Store, ledger: Ledger, new_key: bool
) -> None:
    effect = reviewed(deadline_s=60)
    first = await begin(ledger, effect)
    await pass_by(store)
    await resolve(store, Resolution.NOT_DONE, new_key=new_key)
    second = await begin(ledger, effect)
    await complete_again(first)
    await complete_again(first)
    assert await alarms(store) == ["effect_done_after_all"]
    assert await value(store, "state") == "completed"
    await complete_again(second)
    await complete_again(second)
    assert await alarms(store) == ["effect_done_after_all", "effect_done_twice"]


async def test_what_was_given_up_stays_so_when_later_calls_have_a_key(store: Store, ledger: Ledger) -> None:
    """Attempts 2 and 3 are one to the service, and attempt 1 is not."""
    first = await begin(ledger)
    await pass_by(store)
    await resolve(store, Resolution.NOT_DONE, new_key=True)
    second = await begin(ledger)
    await pass_by(store)
    third = await begin(ledger)
    await complete(third, None)
    await complete_again(second)
    assert await alarms(store) == [], "the same key"
    await complete_again(first)
    assert await alarms(store) == ["effect_done_twice"]


async def test_the_same_id_of_two_calls_is_one_thing_at_the_service(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    first = await begin(ledger, probed(service, deadline_s=60))
    await pass_by(store)
    second = await begin(ledger, probed(service, deadline_s=60))
    await complete(second, "x-1")
    await complete(first, "x-1")
    assert await alarms(store) == []


@pytest.mark.parametrize("rule", ["key", "probe", "review"])
async def test_an_answer_that_is_written_twice_is_no_alarm(
    store: Store, ledger: Ledger, service: Provider, rule: str
) -> None:
    """A lost answer of the database, say; also where the attempt before it was refused."""
    effect = {"key": EFFECT, "probe": probed(service, deadline_s=60), "review": reviewed(deadline_s=60)}[rule]
    refused = await begin(ledger, effect)
    refused.refused("no")
    await refused.__aexit__(None, None, None)
    call = await begin(ledger, effect)
    for _ in range(3):
        await complete_again(call)
    assert await alarms(store) == []


async def complete_again(call: EffectCall) -> None:
    """Its answer comes, without an id; as often as this is called."""
    assert call.begun is not None
    await call._book.end(  # pyright: ignore[reportPrivateUsage] - as the ledger does where the database's answer is lost
        call.call, Ending(call.begun.made.effect_id, call.begun.attempt_id, EffectState.COMPLETED)
    )


async def alarms(store: Store) -> list[str]:
    return [act for act in await audited(store) if act != "effect_probed"]


async def test_what_a_person_found_agrees_with_what_comes_later_or_does_not(store: Store, ledger: Ledger) -> None:
    first = await begin(ledger)
    await pass_by(store)
    await resolve(store, Resolution.DONE, "x-1")
    await complete(first, "x-1", {"n": 1})
    assert await audited(store) == []
    assert await value(store, "resolution") == "done"
    assert await value(store, "result") == {"n": 1}, "what the person did not know is filled in"


async def test_evidence_ends_a_review(store: Store, ledger: Ledger, service: Provider) -> None:
    first = await begin(ledger, reviewed(deadline_s=60))
    await pass_by(store)
    with pytest.raises(EffectUnknown):
        await do(ledger, reviewed(deadline_s=60), service)
    assert await value(store, "state") == "unknown"
    await complete(first, "x-1", {"id": "x-1"})
    assert await do(ledger, reviewed(deadline_s=60), service) == {"id": "x-1"}
    assert service.requests == {}


LESS: dict[str, Callable[[EffectCall], object]] = {
    "refused": lambda call: call.refused("no"),
    "nothing": lambda call: None,
}


@pytest.mark.parametrize("said", LESS)
async def test_what_is_less_than_evidence_counts_of_the_present_attempt_only(
    store: Store, ledger: Ledger, said: str
) -> None:
    """Attempt 1 comes back refused while attempt 2 is under way: nothing is known of 2."""
    first = await begin(ledger)
    await pass_by(store)
    second = await begin(ledger)
    LESS[said](first)
    try:
        await first.__aexit__(None, None, None)
    except EffectUnknown:
        assert said == "nothing"
    assert await value(store, "state") == "intended"
    await complete(second, "x-2")
    assert await value(store, "state") == "completed"


async def test_who_calls_although_it_was_done_is_compared(store: Store, ledger: Ledger) -> None:
    await complete(await begin(ledger), "x-1")
    again = await begin(ledger)
    assert again.is_done
    with pytest.raises(EffectMisused) as misused:
        again.complete(None, "x-2")
    await again.__aexit__(EffectMisused, misused.value, None)
    assert await audited(store) == ["effect_done_twice"]


async def test_an_attempt_from_beyond_the_bound_is_nobodys(store: Store, ledger: Ledger) -> None:
    long = Effect("charge", idempotent_key(valid_s=1e9), 60.0, margin_s=0.0)
    calls = [await begin(ledger, long)]
    for _ in range(effects.EARLIER_MAX + 1):
        await pass_by(store, 61)
        calls.append(await begin(ledger, long))
    assert calls[-1].attempt == effects.EARLIER_MAX + 2
    await complete(calls[0], "x-0")
    assert await value(store, "state") == "intended"
    await complete(calls[1], "x-1")
    assert await value(store, "external_id") == "x-1"
