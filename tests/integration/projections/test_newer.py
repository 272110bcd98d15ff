"""Writes that land only if they are newer, and the count of those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.batches import BatchDesk, batch, of
from tidegate.dlq.policy import FailurePolicy
from tidegate.inbox.errors import FatalError
from tidegate.inbox.event import Event
from tidegate.projections.batch import Ran
from tidegate.projections.newer import statement_of, write_newer

ORDERS = sa.Table(
    "order_status",
    sa.MetaData(schema="public"),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer),
    sa.Column("status", sa.Text),
)

CREATE = "CREATE TABLE public.order_status (id text PRIMARY KEY, version int, status text)"


async def project(events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
    rows = [{"id": e.record.key.decode(), "version": e.value["v"], "status": e.id_text} for e in events if e.record.key]
    return Ran((), await write_newer(conn, ORDERS, rows, key=["id"], version="version"))


async def test_a_row_lands_only_if_it_is_newer_and_those_that_do_not_are_counted(desk: BatchDesk) -> None:
    await desk.execute(CREATE, "INSERT INTO public.order_status VALUES ('new', NULL, 'unversioned')")
    applier = desk.applier(await desk.declare("revenue", FailurePolicy("continue"), project, writes=False))
    await applier.apply(batch(of(0, "a", v=1), of(1, "b", v=5), of(2, "a", v=2), of(3, "b", v=4), of(4, "new", v=0)))
    assert desk.counts["stale", "revenue"] == 1
    await applier.apply(batch(of(5, "a", v=1), of(6, "b", v=5), of(7, "c", v=1)))
    assert await desk.rows("SELECT id, version, status FROM public.order_status ORDER BY id") == [
        ("a", 2, "e2"), ("b", 5, "e1"), ("c", 1, "e7"), ("new", 0, "e4"),
    ]  # fmt: skip
    assert desk.counts["stale", "revenue"] == 3
    assert desk.counts["handled", "revenue"] == 8


async def test_nothing_to_write_is_nothing_stale(desk: BatchDesk) -> None:
    await desk.execute(CREATE)
    async with desk.store.transaction() as conn:
        assert await write_newer(conn, ORDERS, [], key=["id"], version="version") == 0


def test_arrays_are_refused_by_name() -> None:
    table = sa.Table("tagged", sa.MetaData(), sa.Column("id", sa.Text), sa.Column("tags", sa.ARRAY(sa.Text)))
    with pytest.raises(ValueError, match="tagged: tags holds arrays"):
        statement_of(table, ["id", "tags"], ["id"], "id")


@pytest.mark.parametrize("returned", [-1, True, "3", [], {"n": 1}])
async def test_a_projection_that_returns_nonsense_stops_the_process_and_nothing_is_written(
    desk: BatchDesk, returned: object
) -> None:
    async def nonsense(events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
        return Ran((), returned)

    applier = desk.applier(await desk.declare("revenue", FailurePolicy("continue"), nonsense))
    with pytest.raises(FatalError, match="the projection 'revenue' returned a "):
        await applier.apply(batch(of(0)))
    assert await desk.applied() == []
    assert await desk.checkpoints() == {0: 0, 1: 0}
