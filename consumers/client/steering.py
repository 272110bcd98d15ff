"""Makes the client fetch what the table says: pauses, seeks, resumes. Client thread only.

librdkafka throws the prefetched records of a partition away when it is paused, and a worker whose window is full wants
them a moment later. So where *everything* that is fetched is to be paused, the thread first just holds: it does not
read. Only if that lasts are the partitions really paused and polling goes on, for rebalances, errors and the poll
interval.

A resume does not wake librdkafka's thread of the partition's broker, which sleeps for up to a second when it had
nothing to fetch (0.9 s seen in 2.16.1). A request to the broker does. So the end of what is resumed is asked for, and
the answer is nobody's concern. But it comes behind that of a fetch that waits for records at the end of another
partition of the broker: such a fetch is kept short (`fetch.wait.max.ms` in `config`), or nothing is read meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, final

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from ...inbox.event import Partition
from .partitions import Cause, PartitionState, PartitionTable

HOLD_MAX_S: Final = 0.5
"""A batch of the database lasts well below this; a poll interval is far above it."""

SEEKS_REFUSED_MAX: Final = 100
"""A seek right after an assignment may be too early; one that is refused for some hundred turns never succeeds."""

WAKE_MAX_S: Final = 1.0
"""As long as the thread would have slept. A request that is given up costs the connection, so it is no shorter; it is
answered within a round trip or a fetch, and whoever waits for partitions waits for their records."""


@final
class Steering:
    """`steer` before each read."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._hold_until_s: float | None = None
        self._refused: dict[Partition, int] = {}

    def steer(self, consumer: Consumer, now_s: float) -> float:
        """Bring the client in line; returns the seconds for which nothing should be read (0: read)."""
        unwanted = [(p, s) for p, s in self._table.items() if s.fetching and s.causes]
        hold_s = self._hold_s(unwanted, now_s)
        if unwanted and hold_s <= 0:
            self._pause(consumer, unwanted)
        placed: list[TopicPartition] = []
        for partition, state in self._table.items():
            if not state.causes and (not state.fetching or state.rewind):
                self._place(consumer, partition, state)
                placed += [TopicPartition(partition.topic, partition.number, OFFSET_END)] if state.fetching else []
        if placed:
            with suppress(KafkaException):
                consumer.offsets_for_times(placed, timeout=WAKE_MAX_S)
        return hold_s

    def _hold_s(self, unwanted: Sequence[tuple[Partition, PartitionState]], now_s: float) -> float:
        """How long to hold on: only where the worker alone asks, and for all that is fetched."""
        everything = len(unwanted) == len(self._table.fetching())
        if not unwanted or not everything or any(s.causes != Cause.WORKER or s.rewind for _, s in unwanted):
            self._hold_until_s = None
            return 0.0
        if self._hold_until_s is None:
            self._hold_until_s = now_s + HOLD_MAX_S
        return max(0.0, self._hold_until_s - now_s)

    def _pause(self, consumer: Consumer, unwanted: Sequence[tuple[Partition, PartitionState]]) -> None:
        self._hold_until_s = None
        consumer.pause([TopicPartition(p.topic, p.number) for p, _ in unwanted])
        for _, state in unwanted:
            state.fetching = False
            state.rewind = True

    def _place(self, consumer: Consumer, partition: Partition, state: PartitionState) -> None:
        """Fetch from our own position: librdkafka's may be ahead of it by what it had returned and we dropped."""
        assert state.position is not None
        place = TopicPartition(partition.topic, partition.number, state.position)
        try:
            if state.broken:
                consumer.incremental_unassign([place])
                consumer.incremental_assign([place])
            elif state.rewind:
                consumer.seek(place)
            consumer.resume([place])
        except KafkaException:
            state.broken = self._refuse(partition)
            return
        self._refused.pop(partition, None)
        state.broken, state.rewind, state.fetching = False, False, True

    def _refuse(self, partition: Partition) -> bool:
        """Count a refused seek; True once the partition has to be assigned anew."""
        self._refused[partition] = self._refused.get(partition, 0) + 1
        return self._refused[partition] > SEEKS_REFUSED_MAX
