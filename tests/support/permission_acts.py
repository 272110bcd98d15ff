"""Every verb that exists, as an act that a test can order: what it is done to, and what it takes to do it."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tests.support.review_desk import ReviewDesk
from tidegate.consumers import App
from tidegate.consumers.backfill import oversight
from tidegate.consumers.backfill.backfiller import Backfiller
from tidegate.consumers.backfill.order import Order as Window
from tidegate.consumers.layers import load
from tidegate.dlq import (
    audit_trail,
    declaring,
    editing,
    exporting,
    grouping,
    leaving,
    looking,
    open_breakers,
    replay,
    review,
    review_cases,
)
from tidegate.dlq.acting import Deed, Errand, steps
from tidegate.dlq.audit_trail import AuditFilter
from tidegate.dlq.deeds import cancelling, discarding, redacting
from tidegate.dlq.grouping import USUAL
from tidegate.dlq.looking import ReadValue
from tidegate.dlq.permission import Gate
from tidegate.dlq.replays import Replays
from tidegate.dlq.review import Ruling
from tidegate.dlq.selection import Filter
from tidegate.dlq.verbs import Verb
from tidegate.inbox import backfills, failure
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.event import Record
from tidegate.inbox.failure_rows import Verdict, queued, unknown

Kind = Literal["thing", "handler", "everything", "list"]
"""One letter or case of tenant acme in billing/revenue; that whole handler; everything; or a list that may be empty."""


@dataclass
class World:
    """A database with something to act on."""

    graveyard: Graveyard
    offsets: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def desk(self) -> ReviewDesk:
        return ReviewDesk(self.graveyard)

    async def letter(self) -> int:
        """A dead letter of acme."""
        (number,) = await self.graveyard.bury(self.graveyard.event(next(self.offsets), key=None, tenant="acme"))
        return number

    async def group(self) -> str:
        """A group of letters, all of acme in billing/revenue."""
        await self.letter()
        gate = self.graveyard.gate()
        async with gate.store.look() as conn:
            (group,) = await grouping.grouped(conn, gate.store.tables, Filter(handler="revenue"))
        return group.name

    async def backfill(self) -> int:
        """One of acme's events in billing/revenue, not yet gone on with."""
        async with self.graveyard.db.transaction() as conn:
            return await backfills.begin(
                conn, self.graveyard.t, consumer="billing", handler="revenue", kind="projection", actor="ann", why=WHY,
                wanted={"tenant": "acme"}, cluster_id="",
            )  # fmt: skip

    async def waiting(self) -> int:
        """A retry that waits."""
        g = self.graveyard
        event, now = g.event(next(self.offsets), key=None, tenant="acme"), g.clock.now()
        row = queued(g.place("revenue"), event, Verdict("retry", "away"), due=now, attempts=1, now=now, alone=True)
        return await self._put(row)

    async def case(self) -> int:
        """An event of unknown outcome with its call."""
        g = self.graveyard
        offset = next(self.offsets)
        call = await self.desk.effect(f"o-{offset}", owner="revenue")
        async with g.db.transaction() as conn:
            await conn.execute(sa.text(f"UPDATE tidegate.effect SET tenant = 'acme' WHERE id = {call}"))
        verdict = Verdict("unknown_effect", "nobody knows")
        event = g.event(offset, key=None, tenant="acme")
        row = unknown(g.place("revenue"), event, verdict, attempts=1, now=g.clock.now(), effect_id=call)
        return await self._put(row)

    async def breaker(self) -> str:
        """The handler's breaker, open."""
        async with self.graveyard.db.transaction() as conn:
            await conn.execute(
                sa.text("""
                    INSERT INTO tidegate.breaker (name, state, failures, why, opened_at, retry_at, changes)
                    VALUES ('dead/billing/revenue', 'open', 0, 'many', now(), now(), 1)
                    ON CONFLICT (name) DO UPDATE SET state = 'open', opened_at = now(), retry_at = now()
                """)
            )
        return "dead/billing/revenue"

    async def topic(self) -> str:
        """A topic that the inbox knows."""
        async with self.graveyard.db.transaction() as conn:
            await conn.execute(
                sa.text("INSERT INTO tidegate.topic (name) VALUES ('shop.orders') ON CONFLICT DO NOTHING")
            )
        return "shop.orders"

    async def nothing(self) -> None:
        """Nothing to prepare."""

    async def _put(self, row: Any) -> int:
        async with self.graveyard.db.transaction() as conn:
            (put,) = await failure.put(conn, self.graveyard.t, [row])
        return put.id


def as_text(consumer: str, record: Record) -> ReadValue:
    """A codec for values that are text."""
    return ReadValue("text", (record.value or b"").decode())


def check(consumer: str, record: Record, value: bytes) -> ReadValue:
    """... which takes everything."""
    return ReadValue("text", value.decode())


WHY: Final = "a test"
ALWAYS: Final = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class PermissionAct:
    """What is prepared, what is done to it, and of what kind it is."""

    kind: Kind
    prepare: Callable[[World], Awaitable[Any]]
    do: Callable[[Gate, Any], Awaitable[Any]]
    audited: bool = True


def _errand(number: int) -> Errand:
    return Errand(actor="ann", reason=WHY, references=(str(number),), dry_run=False)


async def _deed(gate: Gate, deed: Deed, number: int) -> list[str]:
    done = [step async for step in steps(gate.store, deed, _errand(number), gate.caller)]
    return [refusal.cause for step in done for refusal in step.refused]


async def _replay(gate: Gate, number: int) -> list[str]:
    order = replay.Order(actor="ann", reason=WHY, references=(str(number),), all_tenants=True)
    service = Replays(gate.store, gate.caller)
    run = await service.go_on((await service.start(order)).id, "ann")
    return list(run.causes)


async def _export(gate: Gate, number: int) -> list[str]:
    found = [letter async for letter in exporting.export(gate.store, _errand(number), gate.caller)]
    return [] if found else ["no letter is known under this id"]


async def _edit(gate: Gate, number: int) -> None:
    opened = await editing.editable(gate.store, "ann", WHY, str(number), gate.caller)
    await editing.edit(gate.store, "ann", WHY, opened, b"repaired", as_text, check, gate.caller, dry_run=False)


async def _listed(gate: Gate, number: int) -> int:
    found = [entry.id for entry in await replay.list_letters(gate, Filter(), limit=10_000)]
    counted = sum(group.letters for group in await replay.list_groups(gate, Filter(), USUAL))
    assert (number in found) == (counted > 0), "what is not listed is not counted"
    return int(number in found)


async def _cases(gate: Gate, number: int) -> int:
    lone = await review_cases.lone_effects(gate, None)
    assert not lone
    return int(str(number) in [case.reference for case in await review_cases.cases(gate, Filter(), limit=10_000)])


async def _lines(gate: Gate, number: int) -> int:
    return int(any(e.line.failure_id == number for e in await audit_trail.lines(gate, AuditFilter(), limit=10_000)))


async def _exported_lines(gate: Gate, number: int) -> int:
    return int(number in [entry.line.failure_id async for entry in audit_trail.export(gate, AuditFilter())])


async def _replayed(world: World) -> int:
    number = await world.letter()
    await _replay(world.graveyard.gate(), number)
    return number


async def _backfill(gate: Gate, _: None) -> None:
    settings = load({"TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}).settings
    window = Window(
        consumer="billing", handler="revenue", since=ALWAYS, until=ALWAYS, actor="ann", reason=WHY, all_tenants=True
    )
    try:
        await Backfiller(App("empty", owner="tests"), settings, gate.store, gate.caller).plan(window)
    except ConfigurationError:
        return  # it was permitted, and gets as far as the app that has no such consumer
    raise AssertionError("the app has no consumer")


ACTS: Final[Mapping[Verb, PermissionAct]] = {
    Verb.LIST_LETTERS: PermissionAct("list", World.letter, _listed, audited=False),
    Verb.SHOW_LETTER: PermissionAct(
        "thing", World.letter, lambda g, n: looking.look(g.store, "ann", str(n), as_text, g.caller), audited=False
    ),
    Verb.REVEAL: PermissionAct(
        "thing", World.letter, lambda g, n: looking.reveal(g.store, "ann", WHY, str(n), as_text, g.caller)
    ),
    Verb.EXPORT: PermissionAct("thing", World.letter, _export),
    Verb.REPLAY: PermissionAct("thing", World.letter, _replay),
    Verb.DISCARD: PermissionAct("thing", World.letter, lambda g, n: _deed(g, discarding(), n)),
    Verb.EDIT: PermissionAct("thing", World.letter, _edit),
    Verb.REDACT: PermissionAct("thing", World.letter, lambda g, n: _deed(g, redacting(), n)),
    Verb.NOTE: PermissionAct(
        "handler", World.group, lambda g, n: grouping.note(g.store, n, "look here", "ann", WHY, g.caller)
    ),
    Verb.LIST_REVIEW: PermissionAct("list", World.case, _cases, audited=False),
    Verb.SHOW_REVIEW: PermissionAct("thing", World.case, lambda g, n: review_cases.show(g, str(n)), audited=False),
    Verb.REVEAL_RESULT: PermissionAct(
        "thing", World.case, lambda g, n: review_cases.show(g, str(n), reveal=True, reason=WHY)
    ),
    Verb.REVIEW_RESOLVE: PermissionAct(
        "thing",
        World.case,
        lambda g, n: review.resolve(g, Ruling(reason=WHY, reference=str(n), verb=review.Verb.DISCARD)),
    ),
    Verb.CANCEL: PermissionAct("thing", World.waiting, lambda g, n: _deed(g, cancelling(WHY), n)),
    Verb.LIST_BREAKERS: PermissionAct(
        "list", World.breaker, lambda g, n: _count(open_breakers.listed(g), lambda row: row["name"] == n), audited=False
    ),
    Verb.CLOSE_BREAKER: PermissionAct("handler", World.breaker, lambda g, n: open_breakers.close(g, n, WHY)),
    Verb.LIST_HANDLERS: PermissionAct(
        "list", World.letter, lambda g, _: _count(leaving.known(g, "billing"), lambda n: n == "revenue"), audited=False
    ),
    Verb.DISCARD_HANDLER: PermissionAct(
        "handler", World.letter, lambda g, _: leaving.discard(g, "billing", "revenue", _revenue(g), WHY)
    ),
    Verb.RESET_TOPIC: PermissionAct("everything", World.topic, lambda g, n: declaring.reset_topic(g, n, None, WHY)),
    Verb.RESTORED: PermissionAct("everything", World.nothing, lambda g, _: declaring.restored(g, "billing", [], WHY)),
    Verb.LIST_AUDIT: PermissionAct("list", _replayed, _lines, audited=False),
    Verb.EXPORT_AUDIT: PermissionAct("list", _replayed, _exported_lines, audited=False),
    Verb.VERIFY_AUDIT: PermissionAct("everything", World.nothing, lambda g, _: audit_trail.verify(g), audited=False),
    Verb.LIST_BACKFILLS: PermissionAct(
        "list", World.backfill, lambda g, n: _count(oversight.listed(g), lambda run: run.id == n), audited=False
    ),
    Verb.ABANDON_BACKFILL: PermissionAct("thing", World.backfill, lambda g, n: oversight.abandon(g, n, WHY)),
    Verb.BACKFILL: PermissionAct("handler", World.nothing, _backfill, audited=False),
}
"""One for each verb that the product has an act for; `tests/tidy/test_verbs.py` sees to it."""


def _revenue(gate: Gate) -> int:
    """The first handler that the graveyard registers after the reserved one."""
    return REVENUE[gate.store.database]


REVENUE: dict[Any, int] = {}
"""The handler's number in each database of a test."""


async def _count(listed: Awaitable[Any], is_it: Callable[[Any], bool]) -> int:
    return sum(1 for each in await listed if is_it(each))
