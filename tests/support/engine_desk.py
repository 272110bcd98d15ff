"""A desk from which a test talks to the engine: short words for signals, and the actions by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tidegate.consumers.engine.engine import Engine
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.signals import (
    Action,
    Applied,
    Apply,
    Assigned,
    Commit,
    Delivered,
    Finished,
    LaneTrack,
    Ready,
    Returned,
    Signal,
    Slice,
    Start,
    StreamTrack,
    Tick,
    Track,
)
from tidegate.inbox.event import Event, Partition, Record

AnAction = TypeVar("AnAction", bound=Action)

P0, P1, P2 = (Partition("t", number) for number in range(3))
STREAM = StreamTrack("stream", batch_max=100, batch_wait_ms=0)
LANES = LaneTrack("lanes", concurrency=100)
PROMPT = EnginePolicy(commit_interval_s=0.0)
"""Commits at every change, so that a test sees each point."""


def event(partition: Partition, offset: int, key: bytes | None = None, size_bytes: int = 1) -> Event[Any]:
    """An event at this place; its value is its offset."""
    return Event(offset, Record(partition.topic, partition.number, offset, key, b"x" * size_bytes))


def part(
    partition: Partition,
    offsets: Sequence[int],
    *,
    epoch: int = 1,
    next_offset: int | None = None,
    keys: Mapping[int, bytes] | None = None,
    lanes: Mapping[str, tuple[int, ...]] | None = None,
    size_bytes: int | None = None,
) -> Slice:
    """A slice of these offsets; every lane track takes every event unless told otherwise."""
    events = tuple(event(partition, offset, (keys or {}).get(offset)) for offset in offsets)
    every = tuple(range(len(offsets)))
    return Slice(
        partition,
        epoch,
        events,
        next_offset if next_offset is not None else offsets[-1] + 1,
        size_bytes if size_bytes is not None else len(offsets),
        lanes if lanes is not None else {LANES.name: every},
    )


def of(actions: Sequence[Action], kind: type[AnAction]) -> list[AnAction]:
    """The actions of one kind."""
    return [action for action in actions if isinstance(action, kind)]


def offsets_of(apply: Apply) -> dict[Partition, list[int]]:
    """What a batch holds."""
    found: dict[Partition, list[int]] = {}
    for slice_ in apply.slices:
        found.setdefault(slice_.partition, []).extend(event.offset for event in slice_.events)
    return found


class Desk:
    """An engine, a clock in the hand, and everything that the engine said."""

    def __init__(self, *tracks: Track, policy: EnginePolicy = PROMPT) -> None:
        self.engine = Engine(tracks, policy)
        self.now_s = 1_000.0
        self.said: list[Action] = []

    def tell(self, signal: Signal) -> list[Action]:
        """What the engine says to it."""
        actions = self.engine.receive(signal, self.now_s)
        self.said += actions
        return actions

    def after(self, seconds: float) -> list[Action]:
        """Time passes, then a tick."""
        self.now_s += seconds
        return self.tell(Tick())

    def live(self, *partitions: Partition, epoch: int = 1, starts: Mapping[str, int] | None = None) -> list[Action]:
        """Assigned and ready, from 0 unless told otherwise."""
        actions = self.tell(Assigned(dict.fromkeys(partitions, epoch)))
        for partition in partitions:
            actions += self.tell(Ready(partition, epoch, starts or {"": 0}))
        return actions

    def deliver(self, *slices: Slice) -> list[Action]:
        """One poll."""
        return self.tell(Delivered(slices))

    def applied(self, batch_id: int, *lost: Partition, track: str = STREAM.name) -> list[Action]:
        """A batch came back."""
        return self.tell(Applied(track, batch_id, frozenset(lost)))

    def returned(self, count: int, track: str = LANES.name) -> list[Action]:
        """Handler functions came back."""
        return self.tell(Returned(track, count))

    def finished(self, partition: Partition, *offsets: int, epoch: int = 1, track: str = LANES.name) -> list[Action]:
        """These are durable."""
        return self.tell(Finished(track, partition, epoch, offsets))

    def committed(self, partition: Partition) -> int | None:
        """What Kafka was told last."""
        points = [commit.offsets[partition][1] for commit in of(self.said, Commit) if partition in commit.offsets]
        return points[-1] if points else None

    def started(self, actions: Sequence[Action] | None = None) -> list[int]:
        """The offsets that handlers were started for, in order."""
        said = self.said if actions is None else actions
        return [item.offset for start in of(said, Start) for item in start.items]

    def batches(self, actions: Sequence[Action] | None = None) -> list[dict[Partition, list[int]]]:
        """What the batches held, in order."""
        return [offsets_of(apply) for apply in of(self.said if actions is None else actions, Apply)]
