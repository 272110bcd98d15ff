"""`tidegate breakers`: which breakers are open and why, and a person's word that one may close."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ...dlq import open_breakers
from .access import Access, access, open_gate
from .options import OUT, AppOption, ConfigOption, JsonOption, TokenOption

breakers_app = typer.Typer(no_args_is_help=True, help="See which breakers are open, and close one.")

NEEDS = ("database.url",)


@breakers_app.command(name="list")
def list_breakers(
    app: AppOption = None, config: ConfigOption = None, token_file: TokenOption = None, as_json: JsonOption = False
) -> None:
    """List every breaker that ever opened: of providers, and of handlers whose events died in numbers."""
    found = asyncio.run(_listed(access(app, config, NEEDS, token_file)))
    if as_json:
        OUT.print_json(json.dumps([{name: _plain(value) for name, value in row.items()} for row in found]))
        return
    table = Table("breaker", "state", "opened", "tried again", "why", box=None, pad_edge=False)
    for row in found:
        opened, retry = _plain(row["opened_at"]) or "-", _plain(row["retry_at"]) or "-"
        table.add_row(escape(row["name"]), row["state"], opened, retry, escape(row["why"]))
    OUT.print(table if found else "no breaker ever opened")


@breakers_app.command()
def close(
    name: Annotated[str, typer.Argument(metavar="BREAKER", help="Its name, as `list` shows it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why: it stands in the audit.")],
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
) -> None:
    """Let events go on: letters are written again, or a provider is called again, until it opens once more."""
    asyncio.run(_close(access(app, config, NEEDS, token_file), name, reason))
    OUT.print(f"closed {escape(name)}; workers follow within seconds")


async def _listed(access: Access) -> list[dict[str, Any]]:
    async with open_gate(access, "breakers") as gate:
        return await open_breakers.listed(gate)


async def _close(access: Access, name: str, reason: str) -> None:
    async with open_gate(access, "breakers") as gate:
        await open_breakers.close(gate, name, reason)


def _plain(value: Any) -> Any:
    return (
        value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ") if isinstance(value, datetime.datetime) else value
    )
