"""The statements of groups are planned once for a connection, and by keys alone, however small the tables are then."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, LiteralString

import pytest
from sqlalchemy.dialects.postgresql import asyncpg as dialects

from tidegate.inbox import completions, dead_rows, effects
from tidegate.inbox.database import Database
from tidegate.inbox.quick import PLANS
from tidegate.inbox.tables import Tables


def _text(statement: LiteralString) -> Callable[[Tables], str]:
    return lambda t: str(t.sql(statement).compile(dialect=dialects.dialect()))


STATEMENTS: dict[str, Callable[[Tables], str]] = {
    "completions": _text(completions.COMPLETE),
    "completions that are new": _text(completions.COMPLETE_NEW),
    "dead rows: locks": _text(dead_rows.LOCK),
    "dead rows: put": _text(dead_rows.PUT),
    "intents": lambda t: effects.intend_sql(t, optimistic=False),
    "intents that are new": lambda t: effects.intend_sql(t, optimistic=True),
    "endings": effects.end_sql,
}


def _nodes(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A plan's steps, all levels of them."""
    yield step
    for below in step.get("Plans", ()):
        yield from _nodes(below)


@pytest.mark.parametrize("which", STATEMENTS)
async def test_whatever_is_read_for_a_group_is_looked_up(db: Database, t: Tables, which: str) -> None:
    """Nothing is scanned: what is planned here, while the tables are empty, is used when they are large."""
    text = STATEMENTS[which](t)
    conn = await db.connection(**PLANS)
    try:
        await conn.execute(f"PREPARE grouped AS {text}")
        given = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", text))))
        plan = json.loads(await conn.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE grouped ({given})"))
    finally:
        await conn.close()
    read = [node for node in _nodes(plan[0]["Plan"]) if "Relation Name" in node and node["Node Type"] != "ModifyTable"]
    assert read
    for node in read:
        assert "Index Cond" in node or "TID Cond" in node, node
