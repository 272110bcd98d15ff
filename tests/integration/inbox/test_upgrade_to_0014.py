"""What was registered before kinds were written down: told by what each handler left, or by its next start."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.inbox import migrate
from tidegate.inbox.database import Database
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.tables import Tables, tables

HANDLERS = """
    INSERT INTO tidegate.handler (consumer, name)
    VALUES ('billing', ''), ('billing', 'send'), ('billing', 'revenue'), ('billing', 'both')
"""
VERSIONS = """
    INSERT INTO tidegate.version (projection, version, state)
    SELECT id, 1, 'live' FROM tidegate.handler WHERE name IN ('revenue', 'both')
"""
CHECKPOINTS = """
    INSERT INTO tidegate.checkpoint (handler, version, topic, partition, next_offset)
    SELECT id, CASE name WHEN 'revenue' THEN 1 ELSE 0 END, 'orders', 0, 7 FROM tidegate.handler WHERE name <> ''
"""


def _to_0013(connection: sa.Connection, t: Tables) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["tables"] = t
    command.upgrade(config, "0013")


async def test_handlers_from_before_are_of_the_kind_that_they_were(database_url: str) -> None:
    t = tables()
    db = Database(database_url, member="test")
    try:
        async with db.transaction() as conn:
            await conn.execute(t.sql("CREATE SCHEMA {schema}"))
            await conn.execute(t.sql("SET LOCAL search_path TO {schema}"))
            await conn.run_sync(_to_0013, t)
        async with db.transaction() as conn:
            for statement in (HANDLERS, VERSIONS, CHECKPOINTS):
                await conn.execute(sa.text(statement))
        await migrate.upgrade(database_url)
        async with db.transaction() as conn:
            assert await _kinds(conn) == {"": None, "send": "command", "revenue": "projection", "both": None}
            await register_handlers(conn, t, "billing", ["both"], kinds={"both": "projection"})
            assert (await _kinds(conn))["both"] == "projection"
    finally:
        await db.close()


async def _kinds(conn: AsyncConnection) -> dict[str, str | None]:
    return {row.name: row.kind for row in await conn.execute(sa.text("SELECT name, kind FROM tidegate.handler"))}
