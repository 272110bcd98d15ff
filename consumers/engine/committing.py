"""When Kafka hears of commit points: seldom, and only what changed. No IO; time is an argument."""

from __future__ import annotations

from typing import final

from ...inbox.event import Partition
from .partition import PartitionLife, Phase
from .policy import EnginePolicy
from .signals import Commit


@final
class Committing:
    """At most one `Commit` every `commit_interval_s`, for live partitions whose point is not what was last said."""

    __slots__ = ("_due_s", "_policy", "_touched")

    def __init__(self, policy: EnginePolicy) -> None:
        self._policy = policy
        self._due_s = float("-inf")
        self._touched: set[PartitionLife] = set()

    def touch(self, life: PartitionLife) -> None:
        """Its point may have moved."""
        self._touched.add(life)

    def wake_at_s(self) -> float | None:
        """When the next commit is due; None where there is nothing to say."""
        return self._due_s if self._touched else None

    def due(self, now_s: float) -> Commit | None:
        """What to say to Kafka now, if it is time and there is something to say."""
        if not self._touched or now_s < self._due_s:
            return None
        return self.everything(now_s)

    def everything(self, now_s: float) -> Commit | None:
        """What to say to Kafka, whether or not it is time."""
        touched, self._touched = self._touched, set()
        offsets: dict[Partition, tuple[int, int]] = {}
        points: dict[Partition, dict[str, int]] = {}
        for life in touched:
            if life.phase is not Phase.LIVE:
                continue
            point = life.point()
            if point is None or point == life.said:
                continue
            life.said = point
            offsets[life.partition] = (life.epoch, point)
            points[life.partition] = life.points()
        if not offsets:
            return None
        self._due_s = now_s + self._policy.commit_interval_s
        return Commit(offsets, points)
