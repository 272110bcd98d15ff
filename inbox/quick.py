"""One connection that its owner keeps, for short transactions that come by the hundred a second.

SQLAlchemy's way of a statement costs 80 microseconds of Python and its checkout three times that, however little is
asked: a worker that writes a group every few milliseconds would spend a fifth of its time on it. Here a statement is
prepared once and costs 15 and its way to the server.

Owned by one task at a time. What if the connection is lost, in whatever line? The error goes out, nothing of the
transaction is durable unless it happened in the COMMIT, and the next transaction connects anew. What if its owner is
cancelled? The connection is given up, which rolls back; how a COMMIT on its way ended nobody learns, as after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, TypeAlias, final

import asyncpg
import sqlalchemy as sa
from asyncpg.prepared_stmt import PreparedStatement
from sqlalchemy.dialects.postgresql import asyncpg as dialects

from .database import Database
from .finishing import to_the_end
from .points import Writes, are_armed, between
from .store import STORE_ERRORS

_DIALECT: Final = dialects.dialect()

PLANS: Final = MappingProxyType(
    {
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_bitmapscan": "off",
    }
)
"""Planned once for a connection, by keys only: planning each group anew takes the server as long as writing twenty rows
or fifty claims, and a plan that was made while the table was small must not scan it when it is large.
"""

CLOSE_S: Final = 2.0
"""A server that does not answer a farewell for so long gets none."""

Row: TypeAlias = "asyncpg.Record"


@final
class Statements:
    """What an open transaction is asked through."""

    __slots__ = ("_driver", "_prepared")

    def __init__(self, driver: asyncpg.Connection[Any]) -> None:
        self._driver = driver
        self._prepared: dict[sa.TextClause, tuple[PreparedStatement[Row], tuple[str, ...]]] = {}

    async def fetch(self, statement: sa.TextClause, parameters: Mapping[str, object]) -> list[Row]:
        """The rows of a statement of ours (`Tables.sql`); its parameters are arrays and plain values."""
        known = self._prepared.get(statement)
        if known is None:
            known = self._prepared[statement] = await self._prepare(statement)
        prepared, names = known
        return await prepared.fetch(*[parameters[name] for name in names])

    async def _prepare(self, statement: sa.TextClause) -> tuple[PreparedStatement[Row], tuple[str, ...]]:
        compiled = statement.compile(dialect=_DIALECT)
        return await self._driver.prepare(str(compiled)), tuple(getattr(compiled, "positiontup", None) or ())


@final
class QuickStore:
    """The connection, made when it is first needed and anew when it is lost or old."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._driver: asyncpg.Connection[Any] | None = None
        self._statements: Statements | None = None
        self._old_at_s = 0.0

    def transaction(self, writes: Writes, of: str = "") -> AbstractAsyncContextManager[Statements]:
        """Commits at its end, rolls back on an error. `writes` names what it is for, `of` for whom."""
        return between(writes, self._transaction(), of)

    def single(self, writes: Writes | None, of: str = "") -> AbstractAsyncContextManager[Statements]:
        """For one statement that is its own transaction: durable when it answers. `writes` is None where it writes
        nothing, so that it is no point at which tests have a process die.
        """
        return self._single() if writes is None or not are_armed() else between(writes, self._transaction(), of)

    @asynccontextmanager
    async def _single(self) -> AsyncGenerator[Statements]:
        _, statements = await self._connected()
        try:
            with self._database.answering.sending():
                yield statements
        except asyncio.CancelledError:
            self._give_up()
            raise

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Statements]:
        driver, statements = await self._connected()
        try:
            await driver.execute("BEGIN")
            yield statements
            with self._database.answering.sending():
                await driver.execute("COMMIT")
        except asyncio.CancelledError:
            self._give_up()
            raise
        except BaseException:
            await to_the_end(self._undo(driver))
            raise

    async def close(self) -> None:
        """Say good-bye to the server."""
        driver, self._driver = self._driver, None
        if driver is not None and not driver.is_closed():
            with suppress(*STORE_ERRORS):
                await to_the_end(driver.close(timeout=CLOSE_S))

    async def _connected(self) -> tuple[asyncpg.Connection[Any], Statements]:
        now_s = asyncio.get_running_loop().time()
        if self._driver is not None and (now_s >= self._old_at_s or self._driver.is_closed()):
            await self.close()
        if self._driver is None or self._statements is None:
            self._driver = await self._database.connection(**PLANS)
            self._statements = Statements(self._driver)
            self._old_at_s = now_s + self._database.settings.recycle_s
        return self._driver, self._statements

    async def _undo(self, driver: asyncpg.Connection[Any]) -> None:
        try:
            await driver.execute("ROLLBACK")
        except STORE_ERRORS:
            self._give_up()

    def _give_up(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.terminate()
