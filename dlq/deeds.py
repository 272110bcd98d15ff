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
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import failure, outbox, repairs
from ..inbox.clock import SystemClock
from ..inbox.failure_rows import Failure, Verdict
from ..inbox.finding import failure_of
from ..inbox.outcome import Dead, FailureState, Reason
from ..inbox.tables import Tables
from .acting import Deed
from .burial import Burial
from .erasing import empty_letters, erase_results_of
from .selection import Entry
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
    """Lock order 2, 6, behind it the events' calls, 7: the rows, what calls returned, every letter written of them."""
    done = await repairs.redact(conn, t, [(entry.id, entry.row_version) for entry in fit])
    await erase_results_of(conn, t, done)
    await empty_letters(conn, t, t.outbox.c.failure_id.in_(sorted(done)))
    return done
