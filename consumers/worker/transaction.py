"""The handler's own transaction: opened at its first use, fenced as it opens, committed with the claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, final

from sqlalchemy import CursorResult
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncTransaction

from ...inbox import fence
from ...inbox.database import give_up
from ...inbox.errors import OwnershipLost, TransientError
from ...inbox.event import Partition
from ...inbox.points import Writes, reach
from ...inbox.store import Store
from ..context import Tx


class TxPoolFullError(TransientError):
    """Others hold all connections for `ctx.tx`: waiting for a place is no failure of the handler that waits."""


@final
class _Statements:
    """Which tasks run a statement now: a thread's outlives the handling that it was made for."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Future[None], asyncio.Task[Any]] = {}

    @contextmanager
    def one(self) -> Generator[None]:
        """A statement, in the current task."""
        task = asyncio.current_task()
        assert task is not None, "statements run in tasks"
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running[ended] = task
        try:
            yield
        finally:
            del self._running[ended]
            ended.set_result(None)

    async def cut_off(self) -> None:
        """End those of other tasks; the tasks themselves may go on, if they are of a handler that nothing ends."""
        here = asyncio.current_task()
        left = {ended: task for ended, task in self._running.items() if task is not here}
        for task in left.values():
            task.cancel()
        if left:
            await asyncio.wait(left)


@final
class LazyTx:
    """`ctx.tx`. Its pool is the handlers' own, so that claims and takeovers never wait for a handler.

    Between opening and the end of the handler the transaction holds the fence row's key-share lock: a takeover waits
    for it (bounded by the takeover's own limit), and a zombie's transaction does not open at all.
    """

    def __init__(
        self,
        store: Store,
        consumer: str,
        partition: Partition,
        fence_epoch: int,
        before_open: Callable[[], None] | None = None,
        *,
        closed: bool = False,
    ) -> None:
        """`before_open` may raise: then it is not opened. `closed`: its handling is over already."""
        self._before_open = before_open
        self.asked_for = False
        self._store = store
        self._consumer = consumer
        self._partition = partition
        self._fence_epoch = fence_epoch
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._conn: AsyncConnection | None = None
        self._begun: AsyncTransaction | None = None
        self._closed = closed
        self._statements = _Statements()

    @property
    def opened(self) -> AsyncConnection | None:
        """The connection, None where the handler never asked for it."""
        return self._conn

    def __await__(self) -> Generator[Any, None, AsyncConnection]:
        return self.connection().__await__()

    async def connection(self) -> AsyncConnection:
        """The SQLAlchemy connection, in a transaction that the framework commits. Raises OwnershipLost."""
        async with self._opening:
            if self._closed:
                raise RuntimeError("the handling that this transaction belongs to has ended")
            if self._conn is None:
                if self._before_open is not None:
                    self._before_open()
                self.asked_for = True
                conn = await self._open()
                if self._closed:  # meanwhile, and nobody else knows of it
                    await self._stack.aclose()
                    raise RuntimeError("the handling that this transaction belongs to ended before it was open")
                self._conn = conn
            return self._conn

    async def execute(self, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        """Run one statement."""
        with self._statements.one():
            return await (await self.connection()).execute(statement, parameters)

    async def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """The first column of the first row, None without a row."""
        with self._statements.one():
            return await (await self.connection()).scalar(statement, parameters)

    async def seal(self) -> None:
        """The handler is done with it: what it left running is cut off, what it begins from now on is refused."""
        self._closed, self._before_open = True, None
        await self._statements.cut_off()

    async def give_up(self) -> None:
        """Its handler goes on past its end: take the connection from it, and the database undoes what it wrote."""
        self._closed = True
        if self._conn is not None:
            await give_up(self._conn)

    async def _open(self) -> AsyncConnection:
        try:
            conn = await self._stack.enter_async_context(self._store.user_transaction())
        except PoolTimeoutError as error:
            raise TxPoolFullError("every connection for ctx.tx is in use: raise database.tx_pool_max") from error
        held = await fence.hold(conn, self._store.tables, self._consumer, {self._partition: self._fence_epoch})
        if self._partition not in held:
            raise OwnershipLost(f"{self._partition} is held by somebody else")
        self._begun = conn.get_transaction()
        return conn

    @property
    def ended_by_handler(self) -> bool:
        """The handler committed or rolled back by itself: what it wrote then stands or falls without its claim."""
        return self._conn is not None and self._conn.get_transaction() is not self._begun

    async def commit(self, of: str) -> None:
        """Make everything durable. An error here leaves open whether it is: the claim decides at the next attempt."""
        if self._conn is not None:
            reach(Writes.TX.before, of)
            await self._conn.commit()
            reach(Writes.TX.after, of)

    async def close(self, error: BaseException | None = None) -> None:
        """Give the connection back; what was not committed is undone."""
        await self.seal()
        if error is None:
            await self._stack.aclose()
        else:
            await self._stack.__aexit__(type(error), error, error.__traceback__)


@final
class OpenTx:
    """The same contract over a transaction that is open already: the one of a projection's batch."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn
        self._closed = False
        self._statements = _Statements()

    def __await__(self) -> Generator[Any, None, AsyncConnection]:
        return self.connection().__await__()

    async def connection(self) -> AsyncConnection:
        """The batch's connection."""
        if self._closed:
            raise RuntimeError("the handling that this transaction belongs to has ended")
        return self._conn

    async def execute(self, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        """Run one statement."""
        with self._statements.one():
            return await (await self.connection()).execute(statement, parameters)

    async def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """The first column of the first row, None without a row."""
        with self._statements.one():
            return await (await self.connection()).scalar(statement, parameters)

    async def seal(self) -> None:
        """The batch goes on without this handler: what it left running is cut off, what it begins is refused."""
        self._closed = True
        await self._statements.cut_off()


@final
class BlockingTx:
    """The same for a `def` handler: its thread waits, the loop does the work."""

    def __init__(self, tx: Tx, loop: asyncio.AbstractEventLoop) -> None:
        self._tx = tx
        self._loop = loop

    def execute(self, statement: Any, parameters: Any = None) -> CursorResult[Any]:
        """Run one statement."""
        return asyncio.run_coroutine_threadsafe(self._tx.execute(statement, parameters), self._loop).result()

    def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """The first column of the first row, None without a row."""
        return asyncio.run_coroutine_threadsafe(self._tx.scalar(statement, parameters), self._loop).result()
