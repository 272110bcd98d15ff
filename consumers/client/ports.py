"""What the worker and the Kafka client promise each other: the ports and the values that cross the thread boundary.

A real client (`thread.KafkaThread`) and a fake (`fake.FakeKafka`) keep this contract; one suite runs on both
(tests/contract/test_kafka_port.py). An epoch here is the client's count of assignments of a partition, from 1: every
hand-over carries it, and whatever carries an old one changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...inbox.errors import DependencyError, FatalError, OwnershipLost
from ...inbox.event import Event, Headers, Partition, Record
from ...inbox.outcome import Reason


class ClientStopped(OwnershipLost):
    """The client was stopped: it owns nothing any more, and every call to it ends here."""

    def __init__(self) -> None:
        super().__init__("the Kafka client was stopped")


# ----------------------------------------------------------------------------------------------- records to events


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that no handler can be given: undecodable, unmatched, without an id. The message holds no payload."""

    record: Record
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What the intake made of one partition's consecutive records, in their order.

    `lanes` names, for each lane track, the indexes into `events` that its handler takes. Where a dependency went away
    in the middle (the registry, an unknown schema id), `stalled_at` is the offset of the first record that was not
    taken and `stall` says why; the client reads again from there.
    """

    events: tuple[Event[Any], ...] = ()
    rejects: tuple[Rejected, ...] = ()
    lanes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    size_bytes: int = 0
    stalled_at: int | None = None
    stall: DependencyError | None = None


class Intake(Protocol):
    """Decodes and identifies; runs in the client thread."""

    def take(self, partition: Partition, epoch: int, records: list[Record]) -> Taken:
        """Make events of the records. Never raises for a bad record or a registry that is away: see `Taken`."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One partition's share of a chunk; `next_offset` is the client's position behind it, at least last offset + 1."""

    partition: Partition
    epoch: int
    taken: Taken
    next_offset: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """All that one turn of the poll loop brought."""

    parts: tuple[Part, ...]


# --------------------------------------------------------------------------------------------------- the consumer


class Listener(Protocol):
    """Hears what happens. Called in the client thread, also from within poll: it never blocks and never raises."""

    def assigned(self, partitions: Mapping[Partition, int]) -> None:
        """These partitions are ours under these epochs; nothing is fetched before a `seek`."""
        ...

    def revoking(self, partitions: Mapping[Partition, int], budget_s: float) -> None:
        """Answer with `let_go` for each within `budget_s`; Kafka waits for it, inside poll."""
        ...

    def lost(self, partitions: Mapping[Partition, int]) -> None:
        """Somebody else's already: nothing may be committed."""
        ...

    def delivered(self, chunk: Chunk) -> None:
        """Records came, decoded."""
        ...

    def reached(self, partition: Partition, epoch: int, position: int) -> None:
        """The end of the partition: the position moved over a gap, or nothing was there since the seek."""
        ...

    def stalled(self, partition: Partition, epoch: int, error: DependencyError) -> None:
        """The intake's dependency is away; the client tries again with a growing backoff. Said for each try."""
        ...

    def recovered(self, partition: Partition, epoch: int) -> None:
        """The intake took the record at which it had stalled."""
        ...

    def topic_error(self, topic: str, error: str | None) -> None:
        """The subscription to this topic does not work (missing, forbidden), or, with None, works again."""
        ...

    def offset_reset(self, partition: Partition, epoch: int) -> None:
        """The position is out of the log's range. Nothing is fetched before the next `seek`."""
        ...

    def fatal(self, error: FatalError) -> None:
        """The client cannot go on; it stays quiet until it is stopped."""
        ...


class CommitAnswer(enum.Enum):
    """What Kafka said to a commit of one partition's offset."""

    ACCEPTED = "accepted"
    """Written, under our membership."""
    REFUSED = "refused"
    """We are no member or own it no more: drop the partition."""
    UNREACHABLE = "unreachable"
    """Nobody answered, or not now: ask again."""
    FORBIDDEN = "forbidden"
    """The principal may not commit: fatal."""


class KafkaPort(Protocol):
    """The consumer. After `stop` every method raises `ClientStopped`, and waiting calls end with it."""

    def start(self) -> None:
        """Join the group."""
        ...

    def pause(self, partitions: frozenset[Partition]) -> None:
        """Deliver nothing more of these until `resume`; thread-safe, idempotent; what is on its way may still come."""
        ...

    def resume(self, partitions: frozenset[Partition]) -> None:
        """Deliver these again, without a hole and without a repeat."""
        ...

    def seek(self, partition: Partition, epoch: int, offset: int) -> None:
        """Deliver from `offset` on (unless paused). A stale epoch changes nothing."""
        ...

    def let_go(self, partition: Partition, epoch: int, offset: int | None) -> None:
        """Answer `revoking`: the partition is drained; `offset` is what may be committed, None for nothing."""
        ...

    async def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """The group's offsets, None where there is none.

        Raises:
            TransientError: nobody answers.
            OwnershipLost: we are no member any more.
        """
        ...

    async def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Low watermark and last stable offset of each.

        Raises:
            TransientError: nobody answers.
        """
        ...

    async def commit(self, offsets: Mapping[Partition, int]) -> dict[Partition, CommitAnswer]:
        """Commit next offsets; an answer for each partition, never an error for what Kafka says."""
        ...

    async def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Each topic's id; None where the broker has no such topic or does not tell.

        Raises:
            TransientError: nobody answers.
        """
        ...

    async def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """How many partitions each topic has; a topic that does not exist is left out.

        Raises:
            TransientError: nobody answers.
        """
        ...

    def polled_at(self) -> float:
        """The monotonic time, in seconds, of the poll loop's last turn: what liveness looks at."""
        ...

    async def stop(self, budget_s: float) -> None:
        """Leave the group and close; returns after `budget_s` at the latest, whatever the client does."""
        ...


# ------------------------------------------------------------------------------------------------ the second reader


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive records of a partition, undecoded. `next_offset` is the position behind them, over any gap."""

    records: tuple[Record, ...]
    next_offset: int
    at_end: bool
    """There is nothing behind them now."""


class ReaderPort(Protocol):
    """Reads a partition beside the group: no member, no commit, no rebalance. Whoever uses it holds the fence."""

    async def read(self, partition: Partition, offset: int, records_max: int) -> Stretch:
        """The next records from `offset` on, at least one unless the log ends; `offset` may stand in a gap.

        Raises:
            TransientError: nobody answers within a few seconds; or the offset is not in the log (any more), which the
                next takeover will tell.
        """
        ...

    async def stop(self) -> None:
        """Close; who reads meanwhile gets ClientStopped."""
        ...


# --------------------------------------------------------------------------------------------------- the producer


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to be produced; the partition follows from the key as Kafka's own clients choose it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class SendAnswer(enum.Enum):
    """What became of a record that was produced."""

    SENT = "sent"
    """On all in-sync replicas."""
    TOO_LARGE = "too_large"
    """The topic or the client does not take a record of this size."""
    FORBIDDEN = "forbidden"
    """The principal may not write there."""
    UNKNOWN_TOPIC = "unknown_topic"
    """There is no such topic, and the broker does not make one."""
    UNREACHABLE = "unreachable"
    """Not delivered in time: try again. It may have been written."""
    REFUSED = "refused"
    """The broker does not want this record, whatever the time."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """One record's answer; `offset` and `partition` where it was sent, `message` where not."""

    answer: SendAnswer
    partition: int = -1
    offset: int = -1
    message: str = ""

    @property
    def sent(self) -> bool:
        """It stands in Kafka."""
        return self.answer is SendAnswer.SENT


class ProducerPort(Protocol):
    """The producer: idempotent, acknowledged by all in-sync replicas."""

    async def send(self, records: Sequence[Outgoing]) -> list[SendResult]:
        """Produce all of them, in order within a (topic, key); an answer for each, in the order given."""
        ...

    async def stop(self, budget_s: float) -> None:
        """Wait for what is under way, at most `budget_s`; who still waits then, or comes later, gets ClientStopped."""
        ...
