"""A listener and an intake for tests of the Kafka port: they note everything, and tests wait on what was noted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.consumers.client.ports import Chunk, KafkaPort, Taken
from tidegate.inbox.errors import DependencyError, FatalError
from tidegate.inbox.event import Event, Partition, Record

WAIT_S = 30.0
"""A test that waits longer than this has failed."""


@dataclass
class Note:
    """Something that the listener was told: its name and what came with it."""

    name: str
    partition: Partition | None = None
    epoch: int = 0
    value: Any = None


class PlainIntake:
    """Every record becomes an event; `stall_at` offsets stall until they are taken out."""

    def __init__(self) -> None:
        self.stall_at: set[tuple[Partition, int]] = set()

    def take(self, partition: Partition, epoch: int, records: list[Record]) -> Taken:
        events: list[Event[Any]] = []
        for record in records:
            if (partition, record.offset) in self.stall_at:
                return Taken(
                    tuple(events),
                    size_bytes=sum(e.record.size_bytes for e in events),
                    stalled_at=record.offset,
                    stall=DependencyError("registry", "away"),
                )
            events.append(Event(record.value, record))
        return Taken(tuple(events), size_bytes=sum(r.size_bytes for r in records))


@dataclass
class Desk:
    """Hears the client. By default it starts each partition at 0 and lets go at once at the offset reached."""

    port: KafkaPort | None = None
    start_at: Callable[[Partition], int] | None = lambda _: 0
    drains: bool = True
    notes: list[Note] = field(default_factory=list[Note])
    records: dict[Partition, list[Record]] = field(default_factory=dict[Partition, list[Record]])
    next_offsets: dict[Partition, int] = field(default_factory=dict[Partition, int])
    owned: dict[Partition, int] = field(default_factory=dict[Partition, int])
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def assigned(self, partitions: Mapping[Partition, int]) -> None:
        for partition, epoch in partitions.items():
            self.owned[partition] = epoch
            self._note(Note("assigned", partition, epoch))
            if self.start_at is not None:
                self._port.seek(partition, epoch, self.start_at(partition))

    def revoking(self, partitions: Mapping[Partition, int], budget_s: float) -> None:
        for partition, epoch in partitions.items():
            self._note(Note("revoking", partition, epoch, budget_s))
            if self.drains:
                self.owned.pop(partition, None)
                self._port.let_go(partition, epoch, self.next_offsets.get(partition))

    def lost(self, partitions: Mapping[Partition, int]) -> None:
        for partition, epoch in partitions.items():
            self.owned.pop(partition, None)
            self._note(Note("lost", partition, epoch))

    def delivered(self, chunk: Chunk) -> None:
        with self._changed:
            for part in chunk.parts:
                self.records.setdefault(part.partition, []).extend(event.record for event in part.taken.events)
                self.next_offsets[part.partition] = part.next_offset
        self._note(Note("delivered", value=chunk))

    def reached(self, partition: Partition, epoch: int, position: int) -> None:
        self.next_offsets[partition] = position
        self._note(Note("reached", partition, epoch, position))

    def stalled(self, partition: Partition, epoch: int, error: DependencyError) -> None:
        self._note(Note("stalled", partition, epoch, error))

    def recovered(self, partition: Partition, epoch: int) -> None:
        self._note(Note("recovered", partition, epoch))

    def topic_error(self, topic: str, error: str | None) -> None:
        self._note(Note("topic_error", value=(topic, error)))

    def offset_reset(self, partition: Partition, epoch: int) -> None:
        self._note(Note("offset_reset", partition, epoch))

    def fatal(self, error: FatalError) -> None:
        self._note(Note("fatal", value=error))

    # ------------------------------------------------------------------------------------------------ for the tests

    def offsets(self, partition: Partition) -> list[int]:
        """The offsets that came, in the order in which they came."""
        return [record.offset for record in self.records.get(partition, [])]

    def count(self) -> int:
        """How many records came."""
        return sum(len(records) for records in self.records.values())

    def said(self, name: str, partition: Partition | None = None) -> list[Note]:
        """The notes of this name (about this partition)."""
        return [n for n in list(self.notes) if n.name == name and (partition is None or n.partition == partition)]

    async def until(self, condition: Callable[[], bool], what: str = "it to happen", wait_s: float = WAIT_S) -> None:
        """Wait until `condition` holds; looked at again after every note."""
        met = await asyncio.to_thread(self.until_sync, condition, wait_s)
        assert met, f"waited {wait_s} s for {what}; notes: {self.notes[-5:]}"

    def until_sync(self, condition: Callable[[], bool], wait_s: float = WAIT_S) -> bool:
        """The same, for a test's own threads."""
        with self._changed:
            return self._changed.wait_for(condition, wait_s)

    @property
    def _port(self) -> KafkaPort:
        assert self.port is not None
        return self.port

    def _note(self, note: Note) -> None:
        with self._changed:
            self.notes.append(note)
            self._changed.notify_all()
