"""Epochs, positions and the causes of a pause."""

from __future__ import annotations

from tests.support.stand_in import P0, P1, P2
from tidegate.consumers.client.partitions import STALL_BACKOFF_MAX_S, Cause, PartitionState, PartitionTable


def flowing_table() -> PartitionTable:
    table = PartitionTable()
    table.assign([P0, P1])
    for state in table.values():
        state.seek(5)
        state.rewind, state.fetching = False, True
    return table


def test_epochs_are_counted_for_each_partition_and_never_come_back() -> None:
    table = PartitionTable()
    assert table.assign([P0]) == {P0: 1}
    assert table.drop([P0]) == {P0: 1}
    assert table.assign([P0, P1]) == {P0: 2, P1: 1}
    assert table.get(P0, 1) is None
    assert table.get(P0, 2) is not None


def test_unknown_partitions_change_nothing() -> None:
    table = flowing_table()
    assert table.drop([P2]) == {}
    assert table.owned([P0, P2]) == {P0: 1}
    table.pause([P2])
    table.resume([P2])
    assert table.flowing() == {P0: 5, P1: 5}


def test_a_partition_flows_only_when_no_cause_stands() -> None:
    table = flowing_table()
    state = table.get(P0)
    assert state is not None
    table.pause([P0])
    state.stall(5, now_s=0.0, jitter=0.5)
    table.resume([P0])
    assert P0 not in table.flowing()
    assert state.causes == Cause.INTAKE
    table.end_stalls(100.0)
    assert not state.causes
    assert P0 not in table.flowing(), "the client has to be put back first"


def test_a_fresh_assignment_waits_for_a_seek() -> None:
    table = PartitionTable()
    table.assign([P0])
    table.resume([P0])
    assert table.flowing() == {}
    assert [s.causes for s in table.values()] == [Cause.START]


def test_the_backoff_of_a_stall_doubles_up_to_its_bound_and_spreads() -> None:
    state = PartitionState(1)
    waits: list[float] = []
    for _ in range(8):
        state.stall(0, now_s=0.0, jitter=0.5)
        waits.append(state.stall_until_s or 0.0)
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert waits[5:] == [STALL_BACKOFF_MAX_S] * 3
    state.stall(0, now_s=0.0, jitter=0.0)
    assert (state.stall_until_s or 0.0) < STALL_BACKOFF_MAX_S
    assert state.end_stall()
    assert not state.end_stall()


def test_after_a_broken_read_everything_is_read_again_from_where_we_are() -> None:
    table = flowing_table()
    table.rewind_all()
    assert table.flowing() == {}
    assert [s.position for s in table.values()] == [5, 5]
