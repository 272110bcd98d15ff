"""A read of the client is sorted before anything of it is believed."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message

from tests.support.stand_in import P0, P1, P2, TOPIC, end, error, record
from tidegate.consumers.client.split import split
from tidegate.inbox.event import Partition, Record


def offsets(read: dict[Partition, list[Record]]) -> dict[Partition, list[int]]:
    return {partition: [r.offset for r in records] for partition, records in read.items()}


def test_an_error_in_the_middle_hides_no_record_and_commits_over_none() -> None:
    """What is behind a hole that an error may have torn is read again; what is not ours is dropped.

    Case: B04
    Parts: real (confluent-kafka's Message)
    Red when: split.py never calls `_cut_behind_holes`
    """
    messages = [record(P0, 1), record(P1, 1), error(KafkaError._TRANSPORT), record(P0, 3), record(P2, 9)]
    read = split(messages, {P0: 1, P1: 1})
    assert offsets(read.records) == {P0: [1], P1: [1]}
    assert read.torn == {P0}
    assert [trouble.error.code() for trouble in read.troubles] == [KafkaError._TRANSPORT]
    assert read.dropped == 2


def test_the_same_gap_without_an_error_is_real() -> None:
    """Read again from 2, the record at 3 comes first: a compaction or transaction gap, which does not block.

    Case: B04
    Parts: real (confluent-kafka's Message)
    Red when: split.py calls `_cut_behind_holes` without looking whether there was an error
    """
    read = split([record(P0, 3), record(P0, 7)], {P0: 2})
    assert offsets(read.records) == {P0: [3, 7]}
    assert not read.torn


def test_an_error_with_no_gap_across_it_cuts_nothing() -> None:
    read = split([record(P0, 1), error(KafkaError._TRANSPORT), record(P0, 2)], {P0: 1})
    assert offsets(read.records) == {P0: [1, 2]}
    assert not read.torn


def test_a_partition_whose_records_all_come_behind_the_error_is_held_to_its_position() -> None:
    read = split([error(KafkaError.UNKNOWN, P0), record(P0, 5)], {P0: 4})
    assert read.records == {}
    assert read.torn == {P0}


def test_records_of_a_partition_that_was_assigned_in_this_very_read_are_dropped() -> None:
    read = split([record(P0, 0), record(P1, 0)], {P1: 0})
    assert offsets(read.records) == {P1: [0]}
    assert read.dropped == 1


def test_what_was_handed_over_before_is_not_handed_over_again() -> None:
    read = split([record(P0, 4), record(P0, 5), record(P0, 6)], {P0: 6})
    assert offsets(read.records) == {P0: [6]}
    assert read.dropped == 2


def test_ends_are_no_errors_and_interleaved_partitions_stay_in_order() -> None:
    messages = [record(P0, 0), record(P1, 0), end(P1, 1), record(P0, 1), end(P0, 2), end(P2, 7)]
    read = split(messages, {P0: 0, P1: 0})
    assert offsets(read.records) == {P0: [0, 1], P1: [0]}
    assert read.ends == [(P1, 1), (P0, 2)]
    assert not read.troubles


def test_a_record_keeps_everything_and_reads_headers_late() -> None:
    calls: list[int] = []

    class Late(Message):
        def headers(self) -> list[tuple[str, str | bytes | None]] | None:
            calls.append(1)
            return [("a", b"1"), ("a", None)]

    late = Late(topic=TOPIC, partition=0, offset=3, key=b"", value=None, timestamp=(2, 1_000))
    (found,) = split([late], {P0: 3}).records[P0]
    assert (found.topic, found.partition, found.offset) == (TOPIC, 0, 3)
    assert (found.key, found.value, found.timestamp_ms, found.timestamp_type) == (b"", None, 1_000, 2)
    assert not calls
    assert found.headers == (("a", b"1"), ("a", None))
    assert found.headers
    assert len(calls) == 1
