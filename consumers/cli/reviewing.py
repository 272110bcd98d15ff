"""`tidegate review`: show what waits for a person, and carry out what one says. Keys and payloads are never shown."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from ...dlq import review, review_cases
from ...dlq.permission import NotPermitted
from ...dlq.review import Ruling
from ...dlq.review_cases import Case
from ...dlq.selection import Filter
from ...inbox.audit import AuditEntry
from ...inbox.errors import TidegateError
from .access import Access, open_gate
from .options import ERR, OUT


async def list_cases(access: Access, wanted: Filter, after: int, limit: int, as_json: bool) -> None:
    """Print one page of events, and on the first page the calls that no event waits for."""
    async with open_gate(access, "review") as gate:
        found = await review_cases.cases(gate, wanted, after=after, limit=limit + 1)
        page, more = found[:limit], len(found) > limit
        if not after and wanted == Filter(consumer=wanted.consumer):
            page = page + await review_cases.lone_effects(gate, wanted.consumer, limit=limit)
    if as_json:
        OUT.print_json(json.dumps([_plain(case) for case in page]))
    else:
        OUT.print(_table(page) if page else "nothing waits for a person")
    if more:
        ERR.print(f"there are more: --after {found[limit - 1].reference}")


def _table(page: Sequence[Case]) -> Table:
    table = Table(
        "case", "reason", "consumer/handler", "event", "operation", "call", "since", "why", box=None, pad_edge=False
    )
    for case in page:
        e, f, place = case.entry, case.effect, case.place
        table.add_row(
            case.reference,
            "unknown_effect" if e is None else e.reason,
            f"{place.consumer or '-'}/{place.handler}",
            "-" if e is None else escape(e.id_text),
            escape(place.operation_id),
            "-" if f is None else f"{f.name} ({f.state.value}, {f.attempts} x)",
            _when(_since(case)),
            escape(f.error if f is not None and f.error else "" if e is None else e.message),
        )
    return table


async def show(access: Access, reference: str, payload: bool, reason: str, as_json: bool) -> None:
    """Print one case with its history, and the command lines that would resolve it; results only with `payload`."""
    async with open_gate(access, "review") as gate:
        case, lines = await review_cases.show(gate, reference, reveal=payload, reason=reason)
    fields, history = _plain(case, payload), [_line(line) for line in lines]
    if as_json:
        OUT.print_json(json.dumps(fields | {"audit": history}))
        return
    for part in ("event", "call"):
        if fields[part] is not None:
            OUT.print(_grid(part, fields[part]))
    for line in history:
        OUT.print(f"{line['at']}  {line['act']} by {escape(line['actor'])}: {escape(line['why'])}")
    for command in choices(case):
        OUT.print(escape(command), soft_wrap=True)


def _grid(title: str, fields: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in fields.items():
        table.add_row(f"[bold]{title} {name}[/bold]", "-" if value is None else escape(str(value)))
    return table


def choices(case: Case) -> list[str]:
    """The command lines that fit the case, for a person to copy."""
    start, why = f"tidegate review resolve {case.reference}", '--reason "..."'
    if case.effect is None:
        return [f"{start} {verb} {why}" for verb in ("--run-again", "--done", "--discard")]
    if not case.effect.is_open:
        return [f"{start} {verb} {why}" for verb in ("--run-again", "--discard")]
    return [
        f"{start} --done --external-id ... --result '...' {why}",
        f"{start} --not-done --same-key {why}",
        f"{start} --not-done --new-key {why}",
        f"{start} --discard {why}",
    ]


async def resolve(access: Access, rulings: Sequence[Ruling], as_json: bool) -> bool:
    """Carry out each ruling in a transaction of its own; False where one was refused. Raises NotPermitted."""
    resolved: list[str] = []
    refused: dict[str, str] = {}
    async with open_gate(access, "review") as gate:
        for ruling in rulings:
            try:
                resolved.append((await review.resolve(gate, ruling)).reference)
            except NotPermitted:
                raise
            except TidegateError as error:
                refused[ruling.reference] = str(error)
    if as_json:
        OUT.print_json(json.dumps({"resolved": resolved, "refused": refused}))
        return not refused
    OUT.print(f"resolved {len(resolved)}: {', '.join(resolved)}" if resolved else "resolved nothing")
    for reference, why in refused.items():
        OUT.print(f"  refused {escape(reference)}: {escape(why)}", soft_wrap=True)
    return not refused


def _since(case: Case) -> datetime.datetime:
    if case.entry is not None:
        return case.entry.first_failed_at
    assert case.effect is not None, "a case is an event, a call, or both"
    return case.effect.intended_at


def _plain(case: Case, payload: bool = False) -> dict[str, Any]:
    """A case as plain values."""
    event = None if case.entry is None else _values(asdict(case.entry))
    call = None if case.effect is None else _values(asdict(case.effect))
    if call is not None and not payload:  # a result may hold what the event held
        del call["result"]
    return {"case": case.reference, "event": event, "call": call}


def _values(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in fields.items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return _when(value)
    return value.hex() if isinstance(value, bytes) else value


def _line(entry: AuditEntry) -> dict[str, str]:
    return {
        "at": _when(entry.at),
        "act": entry.line.act,
        "actor": entry.line.actor,
        "why": str(entry.line.details.get("why", "")),
    }


def _when(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
