"""`tidegate breakers`: which breakers are open and why, and a person's word that one may close."""

from __future__ import annotations

import asyncio
import datetime
import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ...dlq.permission import Act, Place, ask, everybody
from ...inbox import audit, breaker_rows
from ...inbox.errors import TidegateError
from ...inbox.migrate import check_schema
from ..settings import Settings
from . import letters
from .letters import in_transaction
from .options import OUT, AppOption, ConfigOption, JsonOption
from .preparing import open_store, settings_only

breakers_app = typer.Typer(no_args_is_help=True, help="See which breakers are open, and close one.")

NEEDS = ("database.url",)


@breakers_app.command(name="list")
def list_breakers(app: AppOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List every breaker that ever opened: of providers, and of handlers whose events died in numbers."""
    found = asyncio.run(in_transaction(settings_only(app, config, NEEDS).settings, breaker_rows.listed))
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
) -> None:
    """Let events go on: letters are written again, or a provider is called again, until it opens once more."""
    asyncio.run(_close(settings_only(app, config, NEEDS).settings, name, reason))
    OUT.print(f"closed {escape(name)}; workers follow within seconds")


async def _close(settings: Settings, name: str, reason: str) -> None:
    act = Act("close_breaker", letters.actor(), reason, {"breaker": name})
    place = _place(name)
    store = open_store(settings, "breakers")
    try:
        async with store.look() as conn:
            await check_schema(conn, store.tables)
        await ask(store, everybody, act, place)
        async with store.transaction() as conn:
            if not await breaker_rows.close(conn, store.tables, name):
                raise TidegateError(f"{name} is not open: see `tidegate breakers list`")
            await audit.write(conn, store.tables, act.line(place))
    finally:
        await store.database.close()


def _place(name: str) -> Place:
    """`dead/<consumer>/<handler>` or `provider/<name>`, which is no consumer's."""
    kind, _, rest = name.partition("/")
    consumer, _, handler = rest.partition("/")
    return Place(consumer, handler) if kind == "dead" else Place("")


def _plain(value: Any) -> Any:
    return (
        value.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ") if isinstance(value, datetime.datetime) else value
    )
