"""A role with a worker's rights: it adds to the audit and seals it, and can change, remove or unlock nothing."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tidegate.inbox import audit, audit_seal, grants, outbox
from tidegate.inbox.audit import AuditLine
from tidegate.inbox.database import Database
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.migrate import check_schema
from tidegate.inbox.tables import Tables


@pytest.fixture
async def worker(db: Database, t: Tables, migrated_url: str) -> AsyncIterator[Database]:
    """The database as a role sees it that was given its rights by the printed SQL."""
    role = f"worker-{uuid.uuid4().hex[:12]}"
    async with db.transaction() as conn:
        await conn.execute(sa.text(f"CREATE ROLE \"{role}\" LOGIN PASSWORD 'secret'"))
        for statement in grants.statements(t, role).split(";\n"):
            if statement:
                await conn.execute(sa.text(statement))
    url = make_url(migrated_url).set(username=role, password="secret")
    database = Database(url.render_as_string(hide_password=False), member="worker")
    yield database
    await database.close()
    async with db.transaction() as conn:
        await conn.execute(sa.text(f'DROP OWNED BY "{role}"'))
        await conn.execute(sa.text(f'DROP ROLE "{role}"'))


async def test_it_works_writes_audits_and_seals(worker: Database, t: Tables) -> None:
    async with worker.transaction() as conn:
        await check_schema(conn, t)
        await register_handlers(conn, t, "billing", ["revenue"])
        await audit.write(conn, t, AuditLine(act="replay", actor="ann"))
        assert (await outbox.pending(conn, t, "billing")).count == 0
    sealed = 0
    while not sealed:
        async with worker.transaction() as conn:
            _, sealed = await audit_seal.seal(conn, t)
    async with worker.transaction() as conn:
        assert (await audit_seal.verify(conn, t)).problems == ()


@pytest.mark.parametrize("table", ["audit", "audit_seal"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {} SET xid = 0",
        "DELETE FROM {}",
        "TRUNCATE {}",
        "ALTER TABLE {} DISABLE TRIGGER ALL",
        "DROP TABLE {}",
        "SET session_replication_role = replica",
    ],
)
async def test_it_can_neither_change_the_audit_nor_switch_its_guard_off(
    worker: Database, statement: str, table: str
) -> None:
    with pytest.raises(DBAPIError, match=r"permission denied|must be owner"):
        async with worker.transaction() as conn:
            await conn.execute(sa.text(statement.format(f"tidegate.{table}")))


async def test_it_can_not_say_that_the_schema_is_another(worker: Database) -> None:
    with pytest.raises(DBAPIError, match="permission denied"):
        async with worker.transaction() as conn:
            await conn.execute(sa.text("UPDATE tidegate.tidegate_version SET version_num = '1'"))


@pytest.mark.parametrize("role", ["", 'a"b', "a; DROP TABLE x", "1a", "a" * 64, "a b"])
def test_what_is_no_roles_name_gets_nothing(t: Tables, role: str) -> None:
    with pytest.raises(ConfigurationError, match="is no role's name"):
        grants.statements(t, role)
