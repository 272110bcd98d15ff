"""`tidegate dlq`: list and replay dead letters. Payload and keys are not shown."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from ...dlq import replay as service
from ...dlq.replay import Entry, Filter
from .access import Access, open_gate
from .options import ERR, OUT

# -------------------------------------------------------------------------------------------------------------- list


async def list_letters(access: Access, wanted: Filter, after: int, limit: int, as_json: bool) -> None:
    """Print one page, oldest first; what a page does not hold is said."""
    async with open_gate(access, "dlq list") as gate:
        found = await service.list_letters(gate, wanted, after=after, limit=limit + 1)
    page = found[:limit]
    if as_json:
        OUT.print_json(json.dumps([plain_entry(entry) for entry in page]))
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
            when(e.last_failed_at),
            escape(e.message),
        )
    return table


def plain_entry(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    fields = asdict(entry) | {"state": entry.state.value, "event_id": entry.event_id.hex()}
    return {name: _value(value) for name, value in fields.items() if name not in _OWN}


_OWN: Final = frozenset({"handler_id", "payload_hash8", "attempt_id"})
"""What only a replay's guards ask."""


def _value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return when(value)
    return value.hex() if isinstance(value, bytes) else value


def when(at: datetime.datetime) -> str:
    """A time for people: UTC, to the second."""
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
