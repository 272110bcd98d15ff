"""Hands what was read to the intake and the listener, partition by partition, and moves the positions. No IO.

Shared by the real client and the fake, so that both deliver, stall and reach ends alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

from confluent_kafka import KafkaError, Message

from ...inbox.clock import Clock
from ...inbox.errors import FatalError
from ...inbox.event import Partition, Record
from ...inbox.points import Point, reach
from .errors import Kind, fix_of, kind_of
from .partitions import Cause, PartitionState, PartitionTable
from .ports import Chunk, Intake, Listener, Part
from .split import Read, Trouble, split


@dataclass(slots=True)
class Counts:
    """What the client counts; written by its thread only, read by whoever wants to show it."""

    records: int = 0
    bytes: int = 0
    dropped: int = 0
    lost: int = 0
    poll_exceeded: int = 0
    stalls: int = 0
    commits_refused: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Error entries by Kafka's name of the code."""


@final
class Feed:
    """From messages to the listener. `latch` is told of a topic whose subscription does not work."""

    def __init__(
        self, table: PartitionTable, intake: Intake, listener: Listener, clock: Clock, latch: Callable[[str, str], None]
    ) -> None:
        self._table = table
        self._intake = intake
        self._listener = listener
        self._clock = clock
        self._latch = latch
        self.counts = Counts()
        self.failed = False
        """A fatal error was reported: nothing more is read."""

    def take(self, messages: Sequence[Message]) -> None:
        """Deliver one read."""
        read = split(messages, self._table.flowing())
        self.counts.dropped += read.dropped
        self._deliver(read)
        for partition in read.torn:
            if state := self._table.get(partition):
                state.rewind = True
        for trouble in read.troubles:
            self.trouble(trouble)
        for partition, offset in read.ends:
            self._reach(partition, offset)

    def trouble(self, trouble: Trouble) -> None:
        """React to an error by its kind."""
        error, name = trouble.error, trouble.error.name()
        self.counts.errors[name] = self.counts.errors.get(name, 0) + 1
        match kind_of(error):
            case Kind.FATAL:
                self.fail(FatalError(f"the Kafka client is dead: {error.str()} ({name})", fix=fix_of(error)))
            case Kind.AUTHORISATION if trouble.topic is None or error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self.fail(FatalError(f"Kafka refuses this principal: {error.str()} ({name})", fix=fix_of(error)))
            case Kind.AUTHORISATION | Kind.TOPIC if trouble.topic:
                self._latch(trouble.topic, f"{name}: {error.str()}")
            case Kind.OUT_OF_RANGE:
                self._out_of_range(trouble)
            case Kind.REBALANCE if error.code() == KafkaError._MAX_POLL_EXCEEDED:
                self.counts.poll_exceeded += 1
            case _:
                pass

    def fail(self, error: FatalError) -> None:
        """Report a fatal error, once; whoever runs the client stops reading."""
        if not self.failed:
            self.failed = True
            self._listener.fatal(error)

    def _deliver(self, read: Read) -> None:
        parts = [part for partition, records in read.records.items() if (part := self._take(partition, records))]
        if parts:
            reach(Point.DECODED)
            self._listener.delivered(Chunk(tuple(parts)))

    def _take(self, partition: Partition, records: list[Record]) -> Part | None:
        state = self._table.get(partition)
        if state is None:
            return None
        taken = self._intake.take(partition, state.epoch, records)
        stopped_at = taken.stalled_at
        self.counts.records += len(records) if stopped_at is None else sum(r.offset < stopped_at for r in records)
        self.counts.bytes += taken.size_bytes
        moved = stopped_at is None or stopped_at > records[0].offset
        if moved and state.end_stall():
            self._listener.recovered(partition, state.epoch)
        state.position = records[-1].offset + 1
        if stopped_at is not None:
            self._stall(partition, state, stopped_at)
            assert taken.stall is not None
            self._listener.stalled(partition, state.epoch, taken.stall)
        return Part(partition, state.epoch, taken, state.position) if moved else None

    def _stall(self, partition: Partition, state: PartitionState, offset: int) -> None:
        self.counts.stalls += 1
        state.stall(offset, self._clock.monotonic_s(), self._clock.random())

    def _reach(self, partition: Partition, offset: int) -> None:
        """The end of the log as the client's position sees it: behind transaction markers and compacted records."""
        state = self._table.get(partition)
        if state is None or not state.flowing or state.position is None or offset < state.position:
            return
        if offset > state.position or state.told_end is None:
            state.position = state.told_end = offset
            self._listener.reached(partition, state.epoch, offset)

    def _out_of_range(self, trouble: Trouble) -> None:
        """The client gave a partition up. Ours to tell only if it is the position that we want which is out of range.

        Another offset was asked for before our last seek: the placeholder of a fresh assignment, or where the client
        had been. Then the partition is only assigned again, at our position, which shows whether that is in range.
        """
        if trouble.topic is None or trouble.partition is None:
            return
        partition = Partition(trouble.topic, trouble.partition)
        state = self._table.get(partition)
        if state is None:
            return
        state.broken = state.rewind = True
        if state.position is not None and trouble.offset == state.position and Cause.START not in state.causes:
            state.causes |= Cause.START
            self._listener.offset_reset(partition, state.epoch)
