"""Handlers' calls without a handler: one ledger, one service, and the rows that are between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from tests.support.provider import Answered, Provider, call, look_up
from tidegate.inbox.effect_rows import Call, Home, Origin, Owner
from tidegate.inbox.effect_rules import (
    Asked,
    CannotTell,
    Done,
    Effect,
    NotDone,
    Probe,
    ProbeAnswer,
    idempotent_key,
    probe,
    review,
)
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store

SHORT_S: Final = 0.3
"""A deadline that a test can wait for, and that a call on loopback keeps."""


def asking(service: Provider) -> Probe:
    """Looks the operation up at the service."""

    async def ask(asked: Asked) -> ProbeAnswer:
        try:
            found = await look_up(service.port, asked.operation_id)
        except Answered as error:
            return CannotTell(str(error))
        return NotDone() if found is None else Done({"id": found}, found)

    return probe(ask)


def keyed(**options: Any) -> Effect:
    """A service that honours keys, for an hour."""
    return _effect(idempotent_key(valid_s=3600), options)


def probed(service: Provider, **options: Any) -> Effect:
    """One that can be asked."""
    return _effect(asking(service), options)


def reviewed(**options: Any) -> Effect:
    """One that can do neither."""
    return _effect(review(), options)


def _effect(rule: Any, options: dict[str, Any]) -> Effect:
    given: dict[str, Any] = {"rule": rule, "deadline_s": SHORT_S, "margin_s": 0.0, **options}
    return Effect("charge", **given)


async def do(ledger: Ledger, effect: Effect, service: Provider, operation: str = "op-1", **options: Any) -> Any:
    """What a handler does: call, say how it ended, use the result."""
    async with ledger.effect(effect, operation, **{"owner": "tests", **options}) as opened:
        if not opened.is_done:
            answer = await call(service.port, operation, key=opened.key, timeout_s=opened.timeout_s)
            opened.complete({"id": answer["id"]}, answer["id"])
    return opened.result


async def do_for(ledger: Ledger, service: Provider, calls: Sequence[Call], at_once: int = 50) -> list[Any]:
    """`do` for each of `calls`, many at once: their results, or what was raised."""
    free = asyncio.Semaphore(at_once)

    async def one(wanted: Call) -> Any:
        async with free, ledger.call(wanted) as opened:
            if not opened.is_done:
                answer = await call(service.port, wanted.operation_id, key=opened.key, timeout_s=opened.timeout_s)
                opened.complete({"id": answer["id"]}, answer["id"])
        return opened.result

    return await asyncio.gather(*[one(wanted) for wanted in calls], return_exceptions=True)


def whose(home: Home | None = None, origin: Origin | None = None) -> Owner:
    """An owner with a place."""
    return Owner("tests/bill", "#1", home=home, origin=origin)


def of(effect: Effect, operation: str = "op-1", owner: Owner | None = None, request: Any = None) -> Call:
    """One operation."""
    return Call.of(effect, owner or Owner("tests"), operation, request)


async def value(store: Store, column: str, operation: str = "op-1") -> Any:
    """A column of an effect's row; None without a row."""
    e = store.tables.effect.c
    async with store.look() as conn:
        return await conn.scalar(
            store.tables.effect.select().with_only_columns(e[column]).where(e.operation_id == operation)
        )


async def count(store: Store) -> int:
    """How many rows there are."""
    async with store.look() as conn:
        return int(await conn.scalar(store.tables.sql("SELECT count(*) FROM {effect}")))


async def pass_by(store: Store, seconds: float = 600.0) -> None:
    """Let time go by for every row: what was due within `seconds` is due."""
    async with store.transaction() as conn:
        await conn.execute(
            store.tables.sql("""
                UPDATE {effect} SET due = due - ago, deadline = deadline - ago, key_since = key_since - ago,
                       row_version = row_version + 1
                  FROM make_interval(secs => CAST(:seconds AS float8)) ago
            """),
            {"seconds": seconds},
        )


async def audited(store: Store) -> list[str]:
    """The acts in the audit."""
    async with store.look() as conn:
        return list((await conn.execute(store.tables.sql("SELECT act FROM {audit} ORDER BY id"))).scalars())
