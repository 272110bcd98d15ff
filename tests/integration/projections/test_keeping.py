"""A projection that ends the transaction of its batch itself."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.batches import BatchDesk, RefusedError, Trouble, batch, note, of
from tidegate.dlq.policy import FailurePolicy
from tidegate.inbox.errors import FatalError
from tidegate.inbox.event import Event
from tidegate.projections.batch import Ran
from tidegate.projections.keeping import EndedItselfError

CONTINUE = FailurePolicy("continue")

Ending = Callable[[AsyncConnection], Awaitable[None]]


async def commit(conn: AsyncConnection) -> None:
    await conn.commit()


async def roll_back(conn: AsyncConnection) -> None:
    await conn.rollback()


async def commit_below(conn: AsyncConnection) -> None:
    await conn.run_sync(lambda sync: sync.commit())


async def commit_the_transaction(conn: AsyncConnection) -> None:
    transaction = conn.get_transaction()
    assert transaction is not None
    await transaction.commit()


@pytest.mark.parametrize("ending", [commit, roll_back, commit_below, commit_the_transaction])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
async def test_a_projection_that_ends_its_transaction_is_refused_and_nothing_is_written(
    desk: BatchDesk, ending: Ending, shared: bool, swallowed: bool
) -> None:
    """Its claims stand before it runs, so a commit in the middle would lose the rest of its work in silence.

    Case: B36
    Parts: real (PostgreSQL)
    Red when: projections/keeping.py `kept_open` listens to nothing
    """

    async def half(events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
        await note(events[:1], conn, "revenue")
        with contextlib.suppress(EndedItselfError) if swallowed else contextlib.nullcontext():
            await ending(conn)
        return Ran(())

    bound = [await desk.declare("revenue", CONTINUE, half, writes=False)]
    if shared:
        bound.append(await desk.declare("another", CONTINUE, Trouble()))
    with pytest.raises(FatalError, match="tried to end the transaction"):
        await desk.applier(*bound).apply(batch(of(0), of(1)))
    assert await desk.applied() == []
    assert await desk.rows("SELECT count(*) FROM tidegate.claim_1") == [(0,)]
    assert await desk.checkpoints() == {0: 0, 1: 0}
    assert desk.store.database.in_use() == (0, 0)


async def test_a_commit_that_goes_past_the_driver_is_noticed(desk: BatchDesk) -> None:
    async def half(events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
        await conn.execute(text("COMMIT"))
        return Ran(())

    applier = desk.applier(await desk.declare("revenue", CONTINUE, half, writes=False))
    with pytest.raises(FatalError, match="ended the transaction of its batch: what it wrote until then stands"):
        await applier.apply(batch(of(0), of(1)))


async def test_savepoints_are_the_functions_own(desk: BatchDesk) -> None:
    async def careful(events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
        for event in events:
            savepoint = await conn.begin_nested()
            await note([event], conn, "revenue")
            if event.value.get("doubtful"):
                await savepoint.rollback()
            else:
                await savepoint.commit()
        if any(event.value.get("permanent") for event in events):
            raise RefusedError("no")
        return Ran(())

    applier = desk.applier(await desk.declare("revenue", CONTINUE, careful, writes=False))
    await applier.apply(batch(of(0), of(1, doubtful=True), of(2), of(3, permanent=True)))
    assert await desk.applied() == ["e0", "e2"]
    assert await desk.failures() == {"e3": ("dead", "rejected", True)}


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
async def test_a_database_error_that_the_function_swallows_is_its_events_failure(desk: BatchDesk, shared: bool) -> None:
    """PostgreSQL refuses every later statement of the transaction, ours too: that is no failure of ours."""

    async def careless(events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
        await note(events, conn, "revenue")
        if any(event.value.get("bad") for event in events):
            with contextlib.suppress(DBAPIError):
                await conn.execute(text("SELECT 1 / 0"))
        return Ran(())

    bound = [await desk.declare("revenue", CONTINUE, careless, writes=False)]
    if shared:
        bound.append(await desk.declare("another", CONTINUE, Trouble()))
    await desk.applier(*bound).apply(batch(of(0), of(1, bad=True), of(2)))
    assert await desk.applied() == ["e0", "e2"]
    assert await desk.failures() == {"e1": ("dead", "rejected", True)}
