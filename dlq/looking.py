"""What an operator sees of one letter: masked, or, by a verb of its own with a reason and a line in the audit, all.

Whoever stands above knows the codecs and hands over how values are read. Masking is done here, so that no caller can
forget it. A reveal's audit line is committed before anything is shown.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from ..inbox import audit
from ..inbox.audit import AuditEntry
from ..inbox.errors import TidegateError
from ..inbox.event import Record
from ..inbox.failure_rows import Failure
from ..inbox.finding import get
from ..inbox.store import Store
from . import audit_trail
from .masking import EVERYTHING, Masking, changes, masked
from .permission import Act, Permit, ask, deny
from .selection import Entry, find, published_at
from .verbs import Verb

SHOW: Final = Verb.SHOW_LETTER.value
REVEAL: Final = Verb.REVEAL.value


class ValueRefused(TidegateError):
    """A repaired value is not taken, and why; without anything of the value."""


@final
@dataclass(frozen=True, slots=True)
class ReadValue:
    """A value as it was read: its form for people, its tree (what JSON knows), what of it is masked.

    `problem` says why it is in hex where it could not be read.
    """

    form: str
    tree: Any
    masking: Masking = EVERYTHING
    problem: str | None = None

    def shown(self, *, reveal: bool) -> Any:
        """The tree as it may be seen."""
        return self.tree if reveal else masked(self.tree, self.masking)


Reads: TypeAlias = Callable[[str, Record], ReadValue]
"""(consumer, record) -> its value."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One letter with everything about it, as this look may see it. Revealed bytes that are no text are in hex."""

    entry: Entry
    revealed: bool
    published_at: datetime.datetime | None
    form: str
    value: Any
    problem: str | None
    repaired: Any
    """The value that is handled in its place; None without a repair."""
    repaired_fields: tuple[str, ...]
    """The paths that the repair changed."""
    key: str | None
    headers: tuple[tuple[str, str | None], ...]
    audit: tuple[AuditEntry, ...] = field(default=())


async def named(store: Store, permit: Permit, act: Act, reference: str) -> Entry:
    """The one letter of this name that the actor may know of, and may do this to.

    Raises:
        NotPermitted: the actor may see it, and not do this; that is audited.
        TidegateError: there is none that they may know of, or several. That they asked for others is audited.
    """
    async with store.look() as conn:
        found = (await find(conn, store.tables, [reference]))[reference]
    await deny(store, act, [entry.place for entry in found if not permit.sees.covers(entry.place)])
    known = [entry for entry in found if permit.sees.covers(entry.place)]
    if not known:
        raise TidegateError(
            f"no letter is known as {reference} (any more): `tidegate dlq list --all` shows what there is"
        )
    if len(known) > 1:
        names = ", ".join(f"{entry.id} ({entry.consumer}/{entry.handler})" for entry in known)
        raise TidegateError(f"{reference} stands for several letters: {names}; name one by its number")
    await ask(store, permit, act, known[0].place)
    return known[0]


async def look(store: Store, actor: str, reference: str, read: Reads, permit: Permit) -> Looked:
    """The letter, masked.

    Raises:
        NotPermitted: the actor may not see it; that is audited.
        TidegateError: there is none of this name, or several.
    """
    entry = await named(store, permit, Act(SHOW, actor, "to look at it"), reference)
    return await _looked(store, entry, read, permit, reveal=False)


async def reveal(store: Store, actor: str, reason: str, reference: str, read: Reads, permit: Permit) -> Looked:
    """The letter with key, value and headers. Raises as `look` does."""
    act = Act(REVEAL, actor, reason)
    entry = await named(store, permit, act, reference)
    async with store.transaction() as conn:
        await audit.write(conn, store.tables, act.line(entry.place))
    return await _looked(store, entry, read, permit, reveal=True)


async def _looked(store: Store, entry: Entry, read: Reads, permit: Permit, *, reveal: bool) -> Looked:
    async with store.look() as conn:
        row = await get(conn, store.tables, entry.id)
        published = await published_at(conn, store.tables, entry)
        lines = await audit_trail.of_letter(conn, store.tables, permit.sees, entry.id)
    if row is None:
        raise TidegateError(f"{entry.id} is gone meanwhile: it was handled")
    received = _read(entry, row.record, read, row)
    repaired = None if row.edited_value is None else read(entry.consumer, row.repaired)
    return Looked(
        entry=entry, revealed=reveal, published_at=published,
        form=received.form, value=received.shown(reveal=reveal), problem=received.problem,
        repaired=None if repaired is None else repaired.shown(reveal=reveal),
        repaired_fields=() if repaired is None else tuple(changes(received.tree, repaired.tree)),
        key=_bytes(row.key, reveal), headers=tuple((n, _bytes(v, reveal)) for n, v in row.record.headers),
        audit=tuple(lines),
    )  # fmt: skip


def _read(entry: Entry, record: Record, read: Reads, row: Failure) -> ReadValue:
    return ReadValue("erased", None) if row.redacted_at is not None else read(entry.consumer, record)


def _bytes(value: bytes | None, reveal: bool) -> str | None:
    """Bytes as text where they are text, else in hex; None stays None."""
    if value is None:
        return None
    if not reveal:
        return "<bytes>"
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"
    return text if text.isprintable() else f"hex:{value.hex()}"
