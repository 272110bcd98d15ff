"""An act on letters, in steps of bounded size: what it would do, then done by row version with its audit line.

A dry run is the default. Each step is one transaction with one line in the audit, or nothing of both; so is what a
stop between two steps leaves. A letter that a worker or another person changed meanwhile is refused, never changed
over, and what was done already is refused the next time: a second run does nothing twice. Letters that the actor has
no permission for are as good as not there, where a filter meets them; named, they are a denial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit
from ..inbox.errors import TidegateError
from ..inbox.safe_text import Scalar
from ..inbox.store import Store
from ..inbox.tables import Tables
from .permission import Act, Permit, Place, ask, everybody
from .selection import Entry, Filter, entries, find

CHANGED: Final = "it was changed meanwhile"

ROWS_MAX: Final = 1_000
"""Rows in one transaction, which its audit line names: a second of work, and no lock is held for longer."""


class Refusal(NamedTuple):
    """A letter that nothing was done to, and why."""

    reference: str
    cause: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """Which letters somebody means, who it is and why: by `references` (see `find`) or by `filter`, not both."""

    actor: str
    reason: str
    references: tuple[str, ...] = ()
    filter: Filter | None = None
    dry_run: bool = True

    def __post_init__(self) -> None:
        if not self.actor or not self.reason.strip():
            raise TidegateError("it needs somebody who asks for it and a reason why")
        if bool(self.references) == (self.filter is not None):
            raise TidegateError("say which letters: either by their ids or by a filter")


@final
@dataclass(frozen=True, slots=True)
class Deed:
    """What is done to letters: its name in permission and audit, what it refuses, and how it is done to the rest.

    `carry_out` gets entries without an obstacle and gives the ids of those that it was done to.
    """

    verb: str
    obstacle: Callable[[Entry], str | None]
    carry_out: Callable[[AsyncConnection, Tables, Sequence[Entry]], Awaitable[frozenset[int]]]
    details: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    rows_max: int = ROWS_MAX


@final
@dataclass(frozen=True, slots=True)
class Step:
    """What one transaction did, or would do on a dry run."""

    dry_run: bool
    read: int
    done: tuple[Entry, ...]
    refused: tuple[Refusal, ...]
    more: bool = False
    last_id: int = 0

    @property
    def by_reason(self) -> Mapping[str, int]:
        """How many it was done to had which reason."""
        return Counter(entry.reason for entry in self.done)

    @property
    def by_cause(self) -> Mapping[str, int]:
        """How many were refused for which cause."""
        return Counter(refusal.cause for refusal in self.refused)


def place_of(entry: Entry) -> Place:
    """Where a letter is, for permission and audit."""
    e = entry
    return Place(e.consumer, e.handler, e.tenant, e.brand, e.id, e.event_id, e.correlation_id, e.operation_id)


async def steps(store: Store, deed: Deed, errand: Errand, permit: Permit = everybody) -> AsyncGenerator[Step]:
    """All of it, one transaction after the other; on a dry run too, so that its count is the whole count.

    Raises:
        NotPermitted: the actor may not, of one that was named, or of all that the filter meets; that is audited.
    """
    after = 0
    while True:
        done = await step(store, deed, errand, permit, after)
        yield done
        if not done.more:
            return
        after = done.last_id


async def step(store: Store, deed: Deed, errand: Errand, permit: Permit = everybody, after: int = 0) -> Step:
    """The letters behind the row number `after`, at most `deed.rows_max` of them."""
    async with store.look() as conn:
        found, missing, more = await chosen(conn, store.tables, errand, after, deed.rows_max)
    last_id = max((entry.id for entry in found), default=after)
    mine = await _permitted(store, deed, errand, permit, found)
    judged = [(entry, deed.obstacle(entry)) for entry in mine]
    fit = [entry for entry, cause in judged if cause is None]
    refused = missing + [Refusal(str(entry.id), cause) for entry, cause in judged if cause is not None]
    if errand.dry_run or not fit:
        return Step(errand.dry_run, len(mine), tuple(fit), tuple(refused), more, last_id)
    async with store.transaction() as conn:
        ids = await deed.carry_out(conn, store.tables, fit)
        done = tuple(entry for entry in fit if entry.id in ids)
        refused += [Refusal(str(entry.id), CHANGED) for entry in fit if entry.id not in ids]
        answer = Step(False, len(mine), done, tuple(refused), more, last_id)
        if done:
            act, place = _act(deed, errand, answer)
            await audit.write(conn, store.tables, act.line(place))
    return answer


async def chosen(
    conn: AsyncConnection, t: Tables, errand: Errand, after: int, rows_max: int
) -> tuple[list[Entry], list[Refusal], bool]:
    """What the errand names or its filter meets behind `after`, what it names in vain, and whether there is more."""
    if errand.filter is not None:
        found = await entries(conn, t, errand.filter, after=after, limit=rows_max + 1)
        return found[:rows_max], [], len(found) > rows_max
    by_reference = await find(conn, t, errand.references)
    missing = [Refusal(name, "no letter is known under this id") for name, rows in by_reference.items() if not rows]
    by_id = {entry.id: entry for rows in by_reference.values() for entry in rows if entry.id > after}
    ordered = sorted(by_id.values(), key=lambda entry: entry.id)
    return ordered[:rows_max], missing if after == 0 else [], len(ordered) > rows_max


async def _permitted(store: Store, deed: Deed, errand: Errand, permit: Permit, found: Sequence[Entry]) -> list[Entry]:
    """Those that the actor may do it to."""
    mine = [entry for entry in found if permit(errand.actor, deed.verb, place_of(entry))]
    outside = [entry for entry in found if entry not in mine]
    if outside and (errand.references or not mine):
        await ask(store, permit, Act(deed.verb, errand.actor, errand.reason, deed.details), place_of(outside[0]))
    return mine


def _act(deed: Deed, errand: Errand, step: Step) -> tuple[Act, Place]:
    """For the audit: with the letter's own fields where there is only one."""
    wanted = errand.filter or Filter()
    details: dict[str, Scalar] = {
        **deed.details,
        "filter": None if errand.filter is None else str(errand.filter),
        "read": step.read,
        "done": len(step.done),
        "refused": len(step.refused),
        "failure_ids": ",".join(str(entry.id) for entry in step.done),
    }
    only = step.done[0] if len(step.done) == 1 else None
    place = (
        place_of(only)
        if only is not None
        else Place(wanted.consumer or "", wanted.handler or "", wanted.tenant, wanted.brand)
    )
    return Act(deed.verb, errand.actor, errand.reason, details), place
