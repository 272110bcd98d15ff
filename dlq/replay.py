"""The operator's service on dead letters: list, group, show, replay. Every act leaves its audit line.

A replay puts a row back into the inbox's queue; the worker that owns its home takes it up like any other, so nothing is
sent anywhere and nothing is handled twice. All functions take an open transaction of the caller's; a replay and its
audit line stand or fall together. What another operator or a worker changed meanwhile is refused, never overwritten, so
that running the same replay twice does nothing twice.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, failure
from ..inbox.audit import AuditEntry, AuditLine
from ..inbox.errors import TidegateError
from ..inbox.outcome import FailureState
from ..inbox.tables import Tables
from .letter import Letter
from .selection import Entry, Filter, entries, find, groups, letter_of_entry, published_at

__all__ = [
    "Entry",
    "Filter",
    "NotFound",
    "Order",
    "Refusal",
    "Report",
    "Shown",
    "groups",
    "list_letters",
    "replay",
    "show",
]

REPLAYS_MAX: Final = 2
"""A third replay of the same letter is a loop: the cause is not repaired. `force` says that a person knows better."""

ROWS_MAX: Final = 1_000
"""Rows in one transaction: a few megabytes of row locks' worth, a second of work; `Report.more` says to come again."""

AUDITED_IDS_MAX: Final = 1_000
"""As many as one transaction holds: an audit line names every row of its act."""


class NotFound(TidegateError):
    """No letter is known under this reference."""


class Refusal(NamedTuple):
    """A letter that was not replayed, and why."""

    reference: str
    cause: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which letters to replay, who asks for it and why: by `references` (see `find`) or by `filter`, not both."""

    actor: str
    reason: str
    references: tuple[str, ...] = ()
    filter: Filter | None = None
    dry_run: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if not self.actor or not self.reason.strip():
            raise TidegateError("a replay needs somebody who asks for it and a reason why")
        if bool(self.references) == (self.filter is not None):
            raise TidegateError("say which letters: either by their ids or by a filter")


@final
@dataclass(frozen=True, slots=True)
class Report:
    """What a replay did, or would do on a dry run."""

    dry_run: bool
    read: int
    replayed: tuple[Entry, ...]
    refused: tuple[Refusal, ...]
    more: bool = False
    """The filter matches more letters than one transaction takes: go on behind `last_id`."""
    last_id: int = 0
    """The highest row number that was read: what was refused is not read again behind it."""

    @property
    def by_reason(self) -> Mapping[str, int]:
        """How many of the replayed letters had which reason."""
        return Counter(entry.reason for entry in self.replayed)

    @property
    def by_cause(self) -> Mapping[str, int]:
        """How many were refused for which cause."""
        return Counter(refusal.cause for refusal in self.refused)


@final
@dataclass(frozen=True, slots=True)
class Shown:
    """One letter with everything about it. Key, value and headers are raw bytes: whoever shows them masks them."""

    entry: Entry
    letter: Letter
    published_at: datetime.datetime | None
    audit: tuple[AuditEntry, ...] = field(default=())


async def list_letters(
    conn: AsyncConnection, t: Tables, wanted: Filter, *, after: int = 0, limit: int = 100
) -> list[Entry]:
    """Letters that `wanted` matches, oldest first, behind the row number `after`; without keys and payloads."""
    return await entries(conn, t, wanted, after=after, limit=limit)


async def show(conn: AsyncConnection, t: Tables, reference: str) -> Shown:
    """The letter that `reference` names.

    Raises:
        NotFound: there is none.
        TidegateError: the reference is not one, or it names several (one position, many handlers).
    """
    found = (await find(conn, t, [reference]))[reference]
    if not found:
        raise NotFound(f"no letter is known as {reference}")
    if len(found) > 1:
        names = ", ".join(f"{entry.id} ({entry.consumer}/{entry.handler})" for entry in found)
        raise TidegateError(f"{reference} stands for several letters: {names}; name one by its number")
    (entry,) = found
    return Shown(
        entry,
        await letter_of_entry(conn, t, entry),
        await published_at(conn, t, entry),
        tuple(await audit.read(conn, t, failure_id=entry.id)),
    )


async def replay(conn: AsyncConnection, t: Tables, order: Order, *, after: int = 0, rows_max: int = ROWS_MAX) -> Report:
    """Put the letters of `order` back into the queue, due at once (lock order 2, 6 and 7).

    A filter takes `rows_max` letters at most, those behind the row number `after`, so that a run of several
    transactions reads each letter once and ends; letters named by reference are all taken.
    """
    found, refused, more = await _wanted(conn, t, order, after, rows_max)
    last_id = max((entry.id for entry in found), default=after)
    fit = [entry for entry in found if (cause := _obstacle(entry, force=order.force)) is None]
    refused += [
        Refusal(str(entry.id), cause) for entry in found if (cause := _obstacle(entry, force=order.force)) is not None
    ]
    if order.dry_run:
        return Report(True, len(found), tuple(fit), tuple(refused), more, last_id)
    due = (await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
    done = await failure.requeue(conn, t, [(entry.id, entry.row_version) for entry in fit], due)
    refused += [Refusal(str(entry.id), "it was changed meanwhile") for entry in fit if entry.id not in done]
    replayed = tuple(entry for entry in fit if entry.id in done)
    report = Report(False, len(found), replayed, tuple(refused), more, last_id)
    await audit.write(conn, t, _audit_line(order, report))
    return report


async def _wanted(
    conn: AsyncConnection, t: Tables, order: Order, after: int, rows_max: int
) -> tuple[list[Entry], list[Refusal], bool]:
    """The rows that the order means, what it names without there being any, and whether the filter has more."""
    if order.filter is not None:
        found = await entries(conn, t, order.filter, after=after, limit=rows_max + 1)
        return found[:rows_max], [], len(found) > rows_max
    by_reference = await find(conn, t, order.references)
    unknown = [
        Refusal(reference, "no letter is known under this id") for reference, rows in by_reference.items() if not rows
    ]
    by_id = {entry.id: entry for rows in by_reference.values() for entry in rows}
    return sorted(by_id.values(), key=lambda entry: entry.id), unknown, False


_NOT_DEAD: Final[Mapping[FailureState, str]] = {
    FailureState.QUEUED: "it is queued already",
    FailureState.UNKNOWN: "its outcome is unknown: review it",
    FailureState.DISCARDED: "it was discarded",
    FailureState.LINKED: "it is a repeat and ends with its first one",
}


def _obstacle(entry: Entry, *, force: bool) -> str | None:
    """Why this letter must not be replayed; None where it may."""
    if entry.state is not FailureState.DEAD:
        return _NOT_DEAD[entry.state]
    if entry.replay_count >= REPLAYS_MAX and not force:
        return f"it was replayed {entry.replay_count} times already: repair the cause, or force it"
    return None


def _audit_line(order: Order, report: Report) -> AuditLine:
    """One line for the act; with the letter's own fields where there is only one."""
    only = report.replayed[0] if len(report.replayed) == 1 else None
    return AuditLine(
        act="replay",
        actor=order.actor,
        consumer=only.consumer if only is not None else (order.filter.consumer or "" if order.filter else ""),
        handler=only.handler if only is not None else (order.filter.handler or "" if order.filter else ""),
        failure_id=only.id if only is not None else None,
        event_id=only.event_id if only is not None else None,
        correlation_id=only.correlation_id if only is not None else "",
        operation_id=only.operation_id if only is not None else "",
        tenant=only.tenant if only is not None else None,
        brand=only.brand if only is not None else None,
        details={
            "why": order.reason,
            "forced": order.force,
            "filter": str(order.filter) if order.filter is not None else None,
            "read": report.read,
            "replayed": len(report.replayed),
            "refused": len(report.refused),
            "failure_ids": _numbers(report.replayed),
        },
    )


def _numbers(replayed: Sequence[Entry]) -> str:
    return ",".join(str(entry.id) for entry in replayed[:AUDITED_IDS_MAX])
