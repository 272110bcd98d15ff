"""What goes into the engine (signals) and what comes out of it (actions). No IO; time is an argument.

The engine's unit on the fast way is a slice: the decoded events of one partition out of one poll, with the position
that the client reached behind them. An epoch here is the client's count of assignments of a partition: every hand-over
carries it, and whatever carries an old one changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...inbox.event import Event, Partition


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive events of one partition; offsets may have gaps (transaction markers, compaction, rejected records).

    `next_offset` is the position behind the slice, at least the last event's offset + 1. `lanes` names, for each lane
    track, the indexes into `events` that its handler takes.
    """

    partition: Partition
    epoch: int
    events: tuple[Event[Any], ...]
    next_offset: int
    size_bytes: int
    lanes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@dataclass(frozen=True, slots=True)
class StreamTrack:
    """Projections that share their batch settings: serial batches over all partitions, one in flight."""

    name: str
    batch_max: int
    batch_wait_ms: int


@dataclass(frozen=True, slots=True)
class LaneTrack:
    """A command handler: concurrent across keys, in order within a key, at most `concurrency` running.

    `rate_per_s`: at most so many begin in a second; None for no bound.
    """

    name: str
    concurrency: int
    rate_per_s: float | None = None


Track = StreamTrack | LaneTrack


class LaneItem(NamedTuple):
    """One event for one command handler (a tuple: one is made for each event)."""

    partition: Partition
    epoch: int
    offset: int
    event: Event[Any]


# ---------------------------------------------------------------------------------------------------------- signals


@dataclass(frozen=True, slots=True)
class Assigned:
    """The client was given these partitions (paused, not yet read) under these epochs."""

    partitions: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Ready:
    """The fence is taken, the checkpoints are read: each track starts at its offset.

    `anew`: reading goes back below what was committed, as was declared (the topic is another one under its old name, an
    operator moved the checkpoints); without it the commit point never falls within an epoch.

    `suspected`: a record at its head may have killed the former owners. The client is not told to read before
    `Examined`: what is delivered until then is given to it one by one.
    """

    partition: Partition
    epoch: int
    starts: Mapping[str, int]
    anew: bool = False
    suspected: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Kafka or the fence refused this owner: everything of the partition is dropped."""

    partition: Partition
    epoch: int


@dataclass(frozen=True, slots=True)
class Revoking:
    """Kafka takes these partitions away: finish what is in flight within `budget_s`, then let go."""

    partitions: Mapping[Partition, int]
    budget_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions are somebody else's already: drop everything, commit nothing."""

    partitions: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Slices of one poll, decoded."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """The client's position moved over a gap with nothing to deliver (the end of a transactional or compacted log)."""

    partition: Partition
    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch of a stream track is durable, but for the partitions in `lost`, whose fence did not come back.

    Said once for every `Apply`, whatever became of it: without it the track waits for ever.
    """

    track: str
    batch_id: int
    lost: frozenset[Partition] = frozenset()


@dataclass(frozen=True, slots=True)
class Fenced:
    """The fence row did not come back to a writer of this partition: ask Kafka, and take over again if it is ours."""

    partition: Partition
    epoch: int


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The last `Commit` of these partitions did not reach Kafka: it is said again with the next one."""

    partitions: Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Returned:
    """Handler functions of a lane track came back: their places are free, their keys are not yet.

    Said for every item of a `Start`, also where the partition is gone meanwhile: a place is a place. One that waits for
    its next attempt has come back too; when it goes on it is counted as minus one.
    """

    track: str
    count: int


@dataclass(frozen=True, slots=True)
class Finished:
    """These offsets of a lane track are durable (claimed, or a failure row): their keys are free."""

    track: str
    partition: Partition
    epoch: int
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DependencyAway:
    """A dependency that every handler needs is away: read no more, start nothing new."""

    name: str


@dataclass(frozen=True, slots=True)
class DependencyBack:
    """It answers again."""

    name: str


@dataclass(frozen=True, slots=True)
class StandBack:
    """Something is to be handled as the only thing in flight: read no more, so that what is there comes to its end."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """It was handled: all the others go on."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The suspects of this partition were handled, one by one: the client reads on from where that came to."""

    partition: Partition
    epoch: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: timers are looked at."""


@dataclass(frozen=True, slots=True)
class Quiet:
    """Keep the assignment, take no new work; once nothing is in flight, `Drained` is said once."""


Signal = (
    Assigned
    | Ready
    | Refused
    | Revoking
    | Lost
    | Delivered
    | Reached
    | Applied
    | Fenced
    | NotCommitted
    | Returned
    | Finished
    | DependencyAway
    | DependencyBack
    | StandBack
    | GoOn
    | Examined
    | Tick
    | Quiet
)


# ---------------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Ask Kafka, take the fence, read the checkpoints; then say `Ready` or `Refused`."""

    partition: Partition
    epoch: int


@dataclass(frozen=True, slots=True)
class Seek:
    """Read from here on (and resume, unless a `Pause` of this partition stands)."""

    partition: Partition
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Examine:
    """Read what may be at fault from `offset` on, and deliver it one by one, each alone; then say `Examined`."""

    partition: Partition
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop fetching these partitions; what was delivered is kept."""

    partitions: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class Resume:
    """Fetch these partitions again."""

    partitions: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class Apply:
    """Hand these slices to the projections of a stream track, in one transaction; then say `Applied`."""

    track: str
    batch_id: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Run the command handler on each of these, concurrently."""

    track: str
    items: tuple[LaneItem, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Write these offsets into the fence rows, then commit them to Kafka."""

    offsets: Mapping[Partition, tuple[int, int]]
    """Partition -> (epoch, next offset)."""
    points: Mapping[Partition, Mapping[str, int]] = field(default_factory=dict[Partition, Mapping[str, int]])
    """Partition -> each track's own point: below it everything is durable, so that checkpoints may be raised to it.

    Without that, a handler whose events are rare keeps an old checkpoint, and retention looks like a gap.
    """


@dataclass(frozen=True, slots=True)
class LetGo:
    """The revoked partition is drained (or its time is up): the client may answer Kafka."""

    partition: Partition
    epoch: int
    next_offset: int | None
    """The commit point reached, None where the partition never started or its fence is another's."""


@dataclass(frozen=True, slots=True)
class Drained:
    """After `Quiet`: nothing is in flight any more."""


class PauseCause(enum.Enum):
    """Why a partition is paused; shown by health and metrics."""

    WINDOW_FULL = "window_full"
    DEPENDENCY = "dependency"
    QUIET = "quiet"
    SUSPECTS = "suspects"


Action = TakeOver | Seek | Examine | Pause | Resume | Apply | Start | Commit | LetGo | Drained
