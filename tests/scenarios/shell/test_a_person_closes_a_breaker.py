"""`tidegate breakers`: what is open is listed with its reason, and closed by a person who gives one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg

from tests.services import database
from tests.support.cli import Ended, tidegate

OPEN = """
    INSERT INTO tidegate.breaker (name, state, failures, why, opened_at, retry_at, changes)
    VALUES ('dead/billing/invoices', 'open', 0, '101 events in a row would be dead, 100 may be',
            clock_timestamp(), clock_timestamp(), 1)
"""


def breakers(url: str, *arguments: str) -> Ended:
    return tidegate("breakers", *arguments, variables={"TIDEGATE_DATABASE_URL": url})


def listed(url: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(breakers(url, "list", "--json").out)
    return rows


def audited(url: str) -> list[tuple[Any, ...]]:
    async def read() -> list[tuple[Any, ...]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(url)
        try:
            rows = await connection.fetch(
                "SELECT act, consumer, handler, allowed, details ->> 'why' FROM tidegate.audit ORDER BY id"
            )
        finally:
            await connection.close()
        return [tuple(row) for row in rows]

    return asyncio.run(read())


def test_an_open_breaker_is_listed_and_closed_with_an_audit_line(migrated_url: str) -> None:
    assert "no breaker ever opened" in breakers(migrated_url, "list").out
    database.execute(migrated_url, OPEN)
    assert "101 events in a row would be dead" in breakers(migrated_url, "list").out
    assert breakers(migrated_url, "close", "dead/billing/invoices").code == 2, "a reason is required"
    assert breakers(migrated_url, "close", "dead/billing/invoices", "--reason", "they are poison").code == 0
    assert [(row["state"], row["why"], row["opened_at"]) for row in listed(migrated_url)] == [("closed", "", None)]
    assert audited(migrated_url) == [("close_breaker", "billing", "invoices", True, "they are poison")]


def test_a_breaker_that_is_not_open_is_not_closed(migrated_url: str) -> None:
    ended = breakers(migrated_url, "close", "provider/billing", "--reason", "they are back")
    assert ended.code == 70
    assert "provider/billing is not open" in ended.err
