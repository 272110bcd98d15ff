"""Letters counted by what they have in common, and the notes that operators leave on such groups.

A group's name is short enough to be typed: the first letters of what it was grouped by, and a digest of what its
letters have in common (`hre-4f0c9a1d2b`: of a handler, reason and exception). So a name says how to find its group
again, and stands for the same letters-to-come tomorrow: a note stays with its cause, not with the letters of one day.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit
from ..inbox.errors import TidegateError
from ..inbox.identity import digest16
from ..inbox.safe_text import safe_text
from ..inbox.store import Store
from ..inbox.tables import Tables
from .permission import Act, Permit, ask, ask_verb, deny
from .reach import EVERYWHERE, SEVERAL, Place, Reach, Whole
from .selection import Filter, columns, conditions, joined
from .verbs import Verb


class By(enum.StrEnum):
    """What letters are grouped by. The handler comes with its consumer."""

    HANDLER = "handler"
    REASON = "reason"
    EXCEPTION = "exception"
    TENANT = "tenant"
    HOUR = "hour"


USUAL: Final = (By.HANDLER, By.REASON, By.EXCEPTION)
"""What a cause nearly always has of its own."""

_LETTERS: Final[Mapping[By, str]] = {
    By.HANDLER: "h",
    By.REASON: "r",
    By.EXCEPTION: "e",
    By.TENANT: "t",
    By.HOUR: "o",
}

_NAME: Final = re.compile(r"(?P<by>[hreto]{1,5})-(?P<digest>[0-9a-f]{10})")

_DIGITS: Final = 10
"""40 bits: among a thousand groups the chance that two share a name is below one in a million."""

GROUPS_MAX: Final = 10_000
"""Groups that a name is looked for in: more kinds of failures nobody can look at."""

NOTE_CHARS_MAX: Final = 2_000
"""A note is a paragraph, not a page: what is longer belongs where the team writes."""

NOTES_SHOWN: Final = 20
"""The latest notes of a group."""


@final
@dataclass(frozen=True, slots=True)
class Note:
    """What somebody wrote down."""

    at: datetime.datetime
    actor: str
    text: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroup:
    """Letters that have something in common. What they were not grouped by is None; `exception_type` may be empty."""

    by: tuple[By, ...]
    consumer: str | None = None
    handler: str | None = None
    reason: str | None = None
    exception_type: str | None = None
    tenant: str | None = None
    hour: datetime.datetime | None = None
    letters: int
    oldest: datetime.datetime
    latest: datetime.datetime
    notes: tuple[Note, ...] = ()

    @property
    def name(self) -> str:
        """What a person names it by."""
        hour = "" if self.hour is None else self.hour.astimezone(datetime.UTC).isoformat()
        values: dict[By, tuple[str | None, ...]] = {
            By.HANDLER: (self.consumer, self.handler),
            By.REASON: (self.reason,),
            By.EXCEPTION: (self.exception_type,),
            By.TENANT: (self.tenant,),
            By.HOUR: (hour,),
        }
        parts = [part for by in self.by for part in values[by]]
        encoded = [b"\0" if part is None else b"\1" + part.encode("utf-8", "surrogatepass") for part in parts]
        letters = "".join(_LETTERS[by] for by in self.by)
        return f"{letters}-{digest16(b'letter-group', letters.encode(), *encoded).hex()[:_DIGITS]}"

    @property
    def filter(self) -> Filter:
        """What its letters are found by."""
        until = None if self.hour is None else self.hour + datetime.timedelta(hours=1)
        no_tenant = By.TENANT in self.by and self.tenant is None
        return Filter(
            consumer=self.consumer, handler=self.handler, reason=self.reason, exception_type=self.exception_type,
            tenant="" if no_tenant else self.tenant, since=self.hour, until=until,
        )  # fmt: skip

    @property
    def place(self) -> Place:
        """Where it is, for permission and audit."""
        tenant = self.tenant if By.TENANT in self.by else SEVERAL
        named = By.HANDLER in self.by
        return Place(
            (self.consumer or "") if named else SEVERAL, (self.handler or "") if named else SEVERAL, tenant, SEVERAL
        )


async def grouped(
    conn: AsyncConnection,
    t: Tables,
    wanted: Filter,
    by: Sequence[By] = USUAL,
    *,
    within: Reach = EVERYWHERE,
    limit: int = 100,
) -> list[LetterGroup]:
    """The largest group `within` a reach first, with its latest notes."""
    by = tuple(each for each in By if each in by)
    f, h = t.failure.c, t.handler.c
    hour = sa.func.date_trunc("hour", f.last_failed_at, "UTC")
    keys: dict[str, sa.ColumnElement[Any]] = {}
    for each in by:
        keys |= {
            By.HANDLER: {"handler_id": f.handler},
            By.REASON: {"reason": f.reason},
            By.EXCEPTION: {"exception_type": f.exception_type},
            By.TENANT: {"tenant": f.tenant},
            By.HOUR: {"hour": hour},
        }[each]
    n = sa.func.count()
    # The handler's names come after the count: a group has one handler, its letters are a million.
    inner = (
        sa.select(*[column.label(name) for name, column in keys.items()], n.label("letters"),
                  sa.func.min(f.first_failed_at).label("oldest"), sa.func.max(f.last_failed_at).label("latest"))
        .select_from(joined(t) if _asks_handler(wanted, within) else t.failure)
        .where(*conditions(t, wanted), within.rows(columns(t))).group_by(*keys.values())
        .order_by(n.desc(), *keys.values()).limit(limit).subquery()
    )  # fmt: skip
    if By.HANDLER in by:
        chosen = sa.select(inner, h.consumer, h.name.label("handler")).join_from(
            inner, t.handler, h.id == inner.c.handler_id
        )
    else:
        chosen = sa.select(inner)
    rows = (await conn.execute(chosen)).mappings().all()
    found = [LetterGroup(by=by, **{str(k): v for k, v in row.items() if k != "handler_id"}) for row in rows]
    found.sort(key=lambda group: -group.letters)
    notes = await notes_of(conn, t, [group.name for group in found if within.covers(group.place)])
    return [replace(group, notes=notes.get(group.name, ())) for group in found]


def _asks_handler(wanted: Filter, within: Reach) -> bool:
    return wanted.consumer is not None or wanted.handler is not None or not within.covers_whole(Whole())


async def named(
    conn: AsyncConnection, t: Tables, name: str, wanted: Filter | None = None, *, within: Reach = EVERYWHERE
) -> LetterGroup:
    """The group of this name among the letters `within` a reach that `wanted` matches.

    Raises:
        TidegateError: it is no group's name, or no letter is in that group (any more).
    """
    for group in await grouped(conn, t, wanted or Filter(), _by_of(name), within=within, limit=GROUPS_MAX):
        if group.name == name:
            return group
    raise _no_group(name)


def _no_group(name: str) -> TidegateError:
    return TidegateError(f"no letter is in a group {name} (any more): see `tidegate dlq groups`")


def _by_of(name: str) -> tuple[By, ...]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise TidegateError(f"{name!r} is no group's name: `tidegate dlq groups` shows them")
    return tuple(by for by in By if _LETTERS[by] in found["by"])


async def notes_of(conn: AsyncConnection, t: Tables, names: Collection[str]) -> dict[str, tuple[Note, ...]]:
    """The latest notes of each group, the oldest of them first; groups without any are left out."""
    c = t.note.c
    rank = sa.func.row_number().over(partition_by=c.group_name, order_by=c.id.desc()).label("rank")
    latest = (
        sa.select(c.id, c.group_name, c.at, c.actor, c.text, rank).where(c.group_name.in_(sorted(names))).subquery()
    )
    rows = await conn.execute(sa.select(latest).where(latest.c.rank <= NOTES_SHOWN).order_by(latest.c.id))
    notes: dict[str, list[Note]] = {}
    for row in rows:
        notes.setdefault(row.group_name, []).append(Note(row.at, row.actor, row.text))
    return {name: tuple(those) for name, those in notes.items()}


async def note(store: Store, name: str, text: str, actor: str, reason: str, permit: Permit) -> LetterGroup:
    """Leave a note on a group, and give the group. `reason` stands in the audit, `text` beside the group.

    Raises:
        NotPermitted: the actor may not, in all of the group: whoever sees all of it reads the note. That is audited.
        TidegateError: there is no such group, the note says nothing or too much, or it is not said why.
    """
    kept = safe_text(text.strip(), NOTE_CHARS_MAX + 1)
    if not 0 < len(kept) <= NOTE_CHARS_MAX:
        raise TidegateError(f"a note has 1 to {NOTE_CHARS_MAX} characters")
    act = Act(Verb.NOTE.value, actor, reason, {"group": name})
    await ask_verb(store, permit, act)
    async with store.look() as conn:
        group = await named(conn, store.tables, name)
        mine = await grouped(conn, store.tables, Filter(), group.by, within=permit.sees, limit=GROUPS_MAX)
    if name not in [each.name for each in mine]:
        await deny(store, act, [group.place])
        raise _no_group(name)
    await ask(store, permit, act, group.place, is_known=True)
    async with store.transaction() as conn:
        await conn.execute(sa.insert(store.tables.note).values(group_name=name, actor=actor, text=kept))
        await audit.write(conn, store.tables, act.line(group.place))
    return group
