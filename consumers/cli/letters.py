"""`tidegate dlq`: list, show and replay dead letters. Payload and keys are shown only where they are asked for."""

from __future__ import annotations

import datetime
import getpass
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from rich.markup import escape
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq import replay as service
from ...dlq.letter import Letter
from ...dlq.replay import Entry, Filter, Order, Report, Shown
from ...dlq.selection import Group
from ...inbox.migrate import check_schema
from ...inbox.tables import Tables
from ..settings import Settings
from .options import ERR, OUT
from .preparing import open_store

T = TypeVar("T")


async def in_transaction(settings: Settings, act: Callable[[AsyncConnection, Tables], Awaitable[T]]) -> T:
    """Run `act` in one transaction on a schema of this release."""
    store = open_store(settings, "dlq")
    try:
        async with store.transaction() as conn:
            await check_schema(conn, store.tables)
            return await act(conn, store.tables)
    finally:
        await store.database.close()


# -------------------------------------------------------------------------------------------------------------- list


async def list_letters(settings: Settings, wanted: Filter, after: int, limit: int, as_json: bool) -> None:
    """Print one page, oldest first; what a page does not hold is said."""
    found = await in_transaction(
        settings, lambda conn, t: service.list_letters(conn, t, wanted, after=after, limit=limit + 1)
    )
    page = found[:limit]
    if as_json:
        OUT.print_json(json.dumps([_plain(entry) for entry in page]))
    elif not page:
        OUT.print("no letters")
    else:
        OUT.print(_entries(page))
    if len(found) > limit:
        ERR.print(f"there are more: --after {page[-1].id}")


def _entries(page: Sequence[Entry]) -> Table:
    columns = ("id", "state", "reason", "consumer/handler", "event", "position", "attempts", "replays", "last failed")
    table = Table(*columns, "message", box=None, pad_edge=False)
    for e in page:
        table.add_row(
            str(e.id),
            e.state.value,
            e.reason,
            f"{e.consumer}/{e.handler or '(all)'}",
            escape(e.id_text),
            f"{e.topic}/{e.partition}@{e.offset}",
            str(e.attempts),
            str(e.replay_count),
            _when(e.last_failed_at),
            escape(e.message),
        )
    return table


async def list_groups(settings: Settings, wanted: Filter, as_json: bool) -> None:
    """Print how many letters died in which way."""
    found = await in_transaction(settings, lambda conn, t: service.groups(conn, t, wanted))
    if as_json:
        OUT.print_json(json.dumps([group._asdict() for group in found], default=str))
        return
    OUT.print(_groups(found) if found else "no letters")


def _groups(found: Sequence[Group]) -> Table:
    table = Table("letters", "consumer/handler", "reason", "exception", "first", "last", box=None, pad_edge=False)
    for g in found:
        place = f"{g.consumer}/{g.handler or '(all)'}"
        times = (_when(g.first_failed_at), _when(g.last_failed_at))
        table.add_row(str(g.letters), place, g.reason, escape(g.exception_type), *times)
    return table


# -------------------------------------------------------------------------------------------------------------- show


async def show(settings: Settings, reference: str, payload: bool, as_json: bool) -> None:
    """Print one letter with its history; key, value and headers only with `payload`."""
    shown = await in_transaction(settings, lambda conn, t: service.show(conn, t, reference))
    fields = _plain(shown.entry) | {"published_at": None if shown.published_at is None else _when(shown.published_at)}
    if payload:
        fields |= _payload(shown.letter)
    history = [_audit(shown, n) for n in range(len(shown.audit))]
    if as_json:
        OUT.print_json(json.dumps(fields | {"audit": history}))
        return
    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        table.add_row(f"[bold]{name}[/bold]", "-" if value is None else escape(str(value)))
    OUT.print(table)
    for line in history:
        OUT.print(f"{line['at']}  {line['act']} by {escape(line['actor'])}: {escape(str(line['why']))}")
    if not payload:
        ERR.print("key, value and headers are shown with --payload")


def _payload(letter: Letter) -> dict[str, Any]:
    headers = {name: _text(value) for name, value in letter.headers}
    return {"key": _text(letter.key), "value": _text(letter.value), "headers": headers}


def _text(value: bytes | None) -> str | None:
    """Bytes as text where they are text, else in hex; None (a tombstone) stays None."""
    if value is None:
        return None
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"
    return text if text.isprintable() else f"hex:{value.hex()}"


def _audit(shown: Shown, n: int) -> dict[str, str]:
    entry = shown.audit[n]
    return {
        "at": _when(entry.at),
        "act": entry.line.act,
        "actor": entry.line.actor,
        "why": str(entry.line.details.get("why", "")),
    }


# ------------------------------------------------------------------------------------------------------------ replay


async def replay(settings: Settings, order: Order, after: int = 0) -> Report:
    """Put the letters of `order` behind the number `after` back into the queue (or say which a dry run would)."""
    return await in_transaction(settings, lambda conn, t: service.replay(conn, t, order, after=after))


async def replay_all(settings: Settings, order: Order) -> list[Report]:
    """The same until a filter matches nothing more, one transaction and one audit line a thousand letters."""
    reports = [await replay(settings, order)]
    while reports[-1].more and not order.dry_run:
        reports.append(await replay(settings, order, reports[-1].last_id))
        ERR.print(f"{sum(len(report.replayed) for report in reports)} so far")
    return reports


def tell(reports: Sequence[Report], as_json: bool) -> None:
    """Say what was replayed and what was refused, and why."""
    replayed = [entry for report in reports for entry in report.replayed]
    refused = [refusal for report in reports for refusal in report.refused]
    if as_json:
        done = {"dry_run": reports[0].dry_run, "replayed": [entry.id for entry in replayed], "more": reports[-1].more}
        OUT.print_json(json.dumps(done | {"refused": [refusal._asdict() for refusal in refused]}))
        return
    verb = "would replay" if reports[0].dry_run else "replayed"
    OUT.print(f"{verb} {len(replayed)} letter{'' if len(replayed) == 1 else 's'}")
    for report in reports:
        for reason, count in sorted(report.by_reason.items()):
            OUT.print(f"  {count} x {reason}")
    for refusal in refused:
        OUT.print(f"  refused {refusal.reference}: {refusal.cause}")
    if reports[-1].more:
        OUT.print("the filter matches more letters")


def actor() -> str:
    """Who asks: the user of the operating system."""
    return getpass.getuser()


def _plain(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    fields = asdict(entry) | {"state": entry.state.value, "event_id": entry.event_id.hex()}
    return {name: _value(value) for name, value in fields.items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return _when(value)
    return value.hex() if isinstance(value, bytes) else value


def _when(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
