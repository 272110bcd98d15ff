"""What becomes of a batch when too many events of its projection wait already."""

from __future__ import annotations

import pytest

from tests.support.batches import BatchDesk, Trouble, batch, of
from tidegate.dlq.parked_limits import ParkedLimits
from tidegate.dlq.policy import AtLimit, FailurePolicy
from tidegate.dlq.retry import RetryPolicy
from tidegate.inbox.errors import DependencyError
from tidegate.projections.apply import Applier


async def applier_of(desk: BatchDesk, at_limit: AtLimit) -> Applier:
    """Two events of one key may wait."""
    policy = FailurePolicy("block", RetryPolicy(in_place_max_s=0.0), key_parked_max=2, at_limit=at_limit)
    bound = await desk.declare("revenue", policy, Trouble())
    limits = ParkedLimits({bound.handler_id: (bound.name, policy)}, lambda _: None, lambda _: None)
    return desk.applier(bound, limits=limits)


async def test_a_newcomer_beyond_the_limit_is_dead_where_that_is_declared(desk: BatchDesk) -> None:
    applier = await applier_of(desk, "dead")
    await applier.apply(batch(of(0, transient=100)))
    await applier.apply(batch(of(1), of(2), of(3, "other"), of(4)))
    dead = ("dead", "skipped_limit", False)
    assert (await desk.failures())["e2"] == dead
    assert (await desk.failures())["e4"] == dead
    assert await desk.lane() == ["e0", "e1"]
    assert await desk.applied() == ["e3"]
    assert await desk.checkpoints() == {0: 5, 1: 0}


async def test_otherwise_the_batch_waits_undone(desk: BatchDesk) -> None:
    applier = await applier_of(desk, "pause")
    await applier.apply(batch(of(0, transient=100), of(1)))
    with pytest.raises(DependencyError, match="parked_limit:revenue"):
        await applier.apply(batch(of(2), of(3, "other")))
    assert await desk.applied() == []
    assert await desk.checkpoints() == {0: 2, 1: 0}
    await desk.execute("DELETE FROM tidegate.failure", "UPDATE tidegate.parked_key SET waiting = 0, head_seq = NULL,"
                       " head_due = NULL, head_home_topic = NULL, head_home_partition = NULL")  # fmt: skip
    await applier.apply(batch(of(2), of(3, "other")))
    assert await desk.applied() == ["e2", "e3"]
