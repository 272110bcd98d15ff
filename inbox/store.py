"""The inbox as one value: its connections and its tables, and the kinds of transaction that the rooms open."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import final

from sqlalchemy.ext.asyncio import AsyncConnection

from .database import Database
from .failing import FailingIds
from .faults import STORE_ERRORS as STORE_ERRORS
from .points import Writes, between
from .tables import Tables


@final
@dataclass(frozen=True, slots=True)
class Store:
    """A database and the tables of one schema in it."""

    database: Database
    tables: Tables
    failing: FailingIds = field(default_factory=FailingIds, compare=False)
    """What this process knows of the failure table: see `claim.lock_generations`."""

    def transaction(self, writes: Writes | None = None, of: str = "") -> AbstractAsyncContextManager[AsyncConnection]:
        """Commits at its end; for the product's own work. `writes` names what it is for, `of` for whom."""
        return between(writes, self.database.transaction(), of)

    def look(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """The same where nothing is written."""
        return self.database.transaction()

    def user_transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """The same from the pool that handlers have for `ctx.tx`."""
        return self.database.user_transaction()

    @asynccontextmanager
    async def trial(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction that is rolled back at its end, whatever happened in it."""
        async with self.database.transaction() as conn:
            try:
                yield conn
            finally:
                await conn.rollback()  # also of a connection that is gone: it forgets what it had open
