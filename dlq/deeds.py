"""What an operator does to letters besides replaying them: discard, cancel, redact.

| deed | to what | becomes | its key |
|---|---|---|---|
| discard | dead, or queued for a retry | discarded: never run again, remembered as handled | goes on |
| cancel | queued: a retry or a replay that waits | dead (`cancelled`), with a letter; it may be replayed | goes on |
| redact | dead, discarded, or a repeat of one | the same, without key, value, headers and message | stays as it was |

None of them touches an event of which a call may be under way: what became of that call is said first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, failure, outbox, repairs
from ..inbox.clock import SystemClock
from ..inbox.event import Record
from ..inbox.failure_rows import Failure, Verdict
from ..inbox.finding import failure_of
from ..inbox.outcome import Dead, FailureState, Reason
from ..inbox.record_bytes import decode_headers
from ..inbox.store import Store
from ..inbox.tables import Tables
from .acting import Deed, Errand
from .burial import Burial
from .letter import Letter, emptied, read_letter
from .permission import Act, Permit, Place, ask_verb, common_place
from .selection import Entry, Filter
from .verbs import Verb

LETTERS_MAX: Final = 100
"""Rows with their payloads in one transaction: at a megabyte each they still fit into memory."""

_CALL: Final = "a call of it may be under way: wait for its end, or `tidegate review` it"
_REVIEW: Final = "its outcome is unknown: say what became of it with `tidegate review resolve`"
_LINKED: Final = "it is a repeat and ends with its first one"


def discarding() -> Deed:
    """Letters that nobody wants any more."""
    return Deed(Verb.DISCARD.value, _keeps_from_discard, _discard)


def _keeps_from_discard(entry: Entry) -> str | None:
    if entry.state is FailureState.QUEUED and entry.effect_id is not None:
        return _CALL
    return {
        FailureState.DISCARDED: "it was discarded already",
        FailureState.UNKNOWN: _REVIEW,
        FailureState.LINKED: _LINKED,
    }.get(entry.state)


async def _discard(conn: AsyncConnection, t: Tables, fit: Sequence[Entry]) -> frozenset[int]:
    return await failure.discard(conn, t, [(entry.id, entry.row_version) for entry in fit])


def cancelling(why: str) -> Deed:
    """Retries and replays that wait; `why` is the operator's reason, which the letter tells."""

    async def carry_out(conn: AsyncConnection, t: Tables, fit: Sequence[Entry]) -> frozenset[int]:
        return await _cancel(conn, t, fit, Dead(Reason.CANCELLED, f"cancelled: {why}"))

    return Deed(Verb.CANCEL.value, _keeps_from_cancel, carry_out, rows_max=LETTERS_MAX)


def _keeps_from_cancel(entry: Entry) -> str | None:
    if entry.state is not FailureState.QUEUED:
        return f"it is {entry.state.value}: no retry of it waits"
    return _CALL if entry.effect_id is not None else None


async def _cancel(conn: AsyncConnection, t: Tables, fit: Sequence[Entry], dead: Dead) -> frozenset[int]:
    """Lock order 2, 6, 7: all lanes first, then row by row, then the letters."""
    rows, names = await _rows(conn, t, fit), {entry.id: (entry.consumer, entry.handler) for entry in fit}
    locked = await failure.lock_lanes(conn, t, [(entry.id, entry.row_version) for entry in fit])
    clock, done, letters = SystemClock(), set[int](), list[outbox.NewOutgoing]()
    for row in rows:
        verdict, now = Verdict.of(dead), clock.now()
        seen = (row.id, row.row_version)
        if await failure.bury(conn, t, seen, verdict, attempts=row.attempts, now=now, locked=locked):
            consumer, handler = names[row.id]
            letters.append(Burial(consumer, clock).letter_again(row, handler, dead, row.attempts))
            done.add(row.id)
    await outbox.put(conn, t, letters)
    return frozenset(done)


async def _rows(conn: AsyncConnection, t: Tables, fit: Sequence[Entry]) -> list[Failure]:
    """As they stand, of the versions that were seen."""
    f, versions = t.failure, {entry.id: entry.row_version for entry in fit}
    found = await conn.execute(sa.select(f).where(f.c.id.in_(sorted(versions))).order_by(f.c.id))
    return [row for row in map(failure_of, found.mappings()) if row.row_version == versions[row.id]]


def redacting() -> Deed:
    """Payloads that must not be kept. Hashes, ids and the audit stay; the topic's copy ends with its retention."""
    return Deed(Verb.REDACT.value, _keeps_from_redact, _redact, rows_max=LETTERS_MAX)


def _keeps_from_redact(entry: Entry) -> str | None:
    if entry.redacted_at is not None:
        return "its payload was erased already"
    if entry.state is FailureState.QUEUED:
        return "it waits to be run: cancel or discard it first"
    return _REVIEW if entry.state is FailureState.UNKNOWN else None


async def _redact(conn: AsyncConnection, t: Tables, fit: Sequence[Entry]) -> frozenset[int]:
    """Lock order 2, 6, 7: the rows, then every letter that was written of them."""
    done = await repairs.redact(conn, t, [(entry.id, entry.row_version) for entry in fit])
    o = t.outbox.c
    await empty_letters(conn, t, o.failure_id.in_(sorted(done)))
    return done


async def empty_letters(conn: AsyncConnection, t: Tables, *which: sa.ColumnElement[bool]) -> int:
    """Lock order 7: letters in the outbox keep their headers and lose key, value and the record's own headers."""
    o = t.outbox.c
    chosen: list[Any] = [o.id, o.topic, o.key, o.payload, o.headers]
    kept = sa.or_(o.key.is_not(None), o.payload.is_not(None))
    found = await conn.execute(sa.select(*chosen).where(o.kind == "letter", kept, *which).order_by(o.id))
    n = 0
    for row in found.all():
        letter = emptied(Record(row.topic, 0, 0, row.key, row.payload, decode_headers(row.headers)))
        await repairs.redact_message(conn, t, row.id, letter.headers)
        n += 1
    return n


async def redact_leftovers(store: Store, errand: Errand, permit: Permit) -> int:
    """Saved letters of a key whose events were handled since: they have no row any more. How many there are, or were.

    Raises:
        NotPermitted: the actor may do this nowhere.
    """
    wanted, o = errand.filter, store.tables.outbox.c
    assert wanted is not None, "leftovers are found by their key"
    assert wanted.key is not None, "leftovers are found by their key"
    of = [o.kind == "letter", o.key == wanted.key]
    if wanted.consumer is not None:
        of.append(o.consumer == wanted.consumer)
    act = Act(Verb.REDACT.value, errand.actor, errand.reason, {"filter": str(wanted), "step": "letters without a row"})
    await ask_verb(store, permit, act)
    reach = permit.reach(Verb.REDACT)
    async with store.look() as conn:
        chosen = sa.select(o.id, o.topic, o.headers).where(*of)
        letters = (await conn.execute(chosen)).all()
    found = [(row.id, read_letter(Record(row.topic, 0, 0, None, None, decode_headers(row.headers)))) for row in letters]
    mine = [(number, place_of_letter(letter)) for number, letter in found if _is_of(letter, wanted)]
    ids = [number for number, place in mine if reach.covers(place)]
    if errand.dry_run or not ids:
        return len(ids)
    async with store.transaction() as conn:
        n = await empty_letters(conn, store.tables, o.id.in_(ids))
        places = [place for _, place in mine if reach.covers(place)]
        await audit.write(conn, store.tables, act.line(common_place(places)))
    return n


def place_of_letter(letter: Letter) -> Place:
    """Where a saved letter without a row is, as it says itself: the house wrote it."""
    return Place(letter.consumer or "", letter.handler or "", letter.tenant, letter.brand)


def _is_of(letter: Letter, wanted: Filter) -> bool:
    pairs = ((wanted.tenant, letter.tenant), (wanted.brand, letter.brand), (wanted.handler, letter.handler))
    return all(asked is None or (asked or None) == told for asked, told in pairs)
