"""`tidegate handlers`: which handlers the database knows, and the operator's word on one that the app no longer has."""

from __future__ import annotations

import getpass

from rich.markup import escape
from rich.table import Table

from ...dlq import leaving
from ...dlq.leaving import Left
from ...inbox.audit import AuditLine
from ...inbox.errors import ConfigurationError
from ...inbox.handlers import RESERVED, gone_handlers, known_handlers
from ...inbox.migrate import check_schema
from ...inbox.store import Store
from ..app import Consumer
from ..settings import Settings
from .options import ERR, OUT
from .preparing import open_store


async def show(settings: Settings, consumer: Consumer) -> None:
    """Print each handler, whether the app has it, and what it left."""
    store = open_store(settings, "handlers")
    try:
        async with store.look() as conn:
            await check_schema(conn, store.tables)
            known = await known_handlers(conn, store.tables, consumer.name)
            gone = await _gone(store, consumer)
            table = Table("handler", "in the app", "rows and checkpoints", box=None, pad_edge=False)
            for name, handler_id in sorted(known.items()):
                left = await leaving.left_by(conn, store.tables, handler_id)
                is_there = "no" if name in gone else "yes"
                table.add_row(escape(name) if name != RESERVED else "(records without one)", is_there, str(left))
            OUT.print(table)
    finally:
        await store.database.close()


async def discard(settings: Settings, consumer: Consumer, name: str, reason: str, *, really: bool) -> None:
    """Say what `name` left; with `really`, discard it. Raises ConfigurationError where it is not gone."""
    store = open_store(settings, "handlers discard")
    try:
        gone = await _gone(store, consumer)
        if name not in gone:
            raise _not_gone(consumer, name, gone)
        async with store.look() as conn:
            left = await leaving.left_by(conn, store.tables, gone[name])
        OUT.print(f"handler {name} of {consumer.name}: {left}")
        if not really:
            ERR.print(f"nothing was done; with --yes {left.open_rows} rows are discarded and the handler is not missed")
            return
        await _discard(store, consumer.name, name, gone[name], reason, left)
    finally:
        await store.database.close()


async def _discard(store: Store, consumer: str, name: str, handler_id: int, reason: str, left: Left) -> None:
    line = AuditLine(
        act="discard_handler",
        actor=getpass.getuser(),
        consumer=consumer,
        handler=name,
        details={"why": reason, "left": str(left)},
    )
    while True:
        async with store.transaction() as conn:
            if not await leaving.discard_some(conn, store.tables, handler_id, line):
                await leaving.close(conn, store.tables, handler_id, line)
                break
    OUT.print(f"discarded {left.open_rows} rows; {name} is not missed any more")


async def _gone(store: Store, consumer: Consumer) -> dict[str, int]:
    async with store.look() as conn:
        await check_schema(conn, store.tables)
        return await gone_handlers(conn, store.tables, consumer.name, consumer.handler_names, consumer.renamed)


def _not_gone(consumer: Consumer, name: str, gone: dict[str, int]) -> ConfigurationError:
    if name in consumer.handler_names:
        return ConfigurationError.of("NAME", f"{name} is a handler of the app", "only what the app no longer has goes")
    if name in consumer.renamed.values():
        return ConfigurationError.of("NAME", f"{name} is what a handler was called", "its rows are that handler's")
    known = f"name one of: {', '.join(gone)}" if gone else "no handler is gone: nothing to discard"
    return ConfigurationError.of("NAME", f"the database knows no gone handler {name!r} of {consumer.name!r}", known)
