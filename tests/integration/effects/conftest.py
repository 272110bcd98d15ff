"""What the ledger's tests share: an inbox, a ledger on it, and a service that counts what it did."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.provider import Provider, provider
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[Store]:
    """A migrated database."""
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=20, tx_pool_max=2))
    yield Store(database, tables())
    await database.close()


@pytest.fixture
async def ledger(store: Store) -> AsyncIterator[Ledger]:
    """A ledger on it."""
    opened = Ledger(store)
    yield opened
    await opened.close()


@pytest.fixture
async def service() -> AsyncIterator[Provider]:
    """A service outside, with a counter."""
    async with provider() as running:
        yield running
