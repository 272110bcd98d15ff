"""A person's word on what nobody can know: the call, the event and the audit change together, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.support.review_desk import ReviewDesk
from tidegate.dlq import review_cases
from tidegate.dlq.permission import Gate, NotPermitted
from tidegate.dlq.reach import Caller, Grant
from tidegate.dlq.review import NOT_GIVEN, Refused, Ruling, Verb, carry_out, resolve
from tidegate.dlq.selection import Filter
from tidegate.dlq.verbs import Role
from tidegate.dlq.verbs import Verb as Acts
from tidegate.inbox import consumers, failure
from tidegate.inbox.effect_rules import DoneNeed, Effect, review
from tidegate.inbox.errors import TidegateError


@pytest.fixture
def desk(graveyard: Graveyard) -> ReviewDesk:
    """Cases to put there."""
    return ReviewDesk(graveyard)


def ruling(reference: int | str, verb: Verb, **more: Any) -> Ruling:
    return Ruling(reason="asked the provider", reference=str(reference), verb=verb, **more)


async def test_done_keeps_the_result_and_lets_the_event_run_again(desk: ReviewDesk) -> None:
    row, call = await desk.case(1)
    await resolve(desk.gate, ruling(row, Verb.DONE, result={"id": "in-7"}, external_id="in-7"))
    known = await desk.call(call)
    assert (known["state"], known["resolution"], known["result"], known["external_id"]) == (
        "resolved",
        "done",
        {"id": "in-7"},
        "in-7",
    )
    assert await desk.row(row) == ("queued", 2)
    (line,) = await desk.audit()
    assert line[:4] == ("review_resolve", "ada", True, row)
    assert line[4] == {
        "why": "asked the provider",
        "verb": "done",
        "effect_id": call,
        "effect": "send-invoice",
        "effect_was": "unknown",
        "external_id": "in-7",
    }, "how it is known, and never the result"


async def declares(desk: ReviewDesk, *needs: DoneNeed) -> None:
    async with desk.store.transaction() as conn:
        await consumers.first_start(conn, desk.store.tables, "billing")
        effect = Effect("send-invoice", review(), 1.0, done_needs=needs)
        await consumers.declare_needs(conn, desk.store.tables, "billing", [effect])


@pytest.mark.parametrize(
    ("needs", "given", "lacks"),
    [
        (("external_id",), {"result": 1}, "--external-id"),
        (("result",), {"external_id": "in-7"}, "--result"),
        (("external_id", "result"), {"result": None}, "--external-id"),
    ],
)
async def test_what_the_effect_declares_has_to_be_given_with_what_was_done(
    desk: ReviewDesk, needs: tuple[DoneNeed, ...], given: dict[str, Any], lacks: str
) -> None:
    """Its handler goes on with it: half of it would be a failure later, or a wrong figure."""
    await declares(desk, *needs)
    failure_id, effect_id = await desk.case(1)
    with pytest.raises(Refused, match=f"cannot go on without it: give {lacks} too"):
        await resolve(desk.gate, ruling(failure_id, Verb.DONE, **given))
    assert (await desk.call(effect_id))["state"] == "unknown"
    await resolve(desk.gate, ruling(failure_id, Verb.DONE, result={"id": "in-7"}, external_id="in-7"))
    assert (await desk.call(effect_id))["resolution"] == "done"


async def test_a_declaration_that_is_taken_back_asks_for_nothing(desk: ReviewDesk) -> None:
    await declares(desk, "external_id")
    await declares(desk)
    failure_id, _ = await desk.case(1)
    await resolve(desk.gate, ruling(failure_id, Verb.DONE, result=1))


@pytest.mark.parametrize(("same_key", "key_no"), [(True, 0), (False, 1)])
async def test_not_done_says_whether_the_key_is_kept(desk: ReviewDesk, same_key: bool, key_no: int) -> None:
    row, call = await desk.case(1)
    await resolve(desk.gate, ruling(row, Verb.NOT_DONE, same_key=same_key))
    known = await desk.call(call)
    assert (known["resolution"], known["key_no"], known["key"] == "key-o-1") == ("not_done", key_no, same_key)
    assert await desk.row(row) == ("queued", 2)


async def test_a_discarded_event_stays_as_a_memory_and_frees_its_key(desk: ReviewDesk) -> None:
    row, call = await desk.case(1)
    assert await desk.lane() == 1
    await resolve(desk.gate, ruling(row, Verb.DISCARD))
    assert (await desk.call(call))["resolution"] == "discarded"
    assert await desk.row(row) == ("discarded", 2)
    assert await desk.lane() == 0


async def test_an_event_without_a_call_runs_again(desk: ReviewDesk) -> None:
    row = await desk.event(1)
    await resolve(desk.gate, ruling(row, Verb.RUN_AGAIN))
    assert await desk.row(row) == ("queued", 2)


async def test_an_event_without_a_call_that_was_done_by_hand_gets_its_claim(desk: ReviewDesk) -> None:
    row = await desk.event(1)
    await resolve(desk.gate, ruling(row, Verb.DONE))
    assert await desk.row(row) is None
    assert await desk.claims() == 1
    assert await desk.lane() == 0


async def test_all_events_that_wait_for_one_call_go_on_with_it(desk: ReviewDesk) -> None:
    row, call = await desk.case(1)
    other = await desk.event(2, call)
    await resolve(desk.gate, ruling(row, Verb.DONE, external_id="in-7"))
    assert await desk.row(other) == ("queued", 2)


async def test_a_discarded_event_that_names_anothers_operation_leaves_that_one_and_its_call(desk: ReviewDesk) -> None:
    """Discarded with it, the other one would be told that nobody wants it, and die without a word from anybody."""
    row, call = await desk.case(1)
    other = await desk.event(2, call)
    await resolve(desk.gate, ruling(other, Verb.DISCARD))
    assert await desk.row(other) == ("discarded", 2)
    assert await desk.row(row) == ("unknown", 1)
    assert (await desk.call(call))["state"] == "unknown"
    await resolve(desk.gate, ruling(row, Verb.DISCARD))
    assert (await desk.call(call))["resolution"] == "discarded", "nobody else waits for it by now"
    stays = [details.get("effect_stays", False) for _, _, _, _, details in await desk.audit()]
    assert stays == [True, False]


async def test_a_call_of_an_event_that_has_no_row_yet_outlives_another_one_that_is_discarded(desk: ReviewDesk) -> None:
    """Its process died, and its event is about to be read again."""
    call = await desk.effect("o-1", event_id=b"e" * 16)
    row = await desk.event(1, call)
    await resolve(desk.gate, ruling(row, Verb.DISCARD))
    assert await desk.row(row) == ("discarded", 2)
    assert (await desk.call(call))["state"] == "unknown"
    assert [case.reference for case in await review_cases.lone_effects(desk.gate, None)] == [f"effect:{call}"]


async def test_an_event_that_runs_again_or_is_discarded_behind_a_known_call_moves_no_other_one(
    desk: ReviewDesk,
) -> None:
    call = await desk.effect("o-1", state="completed")
    rows = [await desk.event(n, call) for n in (1, 2, 3)]
    await resolve(desk.gate, ruling(rows[0], Verb.RUN_AGAIN))
    await resolve(desk.gate, ruling(rows[1], Verb.DISCARD))
    assert [await desk.row(row) for row in rows] == [("queued", 2), ("discarded", 2), ("unknown", 1)]


async def test_a_call_that_no_event_waits_for_is_resolved_under_its_own_number(desk: ReviewDesk) -> None:
    call = await desk.effect("web-1", owner="checkout")
    await resolve(desk.gate, ruling(f"effect:{call}", Verb.DONE, result=None))
    known = await desk.call(call)
    assert (known["resolution"], known["result"]) == ("done", None)


async def test_a_call_whose_end_became_known_meanwhile_lets_its_event_run_again(desk: ReviewDesk) -> None:
    call = await desk.effect("o-1", state="completed")
    row = await desk.event(1, call)
    with pytest.raises(Refused, match="its call is completed by now"):
        await resolve(desk.gate, ruling(row, Verb.NOT_DONE, same_key=True))
    await resolve(desk.gate, ruling(row, Verb.RUN_AGAIN))
    assert await desk.row(row) == ("queued", 2)
    assert (await desk.call(call))["state"] == "completed"


@pytest.mark.parametrize(
    ("verb", "more", "why"),
    [
        (Verb.DONE, {}, "needs its result or its external id"),
        (Verb.RUN_AGAIN, {}, "say whether it was done"),
        (Verb.DONE, {"result": "x" * 20_000}, "more than result_bytes_max"),
        (Verb.DONE, {"result": "a\0b"}, "NUL"),
    ],
)
async def test_a_ruling_that_does_not_fit_is_refused_and_changes_nothing(
    desk: ReviewDesk, verb: Verb, more: dict[str, Any], why: str
) -> None:
    row, call = await desk.case(1)
    with pytest.raises(Refused, match=why):
        await resolve(desk.gate, ruling(row, verb, **more))
    assert await desk.row(row) == ("unknown", 1)
    assert (await desk.call(call))["state"] == "unknown"
    assert await desk.audit() == []


async def test_without_a_call_there_is_nothing_to_be_not_done_and_no_result(desk: ReviewDesk) -> None:
    row = await desk.event(1)
    with pytest.raises(Refused, match="no call of it is in doubt"):
        await resolve(desk.gate, ruling(row, Verb.NOT_DONE, same_key=True))
    with pytest.raises(Refused, match="it made no call"):
        await resolve(desk.gate, ruling(row, Verb.DONE, result=1))


@pytest.mark.parametrize(
    "said",
    [
        {"verb": Verb.NOT_DONE},
        {"verb": Verb.DONE, "same_key": True},
        {"verb": Verb.DISCARD, "result": 1},
        {"verb": Verb.RUN_AGAIN, "external_id": "x"},
        {"verb": Verb.DONE, "external_id": ""},
    ],
)
def test_what_contradicts_itself_is_refused_before_anybody_looks(said: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        Ruling(reason="r", reference="1", **said)


async def test_a_reason_is_required(desk: ReviewDesk) -> None:
    row = await desk.event(1)
    with pytest.raises(TidegateError, match="a reason why"):
        await resolve(desk.gate, Ruling(reason=" ", reference=str(row), verb=Verb.RUN_AGAIN))


async def test_what_was_changed_meanwhile_is_refused(desk: ReviewDesk) -> None:
    """Between the look and the act a probe answered; the whole act is undone, its audit line too."""
    row, call = await desk.case(1)

    async with desk.gate.asked(Acts.SHOW_REVIEW) as asked:
        before = await review_cases.named(asked, str(row))
    assert before.effect is not None
    async with desk.store.transaction() as conn:
        await conn.execute(sa.text(f"UPDATE tidegate.effect SET row_version = row_version + 1 WHERE id = {call}"))
    with pytest.raises(Refused, match="changed meanwhile"):
        async with desk.store.transaction() as conn:
            await carry_out(conn, desk.store.tables, before, ruling(row, Verb.DONE, external_id="x"))
    assert await desk.row(row) == ("unknown", 1)


async def test_an_event_that_was_discarded_meanwhile_is_not_resolved(desk: ReviewDesk) -> None:
    row, _ = await desk.case(1)
    async with desk.store.transaction() as conn:
        await failure.discard(conn, desk.store.tables, [(row, 1)])
    with pytest.raises(Refused, match="it is discarded"):
        await resolve(desk.gate, ruling(row, Verb.DONE, external_id="x"))


async def test_a_call_that_may_still_be_under_way_is_not_resolved(desk: ReviewDesk) -> None:
    call = await desk.effect("o-1", state="intended", due_s=60)
    row = await desk.event(1, call)
    with pytest.raises(Refused, match="still be under way"):
        await resolve(desk.gate, ruling(row, Verb.NOT_DONE, same_key=True))
    assert await desk.row(row) == ("unknown", 1)


async def test_a_denial_is_audited_although_nothing_else_happens(desk: ReviewDesk) -> None:
    row, call = await desk.case(1)
    viewer = Caller("ada", (Grant(role=Role.VIEWER, tenants=None),))
    with pytest.raises(NotPermitted, match="ada may not say what became of a case"):
        await resolve(Gate(desk.store, viewer), ruling(row, Verb.DONE, external_id="x"))
    assert await desk.row(row) == ("unknown", 1)
    assert (await desk.call(call))["state"] == "unknown"
    assert [(line[0], line[2], line[3]) for line in await desk.audit()] == [("review_resolve", False, row)]


async def test_cases_are_listed_with_their_calls_and_lone_calls_apart(desk: ReviewDesk) -> None:
    row, call = await desk.case(1)
    plain = await desk.event(2)
    lone = await desk.effect("web-1", owner="checkout")
    stale = await desk.effect("web-2", state="intended", owner="checkout")
    await desk.effect("o-9", state="intended", due_s=60)
    listed = await review_cases.cases(desk.gate, Filter())
    alone = await review_cases.lone_effects(desk.gate, None)
    assert [(case.reference, case.effect and case.effect.id) for case in listed] == [
        (str(row), call),
        (str(plain), None),
    ]
    assert [case.reference for case in alone] == [f"effect:{lone}", f"effect:{stale}"]
    await resolve(desk.gate, ruling(f"effect:{stale}", Verb.NOT_DONE, same_key=True))
    assert (await desk.call(stale))["resolution"] == "not_done"


@pytest.mark.parametrize("reference", ["17", "effect:17", "effect:x", "nonsense"])
async def test_a_reference_that_names_nothing_is_an_error(desk: ReviewDesk, reference: str) -> None:
    with pytest.raises(TidegateError):
        await resolve(desk.gate, ruling(reference, Verb.RUN_AGAIN))


def test_no_result_and_the_result_none_are_two_things() -> None:
    assert Ruling(reason="r", reference="1", verb=Verb.DONE).result is NOT_GIVEN
