"""How far a caller's word goes: grants of roles, by tenant, brand, consumer and handler. Nothing is allowed by default.

No IO; time is an argument. A reach is the union of what several grants cover. It answers for one place, for a whole
handler or topic, and for rows in SQL, by the same rule, so that what is not listed is not counted and not acted on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import sqlalchemy as sa

from .verbs import ROLES, VERBS, Permission, Role, Verb

EVERY: Final = None
"""In a grant: not limited to certain names."""

NONE: Final = ""
"""In a grant's tenants or brands: what belongs to no tenant, or to no brand."""


SEVERAL: Final = "*"
"""In a place: of several, or of all. No policy can name it, so only a grant without limits covers it."""


@final
@dataclass(frozen=True, slots=True)
class Place:
    """What an act is about, as a policy and the audit see it."""

    consumer: str
    handler: str = ""
    tenant: str | None = None
    brand: str | None = None
    failure_id: int | None = None
    event_id: bytes | None = None
    correlation_id: str = ""
    operation_id: str = ""


@final
@dataclass(frozen=True, slots=True)
class Whole:
    """All of a handler, of a consumer (`handler` None), or of everything: whatever tenant and brand."""

    consumer: str | None = None
    handler: str | None = None

    @property
    def place(self) -> Place:
        """As the audit sees it."""
        return Place(self.consumer or SEVERAL, self.handler or SEVERAL, SEVERAL, SEVERAL)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A role within names; None is every name. `""` among tenants or brands: what has none."""

    role: Role
    tenants: frozenset[str] | None
    brands: frozenset[str] | None = EVERY
    consumers: frozenset[str] | None = EVERY
    handlers: frozenset[str] | None = EVERY

    def covers(self, place: Place) -> bool:
        """Whether one thing in this place is within it."""
        return (
            _within(self.tenants, place.tenant or NONE)
            and _within(self.brands, place.brand or NONE)
            and _within(self.consumers, place.consumer)
            and _within(self.handlers, place.handler)
        )

    def touches(self, consumer: str, handler: str | None) -> bool:
        """Whether anything of this handler, or of this consumer, is within it."""
        return _within(self.consumers, consumer) and (handler is None or _within(self.handlers, handler))

    def covers_whole(self, whole: Whole) -> bool:
        """Whether everything of it is within it, of all tenants and brands."""
        names = ((self.consumers, whole.consumer), (self.handlers, whole.handler))
        return (
            self.tenants is None
            and self.brands is None
            and all(mine is None or (name is not None and name in mine) for mine, name in names)
        )


def _within(names: frozenset[str] | None, name: str) -> bool:
    return names is None or name in names


@final
@dataclass(frozen=True, slots=True)
class Columns:
    """Where a table has what a reach is told by."""

    consumer: sa.ColumnElement[Any]
    handler: sa.ColumnElement[Any]
    tenant: sa.ColumnElement[Any]
    brand: sa.ColumnElement[Any]


@final
@dataclass(frozen=True, slots=True)
class Reach:
    """Everything that some grants cover; without any: nothing."""

    grants: tuple[Grant, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.grants)

    def covers(self, place: Place) -> bool:
        """Whether one thing in this place is within it."""
        return any(grant.covers(place) for grant in self.grants)

    def covers_whole(self, whole: Whole) -> bool:
        """Whether a single grant covers all of it; several of them never add up to a whole."""
        return any(grant.covers_whole(whole) for grant in self.grants)

    def touches(self, whole: Whole) -> bool:
        """Whether anything of it is within it, of whatever tenant; of everything: only where it is not limited."""
        if whole.consumer is None:
            return self.covers_whole(whole)
        return any(grant.touches(whole.consumer, whole.handler) for grant in self.grants)

    def rows(self, columns: Columns) -> sa.ColumnElement[bool]:
        """The same for rows: `covers`, as a condition."""
        if any(grant.covers_whole(Whole()) for grant in self.grants):
            return sa.true()
        return sa.or_(sa.false(), *(_condition(grant, columns) for grant in self.grants))


EVERYWHERE: Final = Reach((Grant(role=Role.ADMIN, tenants=EVERY),))
"""Without any limit: for the house itself."""


def _condition(grant: Grant, columns: Columns) -> sa.ColumnElement[bool]:
    parts: list[sa.ColumnElement[bool]] = []
    for names, column in ((grant.tenants, columns.tenant), (grant.brands, columns.brand)):
        if names is not None:
            parts.append(sa.func.coalesce(column, NONE).in_(sorted(names)))
    for names, column in ((grant.consumers, columns.consumer), (grant.handlers, columns.handler)):
        if names is not None:
            parts.append(column.in_(sorted(names)))
    return sa.and_(sa.true(), *parts)


@final
@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, by the name that the audit gets, and what they were granted."""

    actor: str
    grants: tuple[Grant, ...] = ()

    def reach(self, verb: Verb) -> Reach:
        """Where they may do this."""
        return self.reach_of(VERBS[verb].needs)

    def reach_of(self, permission: Permission) -> Reach:
        """Where they hold this permission."""
        return Reach(tuple(grant for grant in self.grants if permission in ROLES[grant.role]))

    def __call__(self, actor: str, verb: str, place: Place) -> bool:
        """Whether they may do this to one thing in this place; what is no verb nobody may."""
        return verb in set(Verb) and self.reach(Verb(verb)).covers(place)

    @property
    def sees(self) -> Reach:
        """Where they may look at all: elsewhere nothing is known to them."""
        return self.reach_of(Permission.VIEW)


def unlimited(actor: str) -> Caller:
    """Somebody who may do everything everywhere: where no policy is configured, and for the house itself."""
    return Caller(actor, EVERYWHERE.grants)
