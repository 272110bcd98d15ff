"""`tidegate audit`: who did what, within one's own scope, and whether every line still stands as it was written."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ...dlq import audit_trail
from ...dlq.audit_trail import AuditFilter
from ...inbox.audit import AuditEntry
from ...inbox.audit_seal import Head, Verified
from .access import Access, access, open_gate
from .options import ERR, OUT, AppOption, ConfigOption, JsonOption, TokenOption

audit_app = typer.Typer(no_args_is_help=True, help="See who did what, and check that nobody changed what is written.")

NEEDS = ("database.url",)

ByActor = Annotated[str | None, typer.Option("--actor", help="By this one, as os:ada or token:ada.")]
ByAct = Annotated[str | None, typer.Option("--act", help="This act, as replay or review_resolve.")]
Denied = Annotated[bool, typer.Option("--denied", help="Only what was denied.")]
ByEvent = Annotated[str | None, typer.Option("--event-id", help="About this event.")]
ByCorrelation = Annotated[str | None, typer.Option("--correlation-id", help="About this correlation id.")]
Since = Annotated[datetime.datetime | None, typer.Option("--since", help="At or after (UTC).")]
Until = Annotated[datetime.datetime | None, typer.Option("--until", help="Before (UTC).")]


@audit_app.command(name="list")
def list_lines(
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    actor: ByActor = None,
    act: ByAct = None,
    denied: Denied = False,
    event_id: ByEvent = None,
    correlation_id: ByCorrelation = None,
    since: Since = None,
    until: Until = None,
    after: Annotated[int, typer.Option("--after", help="Behind this number: the next page.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List what was done, or tried and denied, oldest first."""
    wanted = _filter(actor, act, denied, event_id, correlation_id, since, until)
    found = asyncio.run(_lines(access(app, config, NEEDS, token_file), wanted, after, limit + 1))
    page = found[:limit]
    if as_json:
        OUT.print_json(json.dumps([plain(entry) for entry in page]))
    else:
        OUT.print(_table(page) if page else "no lines")
    if len(found) > limit:
        ERR.print(f"there are more: --after {page[-1].id}")


@audit_app.command()
def export(
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    actor: ByActor = None,
    act: ByAct = None,
    denied: Denied = False,
    event_id: ByEvent = None,
    correlation_id: ByCorrelation = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """Write every line that matches to standard output, one JSON object on each (NDJSON)."""
    wanted = _filter(actor, act, denied, event_id, correlation_id, since, until)
    asyncio.run(_export(access(app, config, NEEDS, token_file), wanted))


@audit_app.command()
def verify(
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    head: Annotated[
        str | None, typer.Option("--head", help="An end of the chain that was noted down before, as `17:3fa2...`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find lines that were changed, removed, inserted or moved; exit code 1 where there are some."""
    known = None if head is None else Head.parse(head)
    found = asyncio.run(_verify(access(app, config, NEEDS, token_file), known))
    _tell(found, as_json)
    if found.problems:
        raise typer.Exit(1)


def _tell(found: Verified, as_json: bool) -> None:
    if as_json:
        plain = {"sealed": found.sealed, "unsealed": found.unsealed, "problems": found.problems}
        OUT.print_json(json.dumps({"head": str(found.head), **plain}))
        return
    for problem in found.problems:
        ERR.print(f"[red]problem:[/red] {escape(problem)}")
    if not found.problems:
        OUT.print(f"{found.sealed} sealed lines stand as they were written")
    if found.unsealed:
        OUT.print(f"not sealed yet, so not covered: lines {', '.join(map(str, found.unsealed))}", soft_wrap=True)
    OUT.print(f"head {found.head}", soft_wrap=True)


async def _lines(access: Access, wanted: AuditFilter, after: int, limit: int) -> list[AuditEntry]:
    async with open_gate(access, "audit") as gate:
        return await audit_trail.lines(gate, wanted, after=after, limit=limit)


async def _export(access: Access, wanted: AuditFilter) -> None:
    async with open_gate(access, "audit") as gate:
        async for entry in audit_trail.export(gate, wanted):
            sys.stdout.write(json.dumps(plain(entry)) + "\n")


async def _verify(access: Access, known: Head | None) -> Verified:
    async with open_gate(access, "audit") as gate:
        return await audit_trail.verify(gate, known)


def _filter(
    actor: str | None,
    act: str | None,
    denied: bool,
    event_id: str | None,
    correlation_id: str | None,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
) -> AuditFilter:
    return AuditFilter(
        actor=actor,
        act=act,
        allowed=False if denied else None,
        event_id=event_id,
        correlation_id=correlation_id,
        since=_utc(since),
        until=_utc(until),
    )


def _table(page: list[AuditEntry]) -> Table:
    table = Table("line", "at", "actor", "act", "", "place", "about", "why", box=None, pad_edge=False)
    for entry in page:
        line, fields = entry.line, plain(entry)
        place = f"{line.consumer or '-'}/{line.handler or '-'} {line.tenant or '-'}/{line.brand or '-'}"
        about = str(line.failure_id or line.details.get("replayed", ""))
        result = "" if line.allowed else "denied"
        why = str(line.details.get("why", ""))
        table.add_row(
            str(entry.id), fields["at"], escape(line.actor), line.act, result, escape(place), about, escape(why)
        )
    return table


def plain(entry: AuditEntry) -> dict[str, Any]:
    """A line as plain values."""
    line = entry.line
    return {
        "id": entry.id,
        "at": entry.at.astimezone(datetime.UTC).isoformat(timespec="microseconds"),
        "act": line.act,
        "actor": line.actor,
        "allowed": line.allowed,
        "consumer": line.consumer,
        "handler": line.handler,
        "failure_id": line.failure_id,
        "event_id": None if line.event_id is None else line.event_id.hex(),
        "correlation_id": line.correlation_id,
        "operation_id": line.operation_id,
        "tenant": line.tenant,
        "brand": line.brand,
        "details": dict(line.details),
    }


def _utc(at: datetime.datetime | None) -> datetime.datetime | None:
    return None if at is None else at.replace(tzinfo=at.tzinfo or datetime.UTC)
