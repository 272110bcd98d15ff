"""What waits for a person: events of unknown outcome with the call that nobody knows the end of. Reads only.

An event stands under its row's number. A call of which nobody knows, and that no row waits for (a web request's, say,
or one whose event is about to be read again), stands under `effect:` and its own number: also an intent whose time is
over, because its process may have died.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.audit import AuditEntry
from ..inbox.effect_states import EffectState, Resolution
from ..inbox.errors import TidegateError
from ..inbox.outcome import FailureState
from ..inbox.tables import Tables
from . import audit_trail
from .permission import Gate, Warrant
from .reach import Columns, Place, Reach
from .selection import Entry, Filter, entries, find
from .verbs import Verb

EFFECT: Final = "effect:"
"""Begins the reference of a call that stands alone."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EffectShown:
    """A call as a person sees it; its result only where it is asked for."""

    id: int
    row_version: int
    state: EffectState
    resolution: Resolution | None
    owner: str
    name: str
    operation_id: str
    rule: str
    provider: str
    key: str
    key_no: int
    attempts: int
    probes: int
    intended_at: datetime.datetime
    deadline: datetime.datetime
    due: datetime.datetime
    external_id: str | None
    second_external_id: str | None
    result: Any
    error: str
    consumer: str
    event_id: bytes | None
    tenant: str | None
    brand: str | None
    correlation_id: str
    done_needs: tuple[str, ...]
    """What its effect declares that a person has to give with it, who says that it was done."""

    @property
    def is_open(self) -> bool:
        """Nobody knows yet whether it was done."""
        return self.state in (EffectState.INTENDED, EffectState.UNKNOWN)

    @property
    def place(self) -> Place:
        """Where it is, for permission and audit."""
        ids = (None, self.event_id, self.correlation_id, self.operation_id)
        return Place(self.consumer, self.owner, self.tenant, self.brand, *ids)


@final
@dataclass(frozen=True, slots=True)
class Case:
    """Something that waits for a person: an event's row, a call, or both."""

    entry: Entry | None
    effect: EffectShown | None

    @property
    def reference(self) -> str:
        """What a person names it by."""
        if self.entry is not None:
            return str(self.entry.id)
        assert self.effect is not None, "a case is an event, a call, or both"
        return f"{EFFECT}{self.effect.id}"

    @property
    def place(self) -> Place:
        """Where it is, for permission and audit."""
        return self.places[0]

    @property
    def places(self) -> list[Place]:
        """Of the event and of the call: whoever rules on one rules on both."""
        e, f = self.entry, self.effect
        found = [] if e is None else [e.place]
        return found if f is None else [*found, f.place]


async def cases(gate: Gate, wanted: Filter, *, after: int = 0, limit: int = 100) -> list[Case]:
    """Events that wait within the caller's reach, oldest first, behind the row number `after`."""
    async with gate.asked(Verb.LIST_REVIEW) as asked:
        found = await entries(asked.conn, asked.t, _waiting(wanted), within=asked.reach, after=after, limit=limit)
        return [_without_unseen_call(case, asked.reach) for case in await _with_effects(asked.conn, asked.t, found)]


def _without_unseen_call(case: Case, reach: Reach) -> Case:
    return case if case.effect is None or reach.covers(case.effect.place) else Case(case.entry, None)


async def lone_effects(gate: Gate, consumer: str | None, *, limit: int = 100) -> list[Case]:
    """Calls of unknown end within the caller's reach that no row waits for, oldest first."""
    async with gate.asked(Verb.LIST_REVIEW) as asked:
        return await _lone_effects(asked.conn, asked.t, consumer, asked.reach, limit)


async def show(gate: Gate, reference: str, *, reveal: bool = False, reason: str = "") -> tuple[Case, list[AuditEntry]]:
    """The case of this reference, and what was done about its event; the call's result with `reveal`: it is audited.

    Raises:
        NotPermitted: the caller may see that it is there, and not the result.
        TidegateError: there is none within the caller's reach, or there are several.
    """
    async with gate.asked(Verb.REVEAL_RESULT if reveal else Verb.SHOW_REVIEW, reason, named=True) as asked:
        case = await named(asked, reference)
        for place in case.places:
            asked.require(place)
        if reveal:
            await asked.write(case.place)
        elif case.effect is not None:
            case = Case(case.entry, replace(case.effect, result=None))
        if case.entry is None:
            return case, []
        return case, await audit_trail.of_letter(asked.conn, asked.t, asked.caller.sees, case.entry.id)


async def _lone_effects(
    conn: AsyncConnection, t: Tables, consumer: str | None, within: Reach, limit: int
) -> list[Case]:
    e, f = t.effect.c, t.failure.c
    waited_for = sa.exists().where(f.effect_id == e.id, f.state.in_(["unknown", "queued"]))
    mine = within.rows(Columns(e.consumer, e.owner, e.tenant, e.brand))
    is_open = e.state.in_([EffectState.INTENDED.value, EffectState.UNKNOWN.value])
    over = sa.or_(e.state == EffectState.UNKNOWN.value, e.due <= sa.func.clock_timestamp())
    chosen = _shown(t).where(is_open, over, sa.not_(waited_for), mine).order_by(e.due).limit(limit)
    if consumer is not None:
        chosen = chosen.where(e.consumer == consumer)
    return [Case(None, _effect(row)) for row in (await conn.execute(chosen)).mappings()]


async def named(asked: Warrant, reference: str) -> Case:
    """The case of this reference that the caller may know of, whatever its state.

    Raises:
        TidegateError: there is none, or there are several.
    """
    conn, t = asked.conn, asked.t
    if reference.startswith(EFFECT):
        effect = await _lone(conn, t, reference)
        if effect is None or not asked.knows(effect.place):
            raise TidegateError(_nothing(reference))
        return Case(None, effect)
    found = [entry for entry in (await find(conn, t, [reference]))[reference] if asked.knows(entry.place)]
    if len(found) != 1:
        several = ", ".join(f"{entry.id} ({entry.consumer}/{entry.handler})" for entry in found)
        raise TidegateError(f"{reference} stands for several: {several}" if found else _nothing(reference))
    (case,) = await _with_effects(conn, t, found)
    return case


def _nothing(reference: str) -> str:
    return f"nothing is known as {reference} (any more): `tidegate review list` shows what waits"


async def waiting_for(conn: AsyncConnection, t: Tables, effect_id: int) -> list[tuple[int, int]]:
    """The rows (id, version) of events that wait for a person because of this call."""
    f = t.failure.c
    rows = await conn.execute(
        sa.select(f.id, f.row_version)
        .where(f.effect_id == effect_id, f.state == FailureState.UNKNOWN.value)
        .order_by(f.id)
    )
    return [(row[0], row[1]) for row in rows]


async def is_of_event_alone(conn: AsyncConnection, t: Tables, effect: EffectShown, entry: Entry) -> bool:
    """The call was made for this event, and no other one waits for its end.

    Another event that names the same operation waits for the same call, whatever it wants of it.
    """
    f = t.failure.c
    others = sa.exists().where(f.effect_id == effect.id, f.state.in_(["unknown", "queued"]), f.id != entry.id)
    return effect.event_id in (None, entry.event_id) and not await conn.scalar(sa.select(others))


def _waiting(wanted: Filter) -> Filter:
    return replace(wanted, state=FailureState.UNKNOWN)


async def _with_effects(conn: AsyncConnection, t: Tables, found: Sequence[Entry]) -> list[Case]:
    f, e = t.failure.c, t.effect.c
    rows = await conn.execute(
        sa.select(f.id, f.effect_id).where(f.id.in_([entry.id for entry in found]), f.effect_id.is_not(None))
    )
    effect_of: dict[int, int] = {row[0]: row[1] for row in rows}
    shown = (await conn.execute(_shown(t).where(e.id.in_(sorted(set(effect_of.values())))))).mappings()
    effects = {row["id"]: _effect(row) for row in shown}
    return [Case(entry, effects.get(effect_of.get(entry.id, 0))) for entry in found]


async def _lone(conn: AsyncConnection, t: Tables, reference: str) -> EffectShown | None:
    number = reference.removeprefix(EFFECT)
    if not _NUMBER.fullmatch(number):
        raise TidegateError(f"{reference!r} names no call: give {EFFECT} and its number")
    row = (await conn.execute(_shown(t).where(t.effect.c.id == int(number)))).mappings().one_or_none()
    return None if row is None else _effect(row)


_NUMBER: Final = re.compile(r"[0-9]{1,18}")

_COLUMNS: Final = (
    *("id", "row_version", "state", "resolution", "owner", "name", "operation_id", "rule", "provider", "key", "key_no"),
    *("attempts", "probes", "intended_at", "deadline", "due", "external_id", "second_external_id", "result", "error"),
    *("consumer", "event_id", "tenant", "brand", "correlation_id"),
)


def _shown(t: Tables) -> sa.Select[Any]:
    e, c = t.effect.c, t.consumer.c
    needs = c.done_needs[e.name].label("done_needs")
    return sa.select(*[e[name] for name in _COLUMNS], needs).outerjoin_from(t.effect, t.consumer, c.name == e.consumer)


def _effect(row: sa.RowMapping) -> EffectShown:
    columns: dict[str, Any] = {str(name): value for name, value in row.items()}
    resolution = columns["resolution"]
    columns["done_needs"] = tuple(columns["done_needs"] or ())
    columns["state"] = EffectState(columns["state"])
    columns["resolution"] = None if resolution is None else Resolution(resolution)
    return EffectShown(**columns)
