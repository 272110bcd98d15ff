"""The operator's service on breakers: which are open and why, and a person's word that one may close."""

from __future__ import annotations

from typing import Any

from ..inbox import breaker_rows
from ..inbox.errors import TidegateError
from .permission import Gate
from .reach import Whole
from .verbs import Verb


async def listed(gate: Gate) -> list[dict[str, Any]]:
    """Every breaker that ever moved: of handlers that the caller sees something of, of providers for who sees all."""
    async with gate.asked(Verb.LIST_BREAKERS) as asked:
        rows = await breaker_rows.listed(asked.conn, asked.t)
        return [row for row in rows if asked.reach.touches(whole_of(row["name"]))]


async def close(gate: Gate, name: str, reason: str) -> None:
    """Close it: events of every tenant go on until it opens once more.

    Raises:
        NotPermitted: the caller may not do this to all of the handler, whatever tenant; that is audited.
        TidegateError: it is not open, or the caller does not see it.
    """
    async with gate.asked(Verb.CLOSE_BREAKER, reason, named=True) as asked:
        whole = whole_of(name)
        if not asked.knows_whole(whole):
            raise TidegateError(_not_open(name))
        asked.require_whole(whole)
        if not await breaker_rows.close(asked.conn, asked.t, name):
            raise TidegateError(_not_open(name))
        await asked.write(whole.place, {"breaker": name})


def whole_of(name: str) -> Whole:
    """`dead/<consumer>/<handler>` is that handler's; `provider/<name>` is everybody's."""
    kind, _, rest = name.partition("/")
    consumer, _, handler = rest.partition("/")
    return Whole(consumer, handler) if kind == "dead" else Whole()


def _not_open(name: str) -> str:
    return f"{name} is not open: see `tidegate breakers list`"
