"""`tidegate handlers`: which handlers the database knows, and the operator's word on what the app no longer has."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ...dlq import leaving
from ...dlq.permission import Gate
from ...inbox.consumers import gone_consumers
from ...inbox.errors import ConfigurationError
from ...inbox.handlers import RESERVED, gone_handlers
from ...inbox.store import Store
from ..app import App
from .access import Access, open_gate
from .options import ERR, OUT
from .preparing import choose


async def show(access: Access, app: App, consumer: str | None) -> None:
    """Print each handler of the consumer, or of all that the app has or had: whether it has it, and what it left."""
    async with open_gate(access, "handlers") as gate:
        names = [*app.consumers, *await _gone_consumers(gate.store, app)]
        shown = [await _show(gate, app, name) for name in names if consumer in (None, name)]
        if consumer is not None and not any(shown):
            raise _unknown(app, consumer)


async def _show(gate: Gate, app: App, consumer: str) -> bool:
    """False: as far as the caller may know, there never was one."""
    known = await leaving.known(gate, consumer)
    gone = await _gone(gate.store, app, consumer)
    is_gone = consumer not in app.consumers
    if is_gone and not known:
        return False
    OUT.print(f"consumer {escape(consumer)}" + (", which the app no longer has" if is_gone else ""), soft_wrap=True)
    table = Table("handler", "in the app", "rows and checkpoints", box=None, pad_edge=False)
    for name, left in known.items():
        is_there = "no" if is_gone or name in gone else "yes"
        table.add_row(escape(name) if name != RESERVED else "(records without one)", is_there, str(left))
    OUT.print(table)
    if is_gone and (beside := await leaving.beside(gate, consumer)) is not None:
        OUT.print(f"besides: {beside}", soft_wrap=True)
    return True


async def discard(
    access: Access, app: App, consumer: str | None, name: str | None, reason: str, *, really: bool
) -> None:
    """Say what `name` left, or without it the whole consumer; with `really`, discard it.

    Raises:
        ConfigurationError: it is not gone.
    """
    consumer = choose(app, None).name if consumer is None else consumer
    async with open_gate(access, "handlers discard") as gate:
        await leaving.ask(gate, consumer, name)
        if consumer not in app.consumers and consumer not in await _gone_consumers(gate.store, app):
            raise _unknown(app, consumer)
        if name is None:
            await _discard_consumer(gate, app, consumer, reason, really=really)
        else:
            await _discard(gate, app, consumer, name, reason, really=really)


async def _discard(gate: Gate, app: App, consumer: str, name: str, reason: str, *, really: bool) -> None:
    gone = await _gone(gate.store, app, consumer)
    if name not in gone:
        raise _not_gone(app, consumer, name, gone)
    left = await leaving.look(gate, consumer, name, gone[name])
    OUT.print(f"handler {name} of {consumer}: {left}")
    if not really:
        ERR.print(f"nothing was done; with --yes {left.open_rows} rows are discarded and the handler is not missed")
        return
    await leaving.discard(gate, consumer, name, gone[name], reason)
    OUT.print(f"discarded {left.open_rows} rows; {name} is not missed any more")


async def _discard_consumer(gate: Gate, app: App, consumer: str, reason: str, *, really: bool) -> None:
    if consumer in app.consumers:
        known = ", ".join(await _gone(gate.store, app, consumer)) or "none is gone: nothing to discard"
        raise ConfigurationError.of("NAME", f"the app has {consumer!r}: say which of its handlers", f"one of: {known}")
    left = await leaving.look_consumer(gate, consumer)
    OUT.print(f"consumer {consumer}: {left}", soft_wrap=True)
    what = f"{left.left.open_rows} rows are discarded and {left.unsent} records are not sent"
    if not really:
        ERR.print(f"nothing was done; with --yes {what}, and the consumer is not missed")
        return
    await leaving.discard_consumer(gate, consumer, reason)
    OUT.print(f"done: {what}; {consumer} is not missed any more", soft_wrap=True)
    if left.calls:
        ERR.print(f"the end of {left.calls} calls is still not known: tidegate review list --consumer {consumer}")


async def _gone_consumers(store: Store, app: App) -> list[str]:
    async with store.look() as conn:
        return await gone_consumers(conn, store.tables, app.name, app.consumers)


async def _gone(store: Store, app: App, consumer: str) -> dict[str, int]:
    declared = app.consumers.get(consumer)
    names, renamed = ((), {}) if declared is None else (declared.handler_names, declared.renamed)
    async with store.look() as conn:
        return await gone_handlers(conn, store.tables, consumer, names, renamed)


def _unknown(app: App, consumer: str) -> ConfigurationError:
    what = f"the app {app.name!r} has no consumer {consumer!r}, and none of this name left anything"
    return ConfigurationError.of("--consumer", what, f"name one of: {', '.join(app.consumers) or 'none'}")


def _not_gone(app: App, consumer: str, name: str, gone: dict[str, int]) -> ConfigurationError:
    declared = app.consumers.get(consumer)
    if declared is not None and name in declared.handler_names:
        return ConfigurationError.of("NAME", f"{name} is a handler of the app", "only what the app no longer has goes")
    if declared is not None and name in declared.renamed.values():
        return ConfigurationError.of("NAME", f"{name} is what a handler was called", "its rows are that handler's")
    known = f"name one of: {', '.join(gone)}" if gone else "no handler is gone: nothing to discard"
    return ConfigurationError.of("NAME", f"the database knows no gone handler {name!r} of {consumer!r}", known)
