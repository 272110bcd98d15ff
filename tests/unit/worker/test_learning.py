"""The first records wait for what stands in the failure table, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers.worker import learning
from tidegate.consumers.worker.learning import Learning
from tidegate.inbox.database import Database
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

NOBODY = "postgresql://nobody@127.0.0.1:1/nothing"


@dataclass
class Silent:
    """A database that does not answer before it is told to, and then is away."""

    answers: asyncio.Event = field(default_factory=asyncio.Event)

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection]:
        await self.answers.wait()
        async with Database(NOBODY).transaction() as conn:
            yield conn


async def test_work_begins_once_it_is_learned() -> None:
    database, began = Silent(), asyncio.Event()
    learns = Learning(Store(cast("Database", database), tables()), [1])

    async def run() -> None:
        assert database.answers.is_set()
        began.set()

    waiting = asyncio.create_task(learns.before(run))
    await asyncio.sleep(0)
    database.answers.set()
    async with asyncio.timeout(10):
        await began.wait()
    await waiting
    await learns.close()


async def test_nobody_waits_for_a_database_that_is_away_and_it_is_asked_again() -> None:
    learns, began = Learning(Store(Database(NOBODY), tables()), [1]), asyncio.Event()

    async def run() -> None:
        began.set()

    async with asyncio.timeout(10):
        await learns.before(run)
    going_on = asyncio.create_task(learns.run())
    await asyncio.sleep(0)
    assert (began.is_set(), going_on.done()) == (True, False)
    going_on.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going_on
    await learns.close()


async def test_work_begins_also_where_it_cannot_be_learned_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "FIRST_MAX_S", 0.01)
    database, began = Silent(), asyncio.Event()
    learns = Learning(Store(cast("Database", database), tables()), [1])

    async def run() -> None:
        began.set()

    await learns.before(run)
    assert (database.answers.is_set(), began.is_set()) == (False, True)
    await learns.close()


@dataclass
class Refusing(Silent):
    """A database that is away at once."""

    def transaction(self) -> AbstractAsyncContextManager[AsyncConnection]:
        raise ConnectionRefusedError


@pytest.mark.parametrize("turns", range(8))
async def test_a_stop_in_the_turn_in_which_it_is_learned_is_a_stop(turns: int) -> None:
    """With `asyncio.wait_for` the cancellation is lost, what looks records up never ends, and the stop hangs."""
    learns = Learning(Store(cast("Database", Refusing()), tables()), [1])

    async def run() -> None:
        await asyncio.Event().wait()

    waiting = asyncio.create_task(learns.before(run))
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,), timeout=10)
    assert waiting.cancelled()
    await learns.close()
