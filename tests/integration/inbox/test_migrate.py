"""Migrations: the declared tables, safe to run at once; nobody starts on a schema that breaks the promise."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.inbox import migrate
from tidegate.inbox.database import Database
from tidegate.inbox.errors import ConfigurationError, FatalError
from tidegate.inbox.tables import VERSION_TABLE, Tables, tables


@pytest.fixture
def t() -> Tables:
    return tables("inbox_here")


@pytest.fixture
async def db(database_url: str, t: Tables) -> AsyncIterator[Database]:
    """A database that was migrated for this test."""
    await migrate.upgrade(database_url, t.schema)
    database = Database(database_url, member="test")
    yield database
    await database.close()


CATALOGUE = {
    "columns": """
        SELECT table_name, column_name, data_type, is_nullable, column_default, identity_generation
          FROM information_schema.columns WHERE table_schema = :schema ORDER BY table_name, column_name
    """,
    "constraints": """
        SELECT c.conrelid::regclass::text, c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint c
          JOIN pg_namespace n ON n.oid = c.connamespace WHERE n.nspname = :schema ORDER BY 1, 2
    """,
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = :schema ORDER BY 1, 2",
    "options": """
        SELECT c.relname, c.reloptions FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = :schema AND c.relkind = 'r' ORDER BY 1
    """,
}


async def _catalogue(conn: AsyncConnection, schema: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, query in CATALOGUE.items():
        rows = await conn.execute(sa.text(query), {"schema": schema})
        lines = [str(tuple(row)).replace(f"{schema}.", "") for row in rows]
        found[kind] = [line for line in lines if VERSION_TABLE not in line]
    return found


async def test_migrations_make_exactly_the_declared_tables(db: Database, t: Tables) -> None:
    declared = tables("declared")
    async with db.transaction() as conn:
        await conn.execute(sa.text("CREATE SCHEMA declared"))
        await conn.run_sync(declared.metadata.create_all)
        migrated_catalogue, declared_catalogue = await _catalogue(conn, t.schema), await _catalogue(conn, "declared")
    assert migrated_catalogue == declared_catalogue


async def test_alembic_finds_no_difference_either(db: Database, t: Tables) -> None:
    def differences(connection: sa.Connection) -> list[object]:
        def ours(name: str | None, kind: str, _parents: object) -> bool:
            return name != VERSION_TABLE and (kind != "schema" or name == t.schema)

        opts = {"include_schemas": True, "include_name": ours, "version_table_schema": t.schema}
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, t.metadata))

    async with db.transaction() as conn:
        assert await conn.run_sync(differences) == []


async def test_migrators_that_run_at_once_wait_for_each_other(database_url: str, t: Tables) -> None:
    results = await asyncio.gather(*[migrate.upgrade(database_url, t.schema) for _ in range(4)])
    expected = migrate.expected()
    assert sorted(str(result.before) for result in results) == [expected] * 3 + ["None"]
    assert {result.after for result in results} == {expected}


async def test_a_migrators_lock_ends_with_its_transaction(db: Database, t: Tables) -> None:
    """Whatever becomes of its connection, the next pod migrates at once.

    Case: B46
    Parts: real (PostgreSQL; no pooler)
    Red when: inbox/migrate.py takes pg_advisory_lock instead of `pg_advisory_xact_lock`
    """
    async with db.transaction() as conn:
        await migrate.upgrade_in(conn, t)
    async with db.transaction() as conn:
        locks = await conn.execute(
            sa.text("""
                SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            """)
        )
        assert locks.scalar_one() == 0


async def test_migrating_twice_changes_nothing(db: Database, t: Tables, database_url: str) -> None:
    async with db.transaction() as conn:
        before = await _catalogue(conn, t.schema)
    assert (await migrate.upgrade(database_url, t.schema)).before == migrate.expected()
    async with db.transaction() as conn:
        assert await _catalogue(conn, t.schema) == before
        await migrate.check_schema(conn, t)


async def test_two_schemas_live_side_by_side(db: Database, database_url: str) -> None:
    other = tables("second")
    await migrate.upgrade(database_url, other.schema)
    async with db.transaction() as conn:
        await migrate.check_schema(conn, other)
        await migrate.check_schema(conn, tables("inbox_here"))
        assert other.generation_lock != tables("inbox_here").generation_lock


# ------------------------------------------------------------------------------------------ refusals at start


async def test_a_database_without_the_schema_says_how_to_make_it(database_url: str, t: Tables) -> None:
    database = Database(database_url)
    try:
        async with database.transaction() as conn:
            with pytest.raises(ConfigurationError, match=r"no tidegate schema 'inbox_here'.*tidegate migrate"):
                await migrate.check_schema(conn, t)
    finally:
        await database.close()


async def test_a_newer_schema_is_fatal_for_running_and_for_migrating(
    db: Database, database_url: str, t: Tables
) -> None:
    async with db.transaction() as conn:
        await conn.execute(sa.text("UPDATE inbox_here.tidegate_version SET version_num = '9999'"))
    async with db.transaction() as conn:
        with pytest.raises(FatalError, match=r"revision 9999.*newer"):
            await migrate.check_schema(conn, t)
    with pytest.raises(FatalError, match=r"revision 9999.*newer"):
        await migrate.upgrade(database_url, t.schema)


@pytest.mark.parametrize(
    ("drop", "names"),
    [
        ("ALTER TABLE inbox_here.claim_1 DROP CONSTRAINT claim_1_pkey", "claim_1: the unique key (handler, version"),
        ("ALTER TABLE inbox_here.fence DROP CONSTRAINT fence_key", "fence: the unique key (consumer, topic, partition"),
        ("DROP INDEX inbox_here.failure_position_key", "failure: the unique key (handler, version, topic"),
    ],
)
async def test_a_dropped_unique_key_is_refused_by_name(db: Database, t: Tables, drop: str, names: str) -> None:
    """Without its unique key the inbox would let repeats through in silence.

    Case: B50
    Parts: real (PostgreSQL)
    Red when: inbox/migrate.py `check_schema` does not look for missing keys
    """
    async with db.transaction() as conn:
        await conn.execute(sa.text(drop))
    async with db.transaction() as conn:
        with pytest.raises(ConfigurationError) as caught:
            await migrate.check_schema(conn, t)
    assert names in str(caught.value)
    assert "Fix: " in str(caught.value)


async def test_a_key_that_was_replaced_by_a_partial_or_plain_index_is_refused(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        await conn.execute(sa.text("ALTER TABLE inbox_here.fence DROP CONSTRAINT fence_key"))
        await conn.execute(
            sa.text("CREATE UNIQUE INDEX ON inbox_here.fence (consumer, topic, partition, epoch) WHERE epoch > 0")
        )
    async with db.transaction() as conn:
        with pytest.raises(ConfigurationError, match="fence"):
            await migrate.check_schema(conn, t)


# -------------------------------------------------------------------------------------------------- users' alembic


USERS_ENV = """
import sqlalchemy as sa
from alembic import context
from sqlalchemy import create_engine
from tidegate.inbox.migrate import include_object

metadata = sa.MetaData()
sa.Table("invoice", metadata, sa.Column("id", sa.Integer, primary_key=True))

def run(connection):
    context.configure(connection=connection, target_metadata=metadata, include_schemas=True, {option})
    with context.begin_transaction():
        context.run_migrations()

import asyncio
from sqlalchemy.ext.asyncio import create_async_engine

async def main():
    engine = create_async_engine({url!r}, connect_args={{"server_settings": {{"search_path": "public"}}}})
    async with engine.connect() as connection:
        await connection.run_sync(run)
        await connection.commit()
    await engine.dispose()

asyncio.run(main())
"""

USERS_TEMPLATE = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
def upgrade():
    ${upgrades if upgrades else "pass"}
"""


def _autogenerate(folder: Path, database_url: str, option: str) -> str:
    (folder / "versions").mkdir(parents=True)
    url = database_url.replace("postgresql://", "postgresql+asyncpg://")
    (folder / "env.py").write_text(USERS_ENV.format(url=url, option=option))
    (folder / "script.py.mako").write_text(USERS_TEMPLATE)
    (folder / "alembic.ini").write_text(f"[alembic]\nscript_location = {folder}\npath_separator = os\n")
    command = [sys.executable, "-m", "alembic", "-c", str(folder / "alembic.ini"), "revision", "--autogenerate"]
    done = subprocess.run([*command, "-m", "first"], check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    (revision,) = (folder / "versions").glob("*.py")
    return revision.read_text()


@pytest.mark.parametrize("schema", ["inbox_here", "public"])
async def test_a_users_autogenerate_leaves_our_tables_alone(database_url: str, tmp_path: Path, schema: str) -> None:
    await migrate.upgrade(database_url, schema)
    with_helper = await asyncio.to_thread(
        _autogenerate, tmp_path / "with", database_url, f"include_object=include_object({schema!r})"
    )
    assert "create_table('invoice'" in with_helper
    assert "drop" not in with_helper, with_helper
    without = await asyncio.to_thread(_autogenerate, tmp_path / "without", database_url, "compare_type=True")
    assert "drop_table('claim_1'" in without, "without the helper our tables would be dropped: the test sees them"
