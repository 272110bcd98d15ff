"""What becomes of a batch when too many events of its projection wait already."""

from __future__ import annotations

import pytest

from tests.support.batches import BatchDesk, Trouble, batch, of
from tidegate.dlq.breakers import DeadBreakers
from tidegate.dlq.parked_limits import ParkedLimits
from tidegate.dlq.policy import AtLimit, BreakerPolicy, FailurePolicy
from tidegate.dlq.retry import RetryPolicy
from tidegate.inbox.breaker_phase import Phase
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.errors import DependencyError
from tidegate.projections.apply import Applier
from tidegate.projections.settling import Breakers


async def applier_of(desk: BatchDesk, at_limit: AtLimit, breakers: Breakers | None = None, most: int = 2) -> Applier:
    """So many events may wait, of one key or together."""
    policy = FailurePolicy(
        "block", RetryPolicy(in_place_max_s=0.0), key_parked_max=most, parked_max=most, at_limit=at_limit
    )
    bound = await desk.declare("revenue", policy, Trouble())
    limits = ParkedLimits({bound.handler_id: (bound.name, policy)}, lambda _: None, lambda _: None)
    return desk.applier(bound, limits=limits, breakers=breakers)


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


async def test_letters_for_which_the_queue_has_no_room_are_held_back_by_the_breaker_too(desk: BatchDesk) -> None:
    """The batch waits as it does under `pause`, and is no try: it would find the queue as it was.

    Case: B35
    Parts: real (PostgreSQL)
    Red when: projections/steps.py `_limit` lets them die without TooManyWait
    """
    phases, clock = list[Phase](), ManualClock()
    policy = BreakerPolicy(row_max=2, retry_after_s=60.0)
    breakers = DeadBreakers({"revenue": policy}, clock, lambda name, phase, why: phases.append(phase))
    applier = await applier_of(desk, "dead", breakers)
    await applier.apply(batch(of(0, transient=100), of(1)))
    await applier.apply(batch(of(2), of(3)))
    over = batch(of(4), of(5, "other"), of(6), of(7), of(8))
    for seconds in (0.0, 60.0, 60.0):
        clock.advance(seconds)
        with pytest.raises(DependencyError, match="parked_limit:revenue"):
            await applier.apply(over)
    assert phases == [Phase.OPEN]
    dead = ("dead", "skipped_limit", False)
    assert [one for one in (await desk.failures()).values() if one[0] == "dead"] == [dead, dead]
    assert await desk.applied() == []
    assert await desk.checkpoints() == {0: 4, 1: 0}
    breakers.close("revenue")
    await applier.apply(batch(of(4), of(5, "other"), of(6)))
    assert await desk.applied() == ["e5"]
    assert [id_ for id_, one in (await desk.failures()).items() if one == dead] == ["e2", "e3", "e4", "e6"]
    assert await desk.checkpoints() == {0: 7, 1: 0}


async def test_a_search_of_several_passes_does_not_use_the_room_in_the_queue_several_times(desk: BatchDesk) -> None:
    """Each pass asks anew, and all but the last are undone."""
    applier = await applier_of(desk, "dead", most=4)
    await applier.apply(batch(of(0, transient=100)))
    others = [of(n, f"other{n}", permanent=True) for n in range(3, 7)]
    await applier.apply(batch(of(1), of(2), *others))
    assert await desk.lane() == ["e0", "e1", "e2"]
    assert {one[:2] for id_, one in (await desk.failures()).items() if id_ > "e2"} == {("dead", "rejected")}
