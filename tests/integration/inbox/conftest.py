"""What the inbox's tests share: a migrated database of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.tables import Tables, tables


@pytest.fixture
def t() -> Tables:
    """The tables in the default schema."""
    return tables()


@pytest.fixture
async def db(migrated_url: str) -> AsyncIterator[Database]:
    """A migrated database."""
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=20, tx_pool_max=2))
    try:
        yield database
    finally:
        await database.close()
