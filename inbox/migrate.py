"""Bring the schema up to this release, say how far it is, and refuse to run on one that cannot keep the promise."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.schema import SchemaItem

from .database import Database, DatabaseSettings
from .errors import ConfigurationError, FatalError, Problem
from .tables import DEFAULT_SCHEMA, VERSION_TABLE, Tables, advisory_key, tables

_MIGRATIONS: Final = Path(__file__).parent / "migrations"

_LOCK_WAIT_S: Final = 300.0
"""How long a migrator waits for another one: longer than a migration takes, shorter than a deploy's patience."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """The revisions before and after; None where there was no schema."""

    before: str | None
    after: str


async def upgrade(url: str, schema: str = DEFAULT_SCHEMA) -> Migrated:
    """Make or bring up to date everything in `schema`, in one transaction.

    Any number may run at once: each waits for the one before it (an advisory lock that ends with the transaction, so
    that a killed migrator never leaves it behind) and then finds nothing to do.

    Raises:
        FatalError: the schema belongs to a newer release.
    """
    t = tables(schema)
    settings = DatabaseSettings(
        pool_max=1, tx_pool_max=1, statement_timeout_s=_LOCK_WAIT_S, lock_timeout_s=_LOCK_WAIT_S
    )
    database = Database(url, member="migrate", settings=settings)
    try:
        async with database.transaction() as conn:
            return await upgrade_in(conn, t)
    finally:
        await database.close()


async def upgrade_in(conn: AsyncConnection, t: Tables) -> Migrated:
    """The same in a transaction of the caller's, which touches nothing else."""
    await conn.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": advisory_key(t.schema, "migrate")})
    before = await current(conn, t)
    if before is not None and before not in known():
        raise _newer(t.schema, before)
    if before != expected():
        await conn.execute(t.sql("CREATE SCHEMA IF NOT EXISTS {schema}"))
        await conn.execute(t.sql("SET LOCAL search_path TO {schema}"))
        await conn.run_sync(_run_alembic, t)
    return Migrated(before, expected())


def _run_alembic(connection: sa.Connection, t: Tables) -> None:
    config = _config()
    config.attributes["connection"] = connection
    config.attributes["tables"] = t
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def expected() -> str:
    """The revision that this release works with."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def known() -> frozenset[str]:
    """Every revision that this release has heard of."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


async def current(conn: AsyncConnection, t: Tables) -> str | None:
    """The revision that the schema is at; None where there is none."""
    table = await conn.scalar(t.sql("SELECT CAST(to_regclass('{schema}.tidegate_version') AS text)"))
    if table is None:
        return None
    revision: str | None = await conn.scalar(t.sql("SELECT version_num FROM {schema}.tidegate_version"))
    return revision


async def check_schema(conn: AsyncConnection, t: Tables) -> None:
    """Refuse a schema that is missing, of another release, or without one of the keys that all else rests on.

    Raises:
        ConfigurationError: missing or older than this release (migrate), or a unique key was dropped (put it back).
        FatalError: newer than this release.
    """
    revision = await current(conn, t)
    if revision is None:
        raise ConfigurationError.of(
            "database.schema", f"there is no tidegate schema {t.schema!r} in this database", "run `tidegate migrate`"
        )
    if revision not in known():
        raise _newer(t.schema, revision)
    if revision != expected():
        raise ConfigurationError.of(
            "database.schema",
            f"the schema {t.schema!r} is at revision {revision}, this release needs {expected()}",
            "run `tidegate migrate` before the new release starts",
        )
    if problems := _missing_keys(t, await _unique_keys(conn, t.schema)):
        raise ConfigurationError(problems)


def _newer(schema: str, revision: str) -> FatalError:
    return FatalError(
        f"the schema {schema!r} is at revision {revision}, which this release does not know: it is newer",
        fix="run the release of tidegate that migrated it, or a later one",
    )


@dataclass(frozen=True, slots=True)
class _UniqueKey:
    """A unique key: its table and columns in their order; `whole` = without a WHERE, so that row locks know it."""

    table: str
    columns: tuple[str, ...]
    whole: bool


def _missing_keys(t: Tables, found: frozenset[_UniqueKey]) -> list[Problem]:
    return [
        Problem(
            f"{t.schema}.{key.table}",
            f"the unique key ({', '.join(key.columns)}) is missing, so repeats could be handled twice",
            "find out who dropped it, remove rows that repeat, and make it again as in `inbox/migrations`",
        )
        for key in sorted(_expected_keys(t) - found, key=str)
    ]


def _expected_keys(t: Tables) -> frozenset[_UniqueKey]:
    keys: set[_UniqueKey] = set()
    for table in t.metadata.tables.values():
        for constraint in table.constraints:
            if isinstance(constraint, (sa.PrimaryKeyConstraint, sa.UniqueConstraint)):
                keys.add(_UniqueKey(table.name, tuple(column.name for column in constraint.columns), whole=True))
        for index in table.indexes:
            if index.unique:
                whole = index.dialect_options["postgresql"]["where"] is None
                keys.add(_UniqueKey(table.name, tuple(column.name for column in index.columns), whole))
    return frozenset(keys)


async def _unique_keys(conn: AsyncConnection, schema: str) -> frozenset[_UniqueKey]:
    rows = await conn.execute(
        sa.text("""
            SELECT c.relname, i.indpred IS NULL,
                   array(SELECT a.attname::text FROM unnest(i.indkey::smallint[]) WITH ORDINALITY k (attnum, place)
                           JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum ORDER BY k.place)
              FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = :schema AND i.indisunique AND i.indisvalid AND i.indimmediate
        """),
        {"schema": schema},
    )
    return frozenset(_UniqueKey(table, tuple(columns), whole) for table, whole, columns in rows)


IncludeObject = Callable[[SchemaItem, str | None, str, bool, SchemaItem | None], bool]


def include_object(schema: str = DEFAULT_SCHEMA) -> IncludeObject:
    """For a user's own `env.py`: `context.configure(..., include_object=include_object())`.

    Keeps `alembic revision --autogenerate` off our tables, which their metadata does not know and would drop. In a
    schema of our own everything is ours; in `public` only what has one of our names.
    """
    names = {table.name for table in tables(schema).metadata.tables.values()} | {VERSION_TABLE}

    def ours(table: sa.Table) -> bool:
        if (table.schema or "public") != schema:
            return False
        return schema != "public" or table.name in names or re.fullmatch(r"claim_\d+", table.name) is not None

    def include(item: SchemaItem, name: str | None, type_: str, reflected: bool, compare_to: SchemaItem | None) -> bool:
        table = cast("object", item if type_ == "table" else getattr(item, "table", None))
        return not (isinstance(table, sa.Table) and ours(cast("sa.Table", table)))

    return include
