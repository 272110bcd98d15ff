"""Alembic's entry: runs on the connection and in the schema that `tidegate.inbox.migrate` hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from tidegate.inbox.tables import VERSION_TABLE, Tables

connection = context.config.attributes["connection"]
tables = context.config.attributes["tables"]
assert isinstance(connection, Connection)
assert isinstance(tables, Tables)

context.configure(
    connection=connection,
    target_metadata=tables.metadata,
    version_table=VERSION_TABLE,
    version_table_schema=tables.schema,
    include_schemas=True,
)
with context.begin_transaction():
    context.run_migrations()
