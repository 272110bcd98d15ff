"""The database: two pools of connections, transactions that leave no dirty connection behind, no secret in any text.

The first pool serves the product (claims, completions, takeovers); the second one is for `ctx.tx` alone, so that a
handler that keeps its transaction open never keeps a completion from its connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

import asyncpg
import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from .answering import Answering
from .faults import STORE_ERRORS
from .faults import Fault as Fault
from .faults import classify as classify
from .finishing import to_the_end

APPLICATION_NAME: Final = "tidegate"
"""What every connection of ours carries first in its `application_name`: a takeover terminates only such backends."""


_NO_MORE: Final[Mapping[str, str]] = MappingProxyType({})


class NotConnectedError(ConnectionError):
    """The server answers, and does not let us in: it restarts, is full, is being restored, has another password by now.

    Whatever SQLSTATE it gives as its reason, no record is to blame: the database is away.
    """


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """How many connections, and how long anything may wait. Each time bound is kept by the server where it can be."""

    pool_max: int = 8
    """Connections for the product: batches, completions, relay, takeover and health run side by side."""
    tx_pool_max: int = 10
    """Connections for `ctx.tx`: bounds how many handlers may have a transaction open."""
    pool_wait_s: float = 5.0
    """A checkout that waits longer fails: the pool is too small, and waiting on would only hide it."""
    connect_timeout_s: float = 10.0
    statement_timeout_s: float = 30.0
    lock_timeout_s: float = 10.0
    """A duplicate that waits for the first one's open transaction becomes a transient outcome after this long."""
    idle_in_transaction_s: float = 60.0
    recycle_s: int = 1800
    """Connections are made anew now and then, so that a changed address or certificate is noticed."""


@final
class Database:
    """The connections to one PostgreSQL, given by a plain `postgresql://` URL (any form that libpq knows).

    Every transaction is READ COMMITTED, whatever the role or database has set: `ON CONFLICT DO NOTHING` and the
    fence's row locks rest on each statement seeing what was committed before it.
    """

    def __init__(self, url: str, *, member: str = "", settings: DatabaseSettings | None = None) -> None:
        """`member` says who connects (consumer and host, say); it is shown in `pg_stat_activity`."""
        self._url = url
        self.settings = settings if settings is not None else DatabaseSettings()
        self.application_name = f"{APPLICATION_NAME} {member}".strip()[:63]
        self.answering = Answering()
        self._engine = self._new_engine(self.settings.pool_max)
        self._tx_engine = self._new_engine(self.settings.tx_pool_max)

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction on a connection of the product's pool: commits at the end, rolls back on an error.

        A cancellation never interrupts BEGIN, COMMIT or ROLLBACK. One that hits a statement gives the connection up
        (the server rolls back) and is raised again once the pool has its place back.
        """
        return _transaction(self._engine, self.answering)

    def user_transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """The same on a connection of the pool for `ctx.tx`."""
        return _transaction(self._tx_engine, self.answering)

    async def connection(self, **settings: str) -> asyncpg.Connection[Any]:
        """A connection outside the pools, with the same settings and these; whoever asks for it closes it."""
        return await self._connect(settings)

    async def ping(self) -> None:
        """The health check: raises what `classify` understands if the database does not answer."""
        if not await self.answering.answered():
            async with self.transaction() as conn:
                await conn.execute(sa.text("SELECT 1"))

    async def close(self) -> None:
        """Close all connections that are not in use."""
        await self._engine.dispose()
        await self._tx_engine.dispose()

    def in_use(self) -> tuple[int, int]:
        """How many connections are out of the product's pool and out of the one for `ctx.tx`."""
        return _checked_out(self._engine), _checked_out(self._tx_engine)

    def __repr__(self) -> str:
        return f"Database({redact_dsn(self._url)})"

    def _new_engine(self, size: int) -> AsyncEngine:
        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_size=size,
            max_overflow=0,
            pool_timeout=self.settings.pool_wait_s,
            pool_recycle=self.settings.recycle_s,
            isolation_level="READ COMMITTED",
            hide_parameters=True,
        )
        event.listen(engine.sync_engine, "checkout", _refuse_unusable)
        return engine

    async def _connect(self, settings: Mapping[str, str] = _NO_MORE) -> asyncpg.Connection[Any]:
        given = {**self._server_settings(), **settings}
        try:
            return await asyncpg.connect(self._url, timeout=self.settings.connect_timeout_s, server_settings=given)
        except asyncpg.PostgresError as error:
            raise NotConnectedError(f"{type(error).__name__}, SQLSTATE {error.sqlstate}") from error

    def _server_settings(self) -> dict[str, str]:
        settings = self.settings
        return {
            "application_name": self.application_name,
            "statement_timeout": _ms(settings.statement_timeout_s),
            "lock_timeout": _ms(settings.lock_timeout_s),
            "idle_in_transaction_session_timeout": _ms(settings.idle_in_transaction_s),
            "default_transaction_isolation": "read committed",
            "jit": "off",  # compiling costs more than any of our statements takes
            # A plan that was made and kept while a table was small would scan it when it is large.
            "plan_cache_mode": "force_custom_plan",
        }


def raw(conn: AsyncConnection) -> asyncpg.Connection[Any]:
    """The asyncpg connection under `conn`, for COPY, inside the transaction that `conn` has open.

    SQLAlchemy sends BEGIN with the first statement, so one must have run: otherwise this is a bug and says so.
    """
    sync = conn.sync_connection
    assert sync is not None, "the connection is closed"
    driver: asyncpg.Connection[Any] | None = sync.connection.driver_connection
    assert driver is not None, "the connection was given up"
    assert driver.is_in_transaction(), "no statement ran yet, so no transaction is open"
    return driver


def redact_dsn(url: str) -> str:
    """The URL without its password, wherever it stands in it."""
    without_userinfo = re.sub(r"(//[^:@/?#]*):[^?\s]*@", r"\1:***@", url)
    return re.sub(r"((?:^|[?&\s])(?:ssl)?password=)('[^']*'|[^&\s]*)", r"\1***", without_userinfo)


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _checked_out(engine: AsyncEngine) -> int:
    pool = engine.pool
    assert isinstance(pool, sa.pool.QueuePool)
    return pool.checkedout()


def _refuse_unusable(dbapi_connection: Any, _record: object, _proxy: object) -> None:
    """Have the pool replace a connection that is closed or still in a transaction.

    This stands for SQLAlchemy's `pool_pre_ping`, whose three round trips each checkout would pay: the event loop
    learns at once that a connection was closed, and a unit of work that meets a dead one is run again anyway.
    """
    driver: asyncpg.Connection[Any] = dbapi_connection.driver_connection
    if driver.is_closed() or driver.is_in_transaction():
        raise exc.DisconnectionError("the connection is not usable any more")


@asynccontextmanager
async def _transaction(engine: AsyncEngine, answering: Answering) -> AsyncGenerator[AsyncConnection, None]:
    conn = await _checkout(engine)
    try:
        yield conn
        await to_the_end(_commit(conn, answering))
    except asyncio.CancelledError:
        await to_the_end(give_up(conn))
        raise
    finally:
        await to_the_end(_check_in(conn))


async def _checkout(engine: AsyncEngine) -> AsyncConnection:
    conn = engine.connect()
    begun = False
    try:
        await to_the_end(_begin(conn))
        begun = True
    finally:
        if not begun and conn.sync_connection is not None:
            await to_the_end(_check_in(conn))
    return conn


async def _begin(conn: AsyncConnection) -> None:
    await conn.start()
    await conn.begin()


async def _commit(conn: AsyncConnection, answering: Answering) -> None:
    """A commit of what sent no statement is none: nothing goes to the server, and nothing is learned of it."""
    driver = _driver(conn)
    if driver is None or not driver.is_in_transaction():
        await conn.commit()
        return
    with answering.sending():
        await conn.commit()


async def _check_in(conn: AsyncConnection) -> None:
    """Back to the pool, rolled back; a connection that was lost in asyncpg's own calls is not, since nobody told it.

    Nor is one whose ROLLBACK fails: that the server does once it is gone, and what went wrong is known already.
    """
    if _is_lost(conn):
        await give_up(conn)
    try:
        await conn.close()
    except STORE_ERRORS:
        await give_up(conn)
        await conn.close()


def _is_lost(conn: AsyncConnection) -> bool:
    sync = conn.sync_connection
    if sync is None or sync.closed or sync.invalidated:
        return False
    driver = _driver(conn)
    return driver is None or driver.is_closed()


def _driver(conn: AsyncConnection) -> asyncpg.Connection[Any] | None:
    sync = conn.sync_connection
    if sync is None or sync.closed or sync.invalidated:
        return None
    driver: asyncpg.Connection[Any] | None = sync.connection.driver_connection
    return driver


async def give_up(conn: AsyncConnection) -> None:
    """The server undoes what it holds, and whoever still has it reaches nothing by it."""
    if not conn.closed and not conn.invalidated:
        await conn.invalidate()
