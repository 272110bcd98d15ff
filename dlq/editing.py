"""Repairs a letter's value: the repaired bytes stand beside the received ones, which stay.

A repaired letter is still dead. Its replay runs under an identity of its own, so that nobody takes it for the event
that was received; the operation id stays. The audit says which fields were changed, by their paths, and the digests of
both values; neither value, nor what the editor was given, ever leaves the row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from ..inbox import audit, repairs
from ..inbox.event import Record
from ..inbox.finding import get
from ..inbox.outcome import FailureState
from ..inbox.store import Store
from .acting import CHANGED
from .looking import Reads, ReadValue, ValueRefused, named
from .masking import changes
from .permission import Act, Permit, ask
from .selection import Entry
from .verbs import Verb

EDIT: Final = Verb.EDIT.value


@final
@dataclass(frozen=True, slots=True)
class Editable:
    """A letter that may be repaired: as it was seen, with the record as it is handled now."""

    entry: Entry
    received: Record
    record: Record


@final
@dataclass(frozen=True, slots=True)
class Edited:
    """What a repair changes; on a dry run nothing was."""

    entry: Entry
    dry_run: bool
    fields: tuple[str, ...]
    """Paths of the fields that differ from what was received; empty where the repair was taken back."""
    edit_id: str | None


Check = Callable[[str, Record, bytes], ReadValue]
"""(consumer, record, repaired value) -> the value as the codec reads it; raises ValueRefused."""


async def editable(store: Store, actor: str, reason: str, reference: str, permit: Permit) -> Editable:
    """The letter with its value in the open, for an editor. That it was opened stands in the audit.

    Raises:
        NotPermitted: the actor may not; that is audited.
        ValueRefused: it is no letter that can be repaired.
        TidegateError: there is none of this name, or several.
    """
    act = Act(EDIT, actor, reason, {"step": "opened"})
    entry = await named(store, permit, act, reference)
    if (cause := _obstacle(entry)) is not None:
        raise ValueRefused(f"{entry.id}: {cause}")
    async with store.transaction() as conn:
        row = await get(conn, store.tables, entry.id)
        if row is None or row.row_version != entry.row_version:
            raise ValueRefused(f"{entry.id}: {CHANGED}")
        await audit.write(conn, store.tables, act.line(entry.place))
    return Editable(entry, row.record, row.repaired)


def _obstacle(entry: Entry) -> str | None:
    if entry.state is not FailureState.DEAD:
        return f"it is {entry.state.value}: only a dead letter is repaired"
    if entry.redacted_at is not None:
        return "its payload was erased"
    return "it is a tombstone: there is no value to repair" if entry.value_bytes is None else None


async def edit(
    store: Store, actor: str, reason: str, opened: Editable, value: bytes, read: Reads, check: Check,
    permit: Permit, *, dry_run: bool = True,
) -> Edited:  # fmt: skip
    """Put `value` beside what was received, or take the repair back where it is the received value itself.

    Raises:
        NotPermitted: the actor may not; that is audited.
        ValueRefused: the codec does not take it, it changes nothing, or the letter was changed meanwhile.
    """
    entry, received = opened.entry, opened.received
    if value == opened.record.value:
        raise ValueRefused("nothing was changed")
    after = check(entry.consumer, received, value)
    takes_back = value == received.value
    fields = () if takes_back else tuple(changes(read(entry.consumer, received).tree, after.tree))
    edit_id = None if takes_back else repairs.edit_id16(entry.event_id, value)
    act = Act(EDIT, actor, reason, {
        "step": "taken back" if takes_back else "repaired", "fields": ",".join(fields),
        "received_sha256": _digest(received.value), "repaired_sha256": None if takes_back else _digest(value),
        "edit_id": None if edit_id is None else edit_id.hex(),
    })  # fmt: skip
    await ask(store, permit, act, entry.place)
    answer = Edited(entry, dry_run, fields, None if edit_id is None else edit_id.hex())
    if dry_run:
        return answer
    async with store.transaction() as conn:
        seen = (entry.id, entry.row_version)
        if edit_id is None:
            changed = await repairs.unedit(conn, store.tables, seen)
        else:
            changed = await repairs.edit(conn, store.tables, seen, value, edit_id)
        if not changed:
            raise ValueRefused(f"{entry.id}: {CHANGED}")
        await audit.write(conn, store.tables, act.line(entry.place))
    return answer


def _digest(value: bytes | None) -> str:
    return hashlib.sha256(value or b"").hexdigest()
