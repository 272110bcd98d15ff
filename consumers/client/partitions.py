"""Which partitions are ours, how far each is read, and why one is not fetched. No IO; time is an argument.

Causes of a pause are kept apart: a partition is fetched only when none stands. Whoever takes one away never overrules
another.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping

from ...inbox.event import Partition

STALL_BACKOFF_MIN_S = 1.0
"""A registry that restarts is back within seconds, so the first try comes soon."""

STALL_BACKOFF_MAX_S = 30.0
"""A registry that was away for an hour is noticed within this time."""


class Cause(enum.Flag):
    """Why a partition is not fetched."""

    NONE = 0
    START = enum.auto()
    """Nobody has said yet where to begin (a fresh assignment, a position out of range)."""
    WORKER = enum.auto()
    """The worker asked for it: its window is full, a dependency is away, it is quiet."""
    INTAKE = enum.auto()
    """The intake stalled; the client tries again by itself."""


class PartitionState:
    """One owned partition. `position` is the next offset to hand over; None before the first seek."""

    __slots__ = (
        "broken",
        "causes",
        "epoch",
        "fetching",
        "position",
        "refused_at_s",
        "rewind",
        "stall_count",
        "stall_until_s",
        "told_end",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.position: int | None = None
        self.causes = Cause.START
        self.fetching = False
        """What the client was last told: True after a resume, False after a pause."""
        self.rewind = False
        """The client's own position is not ours: seek before fetching on."""
        self.broken = False
        """librdkafka gave the partition up (position out of range): it must be assigned anew, a seek is refused."""
        self.stall_count = 0
        self.stall_until_s: float | None = None
        self.refused_at_s: float | None = None
        """Since when Kafka refuses our commits although it has not taken the partition away."""
        self.told_end: int | None = None
        """The end that was last reported, so that it is said once."""

    @property
    def flowing(self) -> bool:
        """Records that the client returns now are the next ones that we want."""
        return self.fetching and not self.causes and not self.rewind

    def seek(self, offset: int) -> None:
        """Go on from `offset`, whatever the client has fetched."""
        self.position = offset
        self.causes &= ~Cause.START
        self.rewind = True
        self.told_end = None

    def stall(self, offset: int, now_s: float, jitter: float) -> None:
        """The intake got no further than `offset`: wait, longer each time; `jitter` in [0, 1) spreads replicas."""
        backoff_s = min(STALL_BACKOFF_MAX_S, STALL_BACKOFF_MIN_S * 2.0 ** min(self.stall_count, 10))
        self.stall_count += 1
        self.stall_until_s = now_s + backoff_s * (0.75 + jitter / 2)
        self.position = offset
        self.causes |= Cause.INTAKE
        self.rewind = True

    def end_stall(self) -> bool:
        """The intake took something; True where it had stalled before."""
        had_stalled, self.stall_count = self.stall_count > 0, 0
        return had_stalled


class PartitionTable:
    """All owned partitions. Epochs are counted for each partition and never reused by this table."""

    def __init__(self) -> None:
        self._states: dict[Partition, PartitionState] = {}
        self._epochs: dict[Partition, int] = {}

    def assign(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Take these in, each under its next epoch; one that is owned already starts anew."""
        given: dict[Partition, int] = {}
        for partition in partitions:
            epoch = self._epochs[partition] = self._epochs.get(partition, 0) + 1
            self._states[partition] = PartitionState(epoch)
            given[partition] = epoch
        return given

    def owned(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Those of `partitions` that are ours, with their epochs; the others are left out."""
        return {p: self._states[p].epoch for p in partitions if p in self._states}

    def drop(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Forget these; returns those that were ours, with the epochs that end here."""
        gone = self.owned(partitions)
        for partition in gone:
            del self._states[partition]
        return gone

    def get(self, partition: Partition, epoch: int | None = None) -> PartitionState | None:
        """The partition's state if it is ours (under this epoch, if one is given)."""
        state = self._states.get(partition)
        return None if state is None or (epoch is not None and state.epoch != epoch) else state

    def items(self) -> Iterator[tuple[Partition, PartitionState]]:
        """Every owned partition."""
        return iter(self._states.items())

    def values(self) -> Iterable[PartitionState]:
        """The state of every owned partition."""
        return self._states.values()

    def flowing(self) -> dict[Partition, int]:
        """The partitions whose records are wanted now, each with the offset that must come next (or one above it)."""
        return {p: s.position for p, s in self._states.items() if s.flowing and s.position is not None}

    def pause(self, partitions: Iterable[Partition]) -> None:
        """The worker wants no more of these."""
        for partition in partitions:
            if state := self._states.get(partition):
                state.causes |= Cause.WORKER

    def resume(self, partitions: Iterable[Partition]) -> None:
        """The worker wants these again."""
        for partition in partitions:
            if state := self._states.get(partition):
                state.causes &= ~Cause.WORKER

    def rewind_all(self) -> None:
        """A read went wrong half-way: read everything again from where we got to."""
        for state in self._states.values():
            state.rewind = True

    def end_stalls(self, now_s: float) -> None:
        """Let those try again whose backoff is over."""
        for state in self._states.values():
            if state.stall_until_s is not None and state.stall_until_s <= now_s:
                state.stall_until_s = None
                state.causes &= ~Cause.INTAKE

    def refuse(self, partitions: Iterable[Partition], now_s: float) -> None:
        """Kafka refused a commit of these."""
        for partition in partitions:
            if (state := self._states.get(partition)) and state.refused_at_s is None:
                state.refused_at_s = now_s

    def refused_since(self, before_s: float) -> bool:
        """True where one of ours has been refused since `before_s` or longer, and is still ours."""
        return any(s.refused_at_s is not None and s.refused_at_s <= before_s for s in self._states.values())

    def clear_refused(self) -> None:
        """Something was done about it."""
        for state in self._states.values():
            state.refused_at_s = None

    def fetching(self) -> Mapping[Partition, PartitionState]:
        """Those that the client fetches, as far as it was told."""
        return {p: s for p, s in self._states.items() if s.fetching}

    def __len__(self) -> int:
        return len(self._states)
