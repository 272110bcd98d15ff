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
from ..inbox.safe_text import Detail
from ..inbox.store import Store
from ..inbox.tables import Tables
from .permission import Act, Permit, ask_named, ask_verb, common_place
from .reach import Place
from .selection import Entry, Filter, entries, find
from .verbs import Verb

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
    details: Mapping[str, Detail] = field(default_factory=dict[str, Detail])
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
    return entry.place


async def steps(store: Store, deed: Deed, errand: Errand, permit: Permit) -> AsyncGenerator[Step]:
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


async def step(store: Store, deed: Deed, errand: Errand, permit: Permit, after: int = 0) -> Step:
    """The letters behind the row number `after`, at most `deed.rows_max` of them."""
    async with store.look() as conn:
        page = await chosen(conn, store.tables, Verb(deed.verb), errand, permit, after, deed.rows_max)
    await ask_errand(store, Act(deed.verb, errand.actor, errand.reason, deed.details), errand, permit, page)
    mine, missing, more = page.found, page.missing, page.more
    last_id = max((entry.id for entry in mine), default=after)
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


class Chosen(NamedTuple):
    """What an errand names or its filter meets, what it names without there being any, and whether there is more."""

    found: list[Entry]
    missing: list[Refusal]
    more: bool
    unseen: list[Place]
    """Where things are that were named, and that the actor may not know of."""


async def chosen(
    conn: AsyncConnection, t: Tables, verb: Verb, errand: Errand, permit: Permit, after: int, rows_max: int
) -> Chosen:
    """The letters behind `after`, of a filter only those that the actor may do this to."""
    if errand.filter is not None:
        found = await entries(conn, t, errand.filter, within=permit.reach(verb), after=after, limit=rows_max + 1)
        return Chosen(found[:rows_max], [], len(found) > rows_max, [])
    seen: dict[int, Entry] = {}
    missing, unseen = list[Refusal](), list[Place]()
    for name, rows in (await find(conn, t, errand.references)).items():
        known = [entry for entry in rows if permit.sees.covers(entry.place)]
        seen |= {entry.id: entry for entry in known if entry.id > after}
        missing += [] if known else [Refusal(name, "no letter is known under this id")]
        unseen += [entry.place for entry in rows if entry not in known]
    ordered = [seen[number] for number in sorted(seen)]
    first = after == 0
    return Chosen(ordered[:rows_max], missing if first else [], len(ordered) > rows_max, unseen if first else [])


async def ask_errand(store: Store, act: Act, errand: Errand, permit: Permit, chosen: Chosen) -> None:
    """Of what was named, for each; of a filter whether the actor may do this anywhere. Raises NotPermitted."""
    if errand.filter is not None:
        await ask_verb(store, permit, act)
    else:
        await ask_named(store, permit, act, [*chosen.unseen, *(entry.place for entry in chosen.found)])


def _act(deed: Deed, errand: Errand, step: Step) -> tuple[Act, Place]:
    """For the audit: with the letter's own fields where there is only one."""
    details: dict[str, Detail] = {
        **deed.details,
        "filter": None if errand.filter is None else str(errand.filter),
        "read": step.read,
        "done": len(step.done),
        "refused": len(step.refused),
        "failure_ids": tuple(entry.id for entry in step.done),
    }
    return Act(deed.verb, errand.actor, errand.reason, details), common_place(entry.place for entry in step.done)
