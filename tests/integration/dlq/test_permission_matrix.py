"""Every role, verb and scope: who may, does, and leaves a line; who may not, does nothing, and leaves one too."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.support.permission_acts import ACTS, REVENUE, Kind, World
from tidegate.dlq.permission import NotPermitted
from tidegate.dlq.reach import Caller, Grant
from tidegate.dlq.verbs import VERBS, Permission, Role, Verb
from tidegate.inbox.errors import TidegateError

LOOKS: Final = {
    *(Verb.LIST_LETTERS, Verb.SHOW_LETTER, Verb.LIST_REVIEW, Verb.SHOW_REVIEW, Verb.LIST_BREAKERS, Verb.LIST_HANDLERS),
    *(Verb.LIST_AUDIT, Verb.EXPORT_AUDIT, Verb.VERIFY_AUDIT, Verb.LIST_BACKFILLS),
}
MAY: Final = {
    None: set[Verb](),
    Role.VIEWER: LOOKS,
    Role.OPERATOR: LOOKS | {Verb.REPLAY, Verb.DISCARD, Verb.CANCEL, Verb.NOTE, Verb.CLOSE_BREAKER},
    Role.REVIEWER: LOOKS | {Verb.REVEAL, Verb.EXPORT, Verb.REVEAL_RESULT, Verb.REVIEW_RESOLVE, Verb.EDIT},
    Role.ADMIN: set(ACTS),
}
"""Who may what, written down here once more: a row of the table that changes is seen."""


def only(name: str) -> frozenset[str]:
    return frozenset({name})


SCOPES: Final[dict[str, tuple[dict[str, frozenset[str] | None], set[Kind]]]] = {
    "everything": ({"tenants": None}, {"thing", "handler", "everything"}),
    "the tenant": ({"tenants": only("acme")}, {"thing"}),
    "another tenant": ({"tenants": only("other")}, set()),
    "what has no tenant": ({"tenants": only("")}, set()),
    "the handler": ({"tenants": None, "handlers": only("revenue")}, {"thing", "handler"}),
    "another handler": ({"tenants": None, "handlers": only("invoices")}, set()),
    "another consumer": ({"tenants": None, "consumers": only("shipping")}, set()),
    "a brand": ({"tenants": None, "brands": only("north")}, set()),
    "the tenant's handler": ({"tenants": only("acme"), "handlers": only("revenue")}, {"thing"}),
}
"""Each scope, and what of acme's letter in billing/revenue is within it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("verb", ACTS, ids=str)
async def test_who_may_do_what(graveyard: Graveyard, verb: Verb) -> None:
    world, act = World(graveyard), ACTS[verb]
    REVENUE[graveyard.db] = graveyard.handlers["revenue"]
    for role in (None, *Role):
        for scope, (names, within) in SCOPES.items():
            grants = () if role is None else (replace(Grant(role=role, tenants=None), **names),)
            target = await act.prepare(world)
            may = verb in MAY[role] and act.kind in within
            before = await _last(graveyard)
            outcome = await _outcome(world, verb, Caller("ann", grants), target)
            where = f"{role or 'nobody'} with {scope}"
            if act.kind == "list":
                expected = "denied" if role is None else ("1" if "thing" in within or _touches(verb, names) else "0")
                assert outcome == expected, where
            else:
                assert outcome == ("done" if may else "denied"), where
            written = await _lines_since(graveyard, before, verb)
            if outcome == "denied":
                assert False in written, f"{where}: the denial stands in the audit, also beside an act on nothing"
            elif act.audited:
                assert set(written) == {True}, f"{where}: the act stands in the audit"
            else:
                assert written == [], f"{where}: a look leaves no line"


def _touches(verb: Verb, names: dict[str, frozenset[str] | None]) -> bool:
    """A handler and its breaker are seen by whoever sees anything of the handler."""
    ours = names.get("handlers") in (None, only("revenue")) and names.get("consumers") is None
    return verb in (Verb.LIST_BREAKERS, Verb.LIST_HANDLERS) and ours


async def _outcome(world: World, verb: Verb, caller: Caller, target: object) -> str:
    """`done`, a count, or `denied`: not permitted, or as if it were not there."""
    try:
        told = await ACTS[verb].do(world.graveyard.gate(caller), target)
    except NotPermitted:
        return "denied"
    except TidegateError as error:
        unknown = ("known as", "nothing is known", "is not open", "no letter is in a group", "no backfill")
        if "acme" in str(error) or not any(text in str(error) for text in unknown):
            raise
        return "denied"
    if isinstance(told, int):
        return str(told)
    return "denied" if told == ["no letter is known under this id"] else "done"


async def _last(graveyard: Graveyard) -> int:
    async with graveyard.db.transaction() as conn:
        return await conn.scalar(sa.text("SELECT coalesce(max(id), 0) FROM tidegate.audit")) or 0


async def _lines_since(graveyard: Graveyard, before: int, verb: Verb) -> list[bool]:
    async with graveyard.db.transaction() as conn:
        a = graveyard.t.audit.c
        rows = await conn.execute(sa.select(a.allowed, a.act).where(a.id > before).order_by(a.id))
        found = [(row.allowed, row.act) for row in rows]
    assert {act for _, act in found} <= {verb.value}
    return [allowed for allowed, _ in found]


def test_every_role_holds_only_what_its_row_says() -> None:
    for role, verbs in MAY.items():
        if role is not None:
            grants = Caller("ann", (Grant(role=role, tenants=None),))
            assert {verb for verb in ACTS if grants.reach(verb)} == verbs, role


def test_a_verb_that_mutates_needs_more_than_a_look() -> None:
    viewer = Caller("ann", (Grant(role=Role.VIEWER, tenants=None),))
    assert not [verb for verb, rule in VERBS.items() if rule.mutates and viewer.reach(verb)]


@pytest.mark.parametrize("verb", [verb for verb, act in ACTS.items() if act.kind == "thing"], ids=str)
async def test_who_sees_a_thing_and_acts_elsewhere_is_told_that_they_may_not(graveyard: Graveyard, verb: Verb) -> None:
    """A viewer here who is an admin of another tenant: the letter is known to them, and they are denied by its place.

    Case: B42
    Parts: real (PostgreSQL)
    Red when: dlq/reach.py's Grant.covers does not look at the tenant
    """
    world, act = World(graveyard), ACTS[verb]
    viewer = Grant(role=Role.VIEWER, tenants=only("acme"))
    caller = Caller("ann", (viewer, Grant(role=Role.ADMIN, tenants=only("other"))))
    target = await act.prepare(world)
    before = await _last(graveyard)
    if VERBS[verb].needs is Permission.VIEW:
        await act.do(graveyard.gate(caller), target)
        return
    with pytest.raises(NotPermitted, match=r"ann may not .* in billing/revenue"):
        await act.do(graveyard.gate(caller), target)
    assert await _lines_since(graveyard, before, verb) == [False]
