"""Where a partition starts: decided by us, never by `auto.offset.reset`. No IO; time is an argument.

One knob of Kafka's answers three different questions: never committed, committed but trimmed, brand-new partition. Here
each has its own answer, and the database's checkpoints are the truth. What cannot be answered without guessing is a
value of its own, which names what is wrong; the shell stops on it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

NO_HANDLER: Final = ""
"""The consumer's reserved handler: stands in `StartAt.offsets` where the app has no handler of its own."""


class StartFrom(enum.Enum):
    """Where a consumer begins that this database has never seen."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnGap(enum.Enum):
    """What to do about records that retention took before they were read."""

    STOP = "stop"
    EARLIEST = "earliest"


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """What the application declares; neither default can lose a record in silence."""

    start: StartFrom = StartFrom.EARLIEST
    on_gap: OnGap = OnGap.STOP


@dataclass(frozen=True, slots=True)
class Findings:
    """What Kafka and the database know of a partition at its takeover.

    `low` and `high` are the log's first offset and the one behind its last readable record. `checkpoints` has every
    attached handler of the application, None where it has no row for this partition. `consumer_known` is asked once,
    before the first takeover of a process: a takeover itself makes the consumer known.
    """

    kafka_offset: int | None
    fence_offset: int | None
    low: int
    high: int
    checkpoints: Mapping[str, int | None]
    consumer_known: bool


@dataclass(frozen=True, slots=True)
class StartAt:
    """StartAt here, each handler at its own offset. `lost` records are gone, which the declared policy steps over."""

    offsets: Mapping[str, int]
    lost: int = 0

    @property
    def position(self) -> int:
        """Where the client starts to read."""
        return min(self.offsets.values())


@dataclass(frozen=True, slots=True)
class Gap:
    """Retention took `lost` records (at most: markers and compacted ones count) that `handlers` never saw; stop."""

    lost: int
    resume_offset: int
    handlers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BeyondEnd:
    """Something stands beyond the log's end: the topic was re-created or truncated; stop."""

    offset: int
    high: int
    handlers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WentBackInTime:
    """Kafka holds a commit that this database never wrote down: it is an older copy, or another one; stop.

    `fence_offset` None: this database has never committed anything for the partition. So it is also where a group is
    adopted that another program used.
    """

    kafka_offset: int
    fence_offset: int | None


StartDecision: TypeAlias = StartAt | Gap | BeyondEnd | WentBackInTime


def decide_start(found: Findings, policy: StartPolicy) -> StartDecision:
    """Where to start, or what makes that impossible to say."""
    if _ahead_of_fence(found):
        assert found.kafka_offset is not None
        return WentBackInTime(found.kafka_offset, found.fence_offset)
    known = _known(found)
    beyond = {handler: offset for handler, offset in known.items() if offset > found.high}
    if beyond:
        return BeyondEnd(max(beyond.values()), found.high, tuple(sorted(beyond)))
    if not known:
        return _never_seen(found, policy)
    return _resume(found, known, policy)


def _ahead_of_fence(found: Findings) -> bool:
    """Each commit is written into the fence row first, so that Kafka can only be behind it."""
    return found.kafka_offset is not None and (found.fence_offset is None or found.kafka_offset > found.fence_offset)


def _known(found: Findings) -> dict[str, int]:
    """The offsets to resume from; without any handler, what was committed last."""
    if not found.checkpoints:
        return {} if found.fence_offset is None else {NO_HANDLER: found.fence_offset}
    return {handler: offset for handler, offset in found.checkpoints.items() if offset is not None}


def _never_seen(found: Findings, policy: StartPolicy) -> StartAt:
    """A partition that no handler knows. `latest` counts only at the consumer's very first start.

    Later it would skip what was produced to a new partition before it was noticed.
    """
    first_start = not found.consumer_known
    offset = found.high if first_start and policy.start is StartFrom.LATEST else found.low
    return StartAt(dict.fromkeys(found.checkpoints or (NO_HANDLER,), offset))


def _resume(found: Findings, known: Mapping[str, int], policy: StartPolicy) -> StartAt | Gap:
    """Each handler at its checkpoint, a new one at the lowest. Kafka's own commit may have expired meanwhile."""
    lowest = min(known.values())
    lost = max(0, found.low - lowest)
    if lost and policy.on_gap is OnGap.STOP:
        behind = sorted(handler for handler, offset in known.items() if offset < found.low)
        return Gap(lost, found.low, tuple(behind))
    handlers = found.checkpoints or known
    return StartAt({handler: max(found.low, known.get(handler, lowest)) for handler in handlers}, lost)
