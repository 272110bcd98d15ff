"""The first records wait for what stands in the failure table, but not for ever."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.consumers.worker import learning
from tidegate.consumers.worker.learning import learn_failing, once_learned
from tidegate.inbox.database import Database
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables


async def test_work_begins_once_it_is_learned() -> None:
    learned, began = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        assert learned.is_set()
        began.set()

    waiting = asyncio.create_task(once_learned(learned, run))
    learned.set()
    await asyncio.wait_for(began.wait(), 10)
    await waiting


async def test_nobody_waits_for_a_database_that_is_away() -> None:
    store, learned = Store(Database("postgresql://nobody@127.0.0.1:1/nothing"), tables()), asyncio.Event()
    learning_on = asyncio.create_task(learn_failing(store, [1], learned))
    await asyncio.wait_for(learned.wait(), 10)
    assert not learning_on.done(), "it goes on trying"
    learning_on.cancel()
    with pytest.raises(asyncio.CancelledError):
        await learning_on


async def test_work_begins_also_where_it_cannot_be_learned_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "FIRST_MAX_S", 0.01)
    learned, began = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        began.set()

    await once_learned(learned, run)
    assert (learned.is_set(), began.is_set()) == (False, True)
