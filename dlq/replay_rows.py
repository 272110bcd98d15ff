"""Puts rows of the inbox back into its queue: one transaction, with its guards, its journal's count and its audit line.

The worker that owns a row's home takes it up like any other, so nothing is sent anywhere and nothing is handled twice.
What another operator or a worker changed meanwhile is left alone, never overwritten, so that running the same replay
twice, or two at once, queues each letter once. What if the process stops before the commit? Nothing was queued,
counted or audited.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, claim, failure
from ..inbox.audit import AuditLine
from ..inbox.safe_text import Detail
from ..inbox.tables import Tables
from .permission import Act, shared_place
from .reach import EVERYWHERE, Place, Reach
from .replay_order import (
    CHANGED,
    NOT_KNOWN,
    Known,
    Left,
    Obstacle,
    Order,
    Refusal,
    Report,
    identity_of_run,
    new_operation_id,
    obstacle,
)
from .resending import send
from .selection import Entry, entries, find
from .verbs import Verb

REPLAY: Final = Verb.REPLAY.value
"""The act's name in permission and audit."""

ROWS_MAX: Final = 4_000
"""Rows in one transaction: a fifth of a second of work. What it costs whatever it holds (plans, round trips, a
commit) is a twentieth of that. `Report.more` says to come again."""


async def replay(
    conn: AsyncConnection,
    t: Tables,
    order: Order,
    *,
    after: int = 0,
    upto: int | None = None,
    rows_max: int = ROWS_MAX,
    within: Reach = EVERYWHERE,
    sees: Reach = EVERYWHERE,
    run_id: int | None = None,
) -> Report:
    """Put the letters of `order` back into the queue, due at once (lock order 2, 6 and 7).

    A filter takes `rows_max` letters at most, those behind the row number `after` (and none behind `upto`), so that a
    run of several transactions reads each letter once and ends; letters named by reference are all taken. What lies
    beyond what the asker `sees` is as if it were not there; what they may not replay is not `within`, and left out.
    """
    found, left, more, last_id = await _wanted(conn, t, order, after, upto, rows_max, within, sees)
    known = await known_of(conn, t, found)
    fit, stopped = judged(found, known, order)
    left += stopped
    if order.dry_run:
        return Report(True, len(fit) + len(left), tuple(fit), tuple(left), more, last_id)
    done = await (_queue(conn, t, fit) if order.to_source is None else send(conn, t, fit))
    left += [_left(entry, CHANGED) for entry in fit if entry.id not in done]
    replayed = tuple(entry for entry in fit if entry.id in done)
    if order.to_source is None:
        await identify(conn, t, replayed, known, order)
    report = Report(False, len(replayed) + len(left), replayed, tuple(left), more, last_id)
    if report.read:
        place = replayed[0].place if len(replayed) == 1 else shared_place(replayed)
        ids, lefts = [entry.id for entry in replayed], Counter(refusal.left for refusal in left)
        await audit.write(conn, t, audit_line(REPLAY, order, run_id, place, ids, lefts))
    return report


def judged(found: Sequence[Entry], known: Mapping[int, Known], order: Order) -> tuple[list[Entry], list[Refusal]]:
    """Those that may be replayed, and those that may not."""
    fit: list[Entry] = []
    left: list[Refusal] = []
    for entry in found:
        if (reason := obstacle(entry, known[entry.id], order)) is None:
            fit.append(entry)
        else:
            left.append(_left(entry, reason))
    return fit, left


async def _queue(conn: AsyncConnection, t: Tables, fit: Sequence[Entry]) -> frozenset[int]:
    return await failure.requeue(conn, t, [(entry.id, entry.row_version) for entry in fit], await due_now(conn))


async def due_now(conn: AsyncConnection) -> datetime.datetime:
    """Due at once, by the database's clock."""
    return (await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()


def _left(entry: Entry, reason: Obstacle) -> Refusal:
    return Refusal(str(entry.id), *reason)


async def _wanted(
    conn: AsyncConnection,
    t: Tables,
    order: Order,
    after: int,
    upto: int | None,
    rows_max: int,
    within: Reach,
    sees: Reach,
) -> tuple[list[Entry], list[Refusal], bool, int]:
    """The rows that the order means, what it names without there being any, whether the filter has more, and where."""
    if order.filter is not None:
        found = await entries(
            conn, t, order.filter, within=within, after=after, limit=rows_max + 1, upto=upto, named=False
        )
        page = found[:rows_max]
        return page, [], len(found) > rows_max, max((entry.id for entry in page), default=after)
    by_reference = {
        reference: [entry for entry in rows if sees.covers(entry.place)]
        for reference, rows in (await find(conn, t, order.references)).items()
    }
    unknown = [Refusal(reference, *NOT_KNOWN) for reference, rows in by_reference.items() if not rows]
    by_id = {entry.id: entry for rows in by_reference.values() for entry in rows if within.covers(entry.place)}
    return [by_id[number] for number in sorted(by_id)], unknown, False, max(by_id, default=after)


async def known_of(conn: AsyncConnection, t: Tables, found: Sequence[Entry]) -> dict[int, Known]:
    """What the guards ask the inbox about these letters. A plain read: the claim of the run itself decides."""
    known: dict[int, Known] = {}
    asked: defaultdict[tuple[int, int], set[bytes]] = defaultdict(set)
    for entry in found:
        erased = entry.redacted_at is not None
        one = Known(entry.handler_id, entry.payload_hash8, entry.edit_id, entry.attempt_id, erased)
        known[entry.id] = one
        ids = asked[(entry.handler_id, entry.version)]
        ids.add(entry.event_id)
        if (attempt := one.attempt_of(entry.event_id)) is not None:
            ids.add(attempt)
    claims = {key: await _claims(conn, t, key, ids) for key, ids in sorted(asked.items())}
    for entry in found if any(claims.values()) else ():
        there, one = claims[(entry.handler_id, entry.version)], known[entry.id]
        mine = {i: there[i] for i in (entry.event_id, one.attempt_of(entry.event_id)) if i in there}
        known[entry.id] = replace(one, claims=mine)
    return known


async def _claims(conn: AsyncConnection, t: Tables, key: tuple[int, int], ids: Collection[bytes]) -> dict[bytes, int]:
    found = await claim.probe(conn, t, [key], sorted(ids), claim.NOTHING_FAILS)
    return {claimed.event_id: payload_hash for claimed, payload_hash in found.claims.items()}


async def identify(
    conn: AsyncConnection, t: Tables, replayed: Sequence[Entry], known: dict[int, Known], order: Order
) -> None:
    """Rows that run under an identity of their own, or as another operation. They are locked by now."""
    attempts = {entry.id: identity_of_run(entry, known[entry.id], force=order.force) for entry in replayed}
    changed = [entry for entry in replayed if order.new_operation or attempts[entry.id] != known[entry.id].attempt_id]
    if changed:
        await conn.execute(
            t.sql("""
                UPDATE {failure} f SET attempt_id = u.attempt_id, operation_id = u.operation_id
                  FROM unnest(CAST(:ids AS bigint[]), CAST(:attempts AS bytea[]), CAST(:operations AS text[]))
                       u (id, attempt_id, operation_id) WHERE f.id = u.id
            """),
            {
                "ids": [entry.id for entry in changed],
                "attempts": [attempts[entry.id] for entry in changed],
                "operations": [
                    new_operation_id(entry) if order.new_operation else entry.operation_id for entry in changed
                ],
            },
        )


def audit_line(
    verb: str, order: Order, run_id: int | None, place: Place, replayed: Sequence[int], left: Mapping[Left, int]
) -> AuditLine:
    """One line for the act: `place` is what its letters have in common, or the only one's own."""
    skipped, refused = left.get(Left.SKIPPED, 0), left.get(Left.REFUSED, 0)
    details: dict[str, Detail] = {
        "forced": order.force,
        "new_operation": order.new_operation,
        "to_source": order.to_source,
        "replay": run_id,
        "filter": str(order.filter) if order.filter is not None else None,
        "read": len(replayed) + skipped + refused,
        "replayed": len(replayed),
        "skipped": skipped,
        "refused": refused,
        "failure_ids": tuple(replayed),
    }
    return Act(verb, order.actor, order.reason, details).line(place)
