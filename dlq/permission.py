"""Every operator's act stands behind one gate: it is asked for, allowed or denied, and written down either way.

The gate opens the act's transaction and hands out a warrant for it. An allowed act's audit line goes into that very
transaction; an act that ends without one is our bug and is rolled back. A denial is rolled back first and written in a
transaction of its own before the error is raised, so that no rollback takes it away. What if it stops between the two?
Then nothing was done, and that it was tried is not known: as if the process had stopped a moment earlier.

What lies outside a caller's reach does not exist for them: it is not listed and not counted, and a reference to it is
as unknown as one that nobody ever had. That they asked for it stands in the audit, in that place's own scope.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit
from ..inbox.audit import AuditLine
from ..inbox.errors import EXIT_NOT_PERMITTED, TidegateError
from ..inbox.safe_text import Detail
from ..inbox.store import Store
from ..inbox.tables import Tables
from .reach import SEVERAL, Caller, Reach, Whole, unlimited
from .reach import Place as Place
from .verbs import ROLES, VERBS, Rule, Verb


class NotPermitted(TidegateError):
    """The policy says no; that it did stands in the audit."""

    exit_code = EXIT_NOT_PERMITTED


class NotKnown(TidegateError):
    """There is no such thing, as far as the caller may know."""


Permit: TypeAlias = Caller
"""What a service is given that asks for each letter by itself: (actor, verb, place) -> whether they may."""

everybody: Final = unlimited("")
"""Whoever can reach the database may: where no policy is configured."""


@final
@dataclass(frozen=True, slots=True)
class Act:
    """An operator's act: a verb, who does it and why, with details for the audit (never payload)."""

    verb: str
    actor: str
    reason: str
    details: Mapping[str, Detail] = field(default_factory=dict[str, Detail])

    def __post_init__(self) -> None:
        if not self.actor or not self.reason.strip():
            raise TidegateError(f"{self.verb}: it needs somebody who does it and a reason why")

    def line(self, place: Place, *, allowed: bool = True) -> AuditLine:
        """Its line in the audit."""
        return _line(self.actor, self.verb, self.reason, place, self.details, allowed=allowed)


async def ask(store: Store, permit: Permit, act: Act, place: Place, *, is_known: bool = False) -> None:
    """Before the act, outside any transaction. `is_known`: they see a part of it, so that it need not be denied.

    Raises:
        NotPermitted: they may not; the denial is written by then.
        NotKnown: they may not even see it; that they tried is written too.
    """
    if permit(act.actor, act.verb, place):
        return
    await deny(store, act, [place])
    if not is_known and not permit.sees.covers(place):
        raise NotKnown("nothing is known under this name")
    raise _not_permitted(act.actor, Verb(act.verb), place)


async def ask_verb(store: Store, permit: Permit, act: Act) -> None:
    """The same of an act on whatever a filter meets: whether they may do it anywhere."""
    if not permit.reach(Verb(act.verb)):
        await deny(store, act, [Whole().place])
        raise _not_permitted(act.actor, Verb(act.verb), Whole().place)


async def ask_named(store: Store, permit: Permit, act: Act, places: Collection[Place]) -> None:
    """The same of an act on what was named. What they may not even see is written down, and not told.

    Raises:
        NotPermitted: they may see one of them, and not do this to it.
    """
    unseen = [place for place in places if not permit.sees.covers(place)]
    await deny(store, act, unseen)
    for place in places:
        if permit.sees.covers(place):
            await ask(store, permit, act, place)
    if unseen and not permit.reach(Verb(act.verb)):
        raise _not_permitted(act.actor, Verb(act.verb), Whole().place)  # which is written already, with its place
    await ask_verb(store, permit, act)


async def deny(store: Store, act: Act, places: Sequence[Place]) -> None:
    """A transaction of its own: the audit says that this was tried, and denied."""
    if places:
        async with store.transaction() as conn:
            for place in places:
                await audit.write(conn, store.tables, act.line(place, allowed=False))


@final
@dataclass(frozen=True, slots=True)
class Warrant:
    """One act that was asked for, in its open transaction: what it may touch, and its lines in the audit."""

    conn: AsyncConnection
    t: Tables
    verb: Verb
    caller: Caller
    reason: str
    denials: list[AuditLine]
    written: list[int] = field(default_factory=list[int])

    @property
    def reach(self) -> Reach:
        """Where the caller may do this: rows elsewhere are left out of it."""
        return self.caller.reach(self.verb)

    @property
    def rule(self) -> Rule:
        """What is true of the verb."""
        return VERBS[self.verb]

    def knows(self, place: Place) -> bool:
        """Whether the caller may know that there is something here; that they asked where not is written down."""
        known = self.caller.sees.covers(place)
        if not known:
            self._deny(place)
        return known

    def knows_whole(self, whole: Whole) -> bool:
        """The same for all of a handler: whether the caller may see anything of it."""
        known = self.caller.sees.touches(whole)
        if not known:
            self._deny(whole.place)
        return known

    def require(self, place: Place) -> None:
        """Raises NotPermitted where the caller may not do this to one thing in this place."""
        if not self.reach.covers(place):
            self._deny(place)
            raise _not_permitted(self.caller.actor, self.verb, place)

    def require_whole(self, whole: Whole) -> None:
        """Raises NotPermitted where the caller may not do this to all of it, whatever tenant and brand."""
        if not self.reach.covers_whole(whole):
            self._deny(whole.place)
            raise _not_permitted(self.caller.actor, self.verb, whole.place)

    async def write(self, place: Place, details: Mapping[str, Detail] = audit.NO_DETAILS) -> None:
        """Lock order 7: the act's line, with details that never hold payload."""
        self.written.append(await audit.write(self.conn, self.t, self._line(place, details, allowed=True)))

    def _deny(self, place: Place) -> None:
        self.denials.append(self._line(place, {}, allowed=False))

    def _line(self, place: Place, details: Mapping[str, Detail], *, allowed: bool) -> AuditLine:
        return _line(self.caller.actor, self.verb, self.reason, place, details, allowed=allowed)


@final
@dataclass(frozen=True, slots=True)
class Gate:
    """Where one caller's acts on one store are asked for."""

    store: Store
    caller: Caller

    @asynccontextmanager
    async def asked(
        self, verb: Verb, reason: str = "", *, dry_run: bool = False, named: bool = False
    ) -> AsyncGenerator[Warrant]:
        """A transaction for this act. On a `dry_run` it changes nothing, and needs no line and no reason.

        `named`: the service asks for each thing that was named, so that a denial says in the audit which one it was.

        Raises:
            NotPermitted: the caller may do this nowhere, or not to what they named; that is audited by then.
            TidegateError: the verb leaves a line in the audit, and no reason is given for it.
        """
        rule = VERBS[verb]
        if rule.is_audited and not dry_run and not reason.strip():
            raise TidegateError(f"{verb}: it needs a reason why, for the audit")
        denials: list[AuditLine] = []
        try:
            if not self.caller.reach(verb) and not (named and self.caller.sees):
                raise self._nowhere(verb, reason, denials)
            async with self.store.transaction() as conn:
                warrant = Warrant(conn, self.store.tables, verb, self.caller, reason, denials)
                yield warrant
                if not warrant.reach:
                    raise self._nowhere(verb, reason, denials)
                assert dry_run or warrant.written or not rule.is_audited, f"{verb} leaves no line in the audit"
                await self._write(conn, denials)
        except TidegateError:
            if denials:
                async with self.store.transaction() as conn:
                    await self._write(conn, denials)
            raise

    def _nowhere(self, verb: Verb, reason: str, denials: list[AuditLine]) -> NotPermitted:
        denials.append(_line(self.caller.actor, verb, reason, Whole().place, {}, allowed=False))
        return _not_permitted(self.caller.actor, verb, Whole().place)

    async def _write(self, conn: AsyncConnection, lines: list[AuditLine]) -> None:
        for line in lines:
            await audit.write(conn, self.store.tables, line)


def common_place(places: Iterable[Place]) -> Place:
    """What all of them have in common, for the one line of an act on many; their own line's place where it is one."""
    distinct = list(places)
    return distinct[0] if len(distinct) == 1 else shared_place(distinct)


class Placed(Protocol):
    """What has the names of a place: one, or a letter."""

    @property
    def consumer(self) -> str: ...
    @property
    def handler(self) -> str: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def brand(self) -> str | None: ...
    @property
    def correlation_id(self) -> str: ...
    @property
    def operation_id(self) -> str: ...


def shared_place(things: Collection[Placed]) -> Place:
    """What many have in common; no one's own ids."""

    def shared(name: str, otherwise: str) -> Any:
        values = {getattr(thing, name) for thing in things}
        return values.pop() if len(values) == 1 else otherwise

    return Place(
        *(shared(name, SEVERAL) for name in ("consumer", "handler", "tenant", "brand")),
        correlation_id=shared("correlation_id", ""),
        operation_id=shared("operation_id", ""),
    )


def _line(
    actor: str, verb: str, reason: str, place: Place, details: Mapping[str, Detail], *, allowed: bool
) -> AuditLine:
    why: dict[str, Detail] = {"why": reason} if reason else {}
    return AuditLine(
        act=verb,
        actor=actor,
        allowed=allowed,
        consumer=place.consumer,
        handler=place.handler,
        failure_id=place.failure_id,
        event_id=place.event_id,
        correlation_id=place.correlation_id,
        operation_id=place.operation_id,
        tenant=place.tenant,
        brand=place.brand,
        details={**why, **details},
    )


def _not_permitted(actor: str, verb: Verb, place: Place) -> NotPermitted:
    where = "" if place.consumer == SEVERAL else f" in {place.consumer or '-'}/{place.handler or '(none)'}"
    needs = VERBS[verb].needs
    roles = " or ".join(sorted(role.value for role, held in ROLES.items() if needs in held))
    return NotPermitted(
        f"{actor} may not {VERBS[verb].says}{where}: it takes the role {roles} there (permission.policy_file)"
    )
