"""Sorts what one read of the client returned: records by partition, ends, errors. No IO; time is an argument.

A read mixes records with error entries, and a rebalance may run within it (B04): what is no longer wanted when the
read comes back is dropped, and so is what comes behind a hole that an error may have torn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, Message

from ...inbox.event import Partition, Record

_END: Final = KafkaError._PARTITION_EOF


@dataclass(slots=True)
class Trouble:
    """An error entry. `topic`, `partition` and the `offset` that was fetched where it concerns one."""

    error: KafkaError
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class Read:
    """A read, sorted."""

    records: dict[Partition, list[Record]] = field(default_factory=dict)
    ends: list[tuple[Partition, int]] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    torn: set[Partition] = field(default_factory=set)
    """A hole that an error entry may have made: read again from the last record before it."""
    dropped: int = 0
    """Records of partitions that are not ours (or not wanted) any more."""


def split(messages: Sequence[Message], wanted: Mapping[Partition, int]) -> Read:
    """Sort `messages`; `wanted` maps each partition that flows *after* the read to the offset that comes next.

    A partition that was assigned during the read is not in it, since nobody has said yet where to begin.
    """
    by_place: dict[Partition, list[Record]] = {}
    read = Read()
    topic: str | None = None
    number: int | None = -1
    records: list[Record] = []
    last_trouble = -1
    for index, message in enumerate(messages):
        if message.error() is not None:
            last_trouble = index if _entry(message, read, wanted) else last_trouble
            continue
        if message.partition() != number or message.topic() != topic:
            topic, number = message.topic(), message.partition()
            records = by_place.setdefault(Partition(topic or "", -1 if number is None else number), [])
        kind, timestamp_ms = message.timestamp()
        records.append(
            Record(
                topic,  # pyright: ignore[reportArgumentType]  # None only in an error entry
                number,  # pyright: ignore[reportArgumentType]  # None only in an error entry
                message.offset(),  # pyright: ignore[reportArgumentType]  # None only in an error entry
                message.key(),
                message.value(),
                message.headers,  # pyright: ignore[reportArgumentType]  # called when headers are first read
                timestamp_ms,
                kind,
            )
        )
    _keep_wanted(by_place, wanted, read)
    if last_trouble >= 0:
        _cut_behind_holes(read, wanted)
    return read


def _entry(message: Message, read: Read, wanted: Mapping[Partition, int]) -> bool:
    """File an entry that is no record; True where it is an error."""
    error, topic, number, offset = message.error(), message.topic(), message.partition(), message.offset()
    assert error is not None
    if error.code() != _END:
        read.troubles.append(Trouble(error, topic, number if number is not None and number >= 0 else None, offset))
        return True
    partition = Partition(topic or "", -1 if number is None else number)
    if partition in wanted and offset is not None:
        read.ends.append((partition, offset))
    return False


def _keep_wanted(by_place: Mapping[Partition, list[Record]], wanted: Mapping[Partition, int], read: Read) -> None:
    for partition, records in by_place.items():
        expected = wanted.get(partition)
        if expected is not None and records[0].offset < expected:
            records, whole = [r for r in records if r.offset >= expected], len(records)
            read.dropped += whole - len(records)
        if expected is None:
            read.dropped += len(records)
        elif records:
            read.records[partition] = records


def _cut_behind_holes(read: Read, wanted: Mapping[Partition, int]) -> None:
    """With an error in the read, a gap may be real or may be the error's: keep what is before it, read the rest again.

    A real gap is met again at the head of a read without an error, where it passes.
    """
    for partition, records in list(read.records.items()):
        expected = wanted[partition]
        for index, record in enumerate(records):
            if record.offset != expected:
                read.torn.add(partition)
                read.dropped += len(records) - index
                del records[index:]
                break
            expected = record.offset + 1
        if not records:
            del read.records[partition]
    read.ends = [end for end in read.ends if end[0] not in read.torn]
