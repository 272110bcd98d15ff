"""`tidegate handlers`: which handlers the database knows, and the operator's word on one that the app no longer has."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ...dlq import leaving
from ...inbox.errors import ConfigurationError
from ...inbox.handlers import RESERVED, gone_handlers
from ...inbox.store import Store
from ..app import Consumer
from .access import Access, open_gate
from .options import ERR, OUT


async def show(access: Access, consumer: Consumer) -> None:
    """Print each handler, whether the app has it, and what it left."""
    async with open_gate(access, "handlers") as gate:
        known = await leaving.known(gate, consumer.name)
        gone = await _gone(gate.store, consumer)
    table = Table("handler", "in the app", "rows and checkpoints", box=None, pad_edge=False)
    for name, left in known.items():
        is_there = "no" if name in gone else "yes"
        table.add_row(escape(name) if name != RESERVED else "(records without one)", is_there, str(left))
    OUT.print(table)


async def discard(access: Access, consumer: Consumer, name: str, reason: str, *, really: bool) -> None:
    """Say what `name` left; with `really`, discard it. Raises ConfigurationError where it is not gone."""
    async with open_gate(access, "handlers discard") as gate:
        await leaving.ask(gate, consumer.name, name)
        gone = await _gone(gate.store, consumer)
        if name not in gone:
            raise _not_gone(consumer, name, gone)
        left = await leaving.look(gate, consumer.name, name, gone[name])
        OUT.print(f"handler {name} of {consumer.name}: {left}")
        if not really:
            ERR.print(f"nothing was done; with --yes {left.open_rows} rows are discarded and the handler is not missed")
            return
        await leaving.discard(gate, consumer.name, name, gone[name], reason)
    OUT.print(f"discarded {left.open_rows} rows; {name} is not missed any more")


async def _gone(store: Store, consumer: Consumer) -> dict[str, int]:
    async with store.look() as conn:
        return await gone_handlers(conn, store.tables, consumer.name, consumer.handler_names, consumer.renamed)


def _not_gone(consumer: Consumer, name: str, gone: dict[str, int]) -> ConfigurationError:
    if name in consumer.handler_names:
        return ConfigurationError.of("NAME", f"{name} is a handler of the app", "only what the app no longer has goes")
    if name in consumer.renamed.values():
        return ConfigurationError.of("NAME", f"{name} is what a handler was called", "its rows are that handler's")
    known = f"name one of: {', '.join(gone)}" if gone else "no handler is gone: nothing to discard"
    return ConfigurationError.of("NAME", f"the database knows no gone handler {name!r} of {consumer.name!r}", known)
