"""What becomes of each event of a batch by which a projection failed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.batches import BatchDesk, RefusedError, Trouble, batch, of
from tidegate.dlq.policy import FailurePolicy, review_on, skip_on, stop_on
from tidegate.dlq.retry import RetryPolicy
from tidegate.inbox.errors import FatalError

QUICK = RetryPolicy(base_s=0.001, in_place_max_s=10.0)
"""Every wait is spent in memory, and is short."""

NO_WAIT = RetryPolicy(in_place_max_s=0.0)
"""Every wait is spent in the queue."""

CONTINUE = FailurePolicy("continue", QUICK)
BLOCK = FailurePolicy("block", QUICK)


async def test_one_failure_in_a_batch_drops_and_repeats_none_of_its_neighbours(desk: BatchDesk) -> None:
    """Ten events, of which the fourth never goes well and the seventh fails once: nine effects, one letter, commit 10.

    Case: B36
    Parts: real (PostgreSQL)
    Red when: projections/search.py `failed` takes `if False` for its first `if`
    """
    trouble = Trouble()
    revenue = await desk.declare("revenue", CONTINUE, trouble)
    special: dict[int, dict[str, Any]] = {4: {"permanent": True}, 7: {"transient": 1}}
    events = [of(n, f"k{n}", **special.get(n, {})) for n in range(10)]
    assert await desk.applier(revenue).apply(batch(*events)) == set()
    assert await desk.applied() == [f"e{n}" for n in range(10) if n != 4]
    assert await desk.failures() == {"e4": ("dead", "rejected", True)}
    assert await desk.rows("SELECT count(*) FROM tidegate.outbox") == [(1,)]
    assert await desk.checkpoints() == {0: 10, 1: 0}
    assert (desk.counts["handled", "revenue"], desk.counts["dead", "revenue", "rejected"]) == (9, 1)


async def test_what_has_to_wait_for_long_waits_in_the_queue_and_holds_nobody_up(desk: BatchDesk) -> None:
    """Under `continue` the failed event stands alone, and a later one of its key is applied in the same batch.

    Case: B36
    Parts: real (PostgreSQL)
    Red when: projections/search.py `_fits` always says yes
    """
    trouble = Trouble()
    revenue = await desk.declare("revenue", FailurePolicy("continue", NO_WAIT), trouble)
    await desk.applier(revenue).apply(batch(of(0), of(1, transient=100), of(2), of(3, "other")))
    assert await desk.applied() == ["e0", "e2", "e3"]
    assert await desk.failures() == {"e1": ("queued", "retry", True)}
    assert await desk.checkpoints() == {0: 4, 1: 0}
    ((attempts, class_attempts, is_due_later),) = await desk.rows(
        "SELECT attempts, class_attempts, due > last_failed_at FROM tidegate.failure"
    )
    assert (attempts, class_attempts, is_due_later) == (2, 2, True)
    assert desk.counts["parked", "revenue"] == 1
    await desk.applier(revenue).apply(batch(of(4)))
    assert (await desk.applied())[-1] == "e4"


async def test_under_block_later_events_of_the_key_wait_in_this_batch_and_the_next(desk: BatchDesk) -> None:
    """Behind an event that is tried again stand those of its key, in their order; other keys go on.

    Case: B37
    Parts: real (PostgreSQL)
    Red when: projections/fates.py `in_order` begins with no parked lane
    """
    trouble = Trouble()
    revenue = await desk.declare("revenue", FailurePolicy("block", NO_WAIT), trouble)
    applier = desk.applier(revenue)
    await applier.apply(batch(of(0), of(1, transient=100), of(2), of(3, "other"), of(4, None)))
    assert await desk.applied() == ["e0", "e3", "e4"]
    assert await desk.failures() == {"e1": ("queued", "retry", False), "e2": ("queued", "behind", False)}
    calls = trouble.calls["e2"]
    await applier.apply(batch(of(5), of(6, "other"), of(7)))
    assert await desk.lane() == ["e1", "e2", "e5", "e7"]
    assert await desk.applied() == ["e0", "e3", "e4", "e6"]
    assert (trouble.calls["e2"], trouble.calls["e5"]) == (calls, 0)
    assert await desk.checkpoints() == {0: 8, 1: 0}


async def test_a_key_that_moved_to_another_partition_waits_all_the_same(desk: BatchDesk) -> None:
    """After partitions were added, the key's new events come elsewhere.

    Case: B37
    Parts: real (PostgreSQL)
    Red when: projections/steps.py `_line_up` asks for no parked lanes
    """
    revenue = await desk.declare("revenue", FailurePolicy("block", NO_WAIT), Trouble())
    applier = desk.applier(revenue)
    await applier.apply(batch(of(0, transient=100)))
    await applier.apply(batch(of(0, partition=1), of(1, "other", partition=1)))
    assert await desk.lane() == ["e0", "e1-0"]
    assert await desk.applied() == ["e1-1"]


@pytest.mark.parametrize(
    ("after_dead", "applied", "lane"), [("hold", ["e0"], ["e1", "e2", "e3"]), ("release", ["e0", "e2", "e3"], [])]
)
async def test_a_dead_event_holds_its_key_where_that_is_declared(
    desk: BatchDesk, after_dead: str, applied: list[str], lane: list[str]
) -> None:
    policy = FailurePolicy("block", QUICK, after_dead=after_dead)  # pyright: ignore[reportArgumentType] - both words
    applier = desk.applier(await desk.declare("revenue", policy, Trouble()))
    await applier.apply(batch(of(0), of(1, permanent=True), of(2)))
    await applier.apply(batch(of(3)))
    assert await desk.applied() == applied
    assert await desk.lane() == lane


async def test_an_event_that_failed_because_an_earlier_one_did_is_tried_behind_it(desk: BatchDesk) -> None:
    """Its own verdict does not count any more once it has to wait: what it met may be different then."""
    trouble = Trouble()
    revenue = await desk.declare("revenue", FailurePolicy("block", NO_WAIT), trouble)
    await desk.applier(revenue).apply(batch(of(0, "a", permanent=True), of(1, transient=3), of(2, permanent=True)))
    assert (await desk.failures())["e2"] == ("queued", "behind", False)


async def test_what_nobody_knows_is_a_persons_and_holds_its_key(desk: BatchDesk) -> None:
    revenue = await desk.declare("revenue", BLOCK, Trouble())
    await desk.applier(revenue).apply(batch(of(0, unknown=True), of(1)))
    assert await desk.failures() == {"e0": ("unknown", "unknown_effect", False), "e1": ("queued", "behind", False)}
    assert desk.counts["unknown", "revenue"] == 1


async def test_rules_of_the_projection_decide(desk: BatchDesk) -> None:
    rules = (review_on(RefusedError, because="ask the bank"),)
    policy = FailurePolicy("continue", QUICK, rules)
    await desk.applier(await desk.declare("revenue", policy, Trouble())).apply(batch(of(0, permanent=True), of(1)))
    assert await desk.failures() == {"e0": ("unknown", "review", True)}
    assert await desk.rows("SELECT message FROM tidegate.failure") == [("ask the bank",)]
    assert await desk.applied() == ["e1"]


async def test_a_skipped_event_is_claimed_and_counted_and_not_applied(desk: BatchDesk) -> None:
    rules = (skip_on(RefusedError, because="closed accounts are of no interest"),)
    trouble = Trouble()
    applier = desk.applier(await desk.declare("revenue", FailurePolicy("block", QUICK, rules), trouble))
    await applier.apply(batch(of(0), of(1, permanent=True), of(2)))
    assert await desk.applied() == ["e0", "e2"]
    assert await desk.failures() == {}
    assert (desk.counts["skipped", "revenue"], desk.counts["handled", "revenue"]) == (1, 2)
    calls = trouble.calls["e1"]
    await applier.apply(batch(of(3, id="e1", permanent=True)))
    assert (desk.counts["duplicates", "revenue"], trouble.calls["e1"]) == (1, calls)


@pytest.mark.parametrize(
    "value", [{"permanent": True}, {"unknown": True}, {"transient": 100}], ids=lambda value: next(iter(value))
)
async def test_stop_leaves_nothing_of_the_batch_behind(desk: BatchDesk, value: dict[str, Any]) -> None:
    policy = FailurePolicy("stop", RetryPolicy(attempts_max=3, base_s=0.001))
    applier = desk.applier(await desk.declare("revenue", policy, Trouble()))
    with pytest.raises(FatalError, match="on_failure='stop'"):
        await applier.apply(batch(of(0), of(1, **value), of(2)))
    assert await desk.applied() == []
    assert await desk.failures() == {}
    assert await desk.checkpoints() == {0: 0, 1: 0}


async def test_a_rule_may_stop_the_process(desk: BatchDesk) -> None:
    rules = (stop_on(RefusedError, because="the books are closed"),)
    applier = desk.applier(await desk.declare("revenue", FailurePolicy("continue", QUICK, rules), Trouble()))
    with pytest.raises(FatalError):
        await applier.apply(batch(of(0), of(1, permanent=True)))
    assert await desk.failures() == {}


@pytest.mark.parametrize("on_failure", ["continue", "block"])
async def test_a_conflict_is_a_persons_where_that_is_declared(desk: BatchDesk, on_failure: str) -> None:
    policy = FailurePolicy(on_failure, QUICK, on_conflict="review")  # pyright: ignore[reportArgumentType] - both words
    applier = desk.applier(await desk.declare("revenue", policy, Trouble()))
    await applier.apply(batch(of(0, id="a", n=1)))
    await applier.apply(batch(of(1, id="a", n=2), of(2)))
    alone = on_failure == "continue"
    assert (await desk.failures())["a"] == ("unknown", "conflict", alone)
    assert await desk.applied() == (["a", "e2"] if alone else ["a"])


async def test_events_that_go_well_only_apart_are_applied_apart(desk: BatchDesk) -> None:
    applier = desk.applier(await desk.declare("revenue", CONTINUE, Trouble()))
    await applier.apply(batch(of(0), of(1, never_with="e0"), of(2), of(3, never_with="e2")))
    assert await desk.applied() == ["e0", "e1", "e2", "e3"]
    assert await desk.failures() == {}


async def test_what_waits_behind_its_key_and_was_handled_before_is_a_repeat(desk: BatchDesk) -> None:
    """Its claim is found, although nothing of a parked key is claimed."""
    applier = desk.applier(await desk.declare("revenue", FailurePolicy("block", NO_WAIT), Trouble()))
    await applier.apply(batch(of(0), of(1, transient=100)))
    await applier.apply(batch(of(2, id="e0"), of(3, id="e1", transient=100), of(4), of(5, id="e4")))
    assert await desk.failures() == {
        "e1": ("linked", "duplicate", True),
        "e4": ("linked", "duplicate", True),
    }
    assert await desk.lane() == ["e1", "e4"]
    assert desk.counts["duplicates", "revenue"] == 3
    await applier.apply(batch(of(6, id="e0", n=7)))
    assert desk.counts["dead", "revenue", "conflict"] == 1


async def test_a_failing_projection_leaves_its_rows_and_the_batch_to_the_others(desk: BatchDesk) -> None:
    """Two that block share a batch: each has lanes of its own."""
    ours, theirs = Trouble(), Trouble()
    first = await desk.declare("revenue", FailurePolicy("block", NO_WAIT), ours)
    second = await desk.declare("visits", FailurePolicy("block", NO_WAIT), theirs)
    applier = desk.applier(first, second)
    theirs.calls["e0"] = 100
    await applier.apply(batch(of(0, transient=100), of(1)))
    assert (await desk.applied("revenue"), await desk.applied("visits")) == ([], ["e0", "e1"])
    theirs.calls.clear()
    await applier.apply(batch(of(2, transient=100), of(3, "other")))
    assert await desk.lane() == ["e0", "e1", "e2"]
    assert await desk.lane(handler="visits") == ["e2"]
    assert (await desk.applied("revenue"), await desk.applied("visits")) == (["e3"], ["e0", "e1", "e3"])
