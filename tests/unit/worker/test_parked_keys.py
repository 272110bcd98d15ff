"""Which events queue up behind a failed one of their key, whatever the order of look-ups and commits."""

from __future__ import annotations

import random

import pytest

from tidegate.consumers.worker.parked_keys import SWEPT_AT_MIN, Lane, ParkedKeys
from tidegate.inbox.event import Partition

P0, P4 = Partition("orders", 0), Partition("orders", 4)
LANE = Lane(7, "orders", b"key")


def keys(points: dict[Partition, int] | None = None) -> ParkedKeys:
    return ParkedKeys(lambda _, partition: (points or {}).get(partition))


def test_from_the_decision_on_every_event_of_the_key_queues_up() -> None:
    parked = keys()
    parked.looking_up(P0, 10)
    parked.decided(LANE, P0)
    assert parked.holds(LANE, P0, 10_000)
    assert parked.holds(LANE, P4, 3)
    assert not parked.holds(Lane(8, "orders", b"key"), P0, 3)


def test_what_was_looked_up_before_the_commit_queues_up_and_what_is_looked_up_after_it_asks_for_itself() -> None:
    """1. Looked up. 2. Decided. 3. Another slice is looked up, and sees nothing. 4. Committed."""
    parked = keys()
    parked.looking_up(P0, 10)
    parked.decided(LANE, P0)
    parked.looking_up(P0, 20)
    parked.looking_up(P4, 5)
    parked.committed([LANE])
    assert [parked.holds(LANE, P0, offset) for offset in (9, 19, 20)] == [True, True, False]
    assert [parked.holds(LANE, P4, offset) for offset in (4, 5)] == [True, False]


def test_what_a_look_up_found_counts_for_its_own_events_and_those_before() -> None:
    parked = keys()
    parked.found(LANE, P0, 30)
    assert parked.holds(LANE, P0, 29)
    assert not parked.holds(LANE, P0, 30)


def test_a_decision_that_comes_to_nothing_leaves_what_was_known() -> None:
    parked = keys()
    parked.found(LANE, P0, 30)
    parked.decided(LANE, P0)
    assert parked.holds(LANE, P0, 30)
    parked.taken_back(LANE)
    assert [parked.holds(LANE, P0, offset) for offset in (29, 30)] == [True, False]
    assert not parked.holds(LANE, P4, 3)


def test_a_lost_partition_leaves_its_keys_parked_elsewhere() -> None:
    """Whether the row got committed is not known then: queueing up is right in both cases."""
    parked = keys()
    parked.looking_up(P0, 10)
    parked.looking_up(P4, 5)
    parked.decided(LANE, P0)
    parked.drop(P0)
    assert parked.holds(LANE, P4, 4)
    assert not parked.holds(LANE, P4, 5)
    assert not parked.holds(LANE, P0, 3)


def test_what_lies_behind_is_forgotten() -> None:
    """A million parked keys do not live in memory: only those with events in the window do."""
    points = {P0: 0}
    parked = keys(points)
    for number in range(50 * SWEPT_AT_MIN):
        lane = Lane(7, "orders", b"%d" % number)
        parked.looking_up(P0, number + 1)
        parked.decided(lane, P0)
        parked.committed([lane])
        points[P0] = number
    assert len(parked) <= 2 * SWEPT_AT_MIN


@pytest.mark.parametrize("seed", range(200))
def test_nothing_overtakes_in_any_order_of_look_ups_decisions_and_commits(seed: int) -> None:
    """A model: the table knows a lane as parked from its first commit on; an event runs if neither knows of it.

    Events of one key come in slices; each is looked up when its slice begins its look-up, and takes its turn later. One
    that runs after another one before it was decided to be parked has overtaken.
    """
    chance = random.Random(seed)
    parked = keys()
    in_table = False
    looked_up: list[int] = []
    position, decided, committed = 0, False, False
    for _ in range(60):
        step = chance.randrange(4)
        if step == 0:
            position += 1
            parked.looking_up(P0, position)
            if in_table:
                parked.found(LANE, P0, position)
            looked_up.append(position - 1)
        elif step == 1 and looked_up:
            offset = looked_up.pop(0)
            if decided:
                assert parked.holds(LANE, P0, offset)
            elif chance.random() < 0.3:
                decided = True
                parked.decided(LANE, P0)
        elif step == 2 and decided and not committed:
            committed = in_table = True
            parked.committed([LANE])
