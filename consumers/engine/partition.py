"""One life of a partition in this process: a one-way lifecycle, its table as data. No IO; time is an argument.

A life begins with an assignment and never goes back. Where the fence is lost while Kafka may still hold the partition
to be ours, a new life begins under the same epoch: what the old one has in flight is never taken for the new one's.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, final

from ...inbox.event import Partition
from .lanes import LaneShare
from .stream import StreamShare
from .window import Account


class Phase(enum.Enum):
    """Where in its life a partition is."""

    ASSIGNED = "assigned"
    TAKING = "taking"
    LIVE = "live"
    REVOKING = "revoking"
    GONE = "gone"


class Step(enum.Enum):
    """What moves a partition on."""

    TAKE_OVER = "take over"
    READY = "ready"
    FENCED = "fenced"
    REVOKE = "revoke"
    LET_GO = "let go"
    REFUSED = "refused"
    LOST = "lost"


TRANSITIONS: Final[Mapping[tuple[Phase, Step], Phase]] = {
    (Phase.ASSIGNED, Step.TAKE_OVER): Phase.TAKING,
    (Phase.ASSIGNED, Step.REVOKE): Phase.REVOKING,
    (Phase.ASSIGNED, Step.LOST): Phase.GONE,
    (Phase.TAKING, Step.READY): Phase.LIVE,
    (Phase.TAKING, Step.REFUSED): Phase.GONE,
    (Phase.TAKING, Step.REVOKE): Phase.REVOKING,
    (Phase.TAKING, Step.LOST): Phase.GONE,
    (Phase.LIVE, Step.FENCED): Phase.GONE,
    (Phase.LIVE, Step.REFUSED): Phase.GONE,
    (Phase.LIVE, Step.REVOKE): Phase.REVOKING,
    (Phase.LIVE, Step.LOST): Phase.GONE,
    (Phase.REVOKING, Step.FENCED): Phase.GONE,
    (Phase.REVOKING, Step.REFUSED): Phase.GONE,
    (Phase.REVOKING, Step.LET_GO): Phase.GONE,
    (Phase.REVOKING, Step.LOST): Phase.GONE,
}
"""Whatever is not in here changes nothing."""


def lifecycle_diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.ASSIGNED.value}"]
    lines += [f"    {before.value} --> {after.value}: {step.value}" for (before, step), after in TRANSITIONS.items()]
    return "\n".join([*lines, f"    {Phase.GONE.value} --> [*]"]) + "\n"


@final
class PartitionLife:
    """What the engine knows of a partition under one epoch."""

    __slots__ = (
        "_floor",
        "account",
        "epoch",
        "lanes",
        "let_go_by_s",
        "owes_answer",
        "partition",
        "paused",
        "phase",
        "position",
        "said",
        "started",
        "streams",
    )

    def __init__(self, partition: Partition, epoch: int, account: Account) -> None:
        self.partition = partition
        self.epoch = epoch
        self.account = account
        self.phase = Phase.ASSIGNED
        self.started = False
        """It was told where to start, in this life."""
        self.position = 0
        self.streams: dict[str, StreamShare] = {}
        self.lanes: dict[str, LaneShare] = {}
        self.paused = False
        """What the client was told last."""
        self.said: int | None = None
        """The offset that was last given to Kafka."""
        self.owes_answer = True
        """Kafka may still ask for the partition, and then waits for a `LetGo`."""
        self.let_go_by_s = 0.0
        self._floor: int | None = None

    def again(self, account: Account) -> PartitionLife:
        """A new life under the same epoch, after the end of this one; what was committable stays so."""
        life = PartitionLife(self.partition, self.epoch, account)
        life.paused = self.paused
        life.said = self.said
        life._floor = self._floor
        return life

    def forget(self) -> None:
        """What was committable in an earlier life counts no more: offsets mean other records now."""
        self.said = None
        self._floor = None

    def allows(self, step: Step) -> bool:
        """Whether the step is one to take in this phase."""
        return (self.phase, step) in TRANSITIONS

    def take(self, step: Step) -> None:
        """Move on."""
        self.phase = TRANSITIONS[self.phase, step]

    def start(self, starts: Mapping[str, int], streams: Iterable[str], lanes: Iterable[str]) -> None:
        """Each track starts at its offset, the client at the lowest of all."""
        lowest = min(starts.values())
        self.started = True
        self.position = lowest
        self.streams = {name: StreamShare(self.partition, starts.get(name, lowest)) for name in streams}
        self.lanes = {name: LaneShare(self.partition, starts.get(name, lowest)) for name in lanes}

    def end(self) -> None:
        """Keep nothing but the epoch and how far it came."""
        self._floor = self.point()
        self.account.close()
        self.started = False
        self.streams = {}
        self.lanes = {}

    @property
    def in_flight(self) -> bool:
        """Something of this partition is being worked on, or done but not durable yet."""
        return any(share.in_flight for share in self.streams.values()) or any(
            share.in_flight for share in self.lanes.values()
        )

    def points(self) -> dict[str, int]:
        """Each track's own point."""
        position = self.position
        return {name: share.point(position) for shares in (self.streams, self.lanes) for name, share in shares.items()}

    def point(self) -> int | None:
        """The offset that may be committed: below everything incomplete, never falling; None before the first start."""
        if not self.started:
            return self._floor
        lowest = min(self.points().values(), default=self.position)
        return lowest if self._floor is None else max(self._floor, lowest)


def _nobody() -> PartitionLife:
    life = PartitionLife(Partition("", -1), -1, Account(None))
    life.phase = Phase.GONE
    life.owes_answer = False
    return life


NOBODY: Final = _nobody()
"""Stands for every partition that is not ours: it allows no step, so that nothing stale needs a case of its own."""
