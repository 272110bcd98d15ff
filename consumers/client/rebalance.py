"""What happens inside poll when Kafka gives and takes partitions. Nothing here raises into the client (B01).

* assign: take them in, paused; where to begin is decided elsewhere, with a seek.
* revoke: the owner drains against one deadline and says how far it got; that is committed on the consumer that was
  passed in, then Kafka may have them.
* lost: they are somebody else's already. Nothing is committed.

Unknown partitions and empty lists change nothing (B10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from confluent_kafka import Consumer, TopicPartition

from ...inbox.clock import Clock
from ...inbox.event import Partition
from .commits import Commits
from .containment import Containment
from .feed import Counts
from .partitions import PartitionTable
from .ports import Listener

PLACEHOLDER: Final = 0
"""The offset under which a partition waits for its seek. It has to be a plain number. A logical one (end, beginning)
makes librdkafka look it up, and a seek loses against a look-up that is under way (seen in 2.16.0):
 1. assign at the end: a ListOffsets request goes out; 2. seek to 0: its version outdates the request; 3. the answer
comes, is found outdated, and the look-up is repeated half a second later; 4. its answer moves the position to the end:
everything in between is skipped, without a word.
A plain one may be out of range, and the fetch for it may be sent before the pause takes hold: the partition is then
given up by librdkafka, which `Steering` repairs by assigning it again at the offset that is sought."""

TURN_S: Final = 0.1
"""How often the drain looks at the clock, so that liveness sees it turn."""


@final
class Rebalance:
    """librdkafka's three callbacks. `serve(wait_s)` carries out what other threads ask for, among it `let_go`."""

    def __init__(
        self,
        table: PartitionTable,
        listener: Listener,
        commits: Commits,
        counts: Counts,
        containment: Containment,
        serve: Callable[[float], None],
        clock: Clock,
        budget_s: float,
    ) -> None:
        self._table = table
        self._listener = listener
        self._commits = commits
        self._counts = counts
        self._containment = containment
        self._serve = serve
        self._clock = clock
        self._budget_s = budget_s
        self._awaited: dict[Partition, int] = {}
        self._may_commit: dict[Partition, int] = {}
        self.stopping = False
        """The process leaves: what was to be drained is drained, so nobody is asked."""
        self.draining: Consumer | None = None
        """Set while a revocation waits inside poll: a commit then has to be synchronous."""

    def on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Take these in, paused."""
        with self._containment:
            if places:
                self._assign(consumer, _partitions(places))

    def on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Have them drained, commit, give them up."""
        with self._containment:
            owned = self._table.owned(_partitions(places))
            if owned:
                self._revoke(consumer, owned)

    def on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """They are gone."""
        with self._containment:
            gone = self._table.drop(_partitions(places))
            if gone:
                self._counts.lost += len(gone)
                self._listener.lost(gone)
                consumer.incremental_unassign(_places(gone))

    def let_go(self, partition: Partition, epoch: int, offset: int | None) -> None:
        """The owner's answer; one that nobody waits for (late, or of another epoch) changes nothing."""
        if self._awaited.get(partition) == epoch:
            del self._awaited[partition]
            if offset is not None:
                self._may_commit[partition] = offset

    def _assign(self, consumer: Consumer, partitions: Sequence[Partition]) -> None:
        places = [TopicPartition(p.topic, p.number, PLACEHOLDER) for p in partitions]
        consumer.incremental_assign(places)
        consumer.pause(places)
        given = self._table.assign(partitions)
        if not self.stopping:
            self._listener.assigned(given)

    def _revoke(self, consumer: Consumer, owned: Mapping[Partition, int]) -> None:
        try:
            if not self.stopping:
                self._drain(consumer, owned)
                self._commits.ask_now(consumer, self._may_commit)
        finally:
            self._table.drop(owned)
            consumer.incremental_unassign(_places(owned))

    def _drain(self, consumer: Consumer, owned: Mapping[Partition, int]) -> None:
        self._awaited, self._may_commit, self.draining = dict(owned), {}, consumer
        try:
            self._listener.revoking(owned, self._budget_s)
            until_s = self._clock.monotonic_s() + self._budget_s
            while self._awaited and not self.stopping and (left_s := until_s - self._clock.monotonic_s()) > 0:
                self._serve(min(TURN_S, left_s))
        finally:
            self._awaited, self.draining = {}, None


def _partitions(places: Sequence[TopicPartition]) -> list[Partition]:
    return [Partition(place.topic, place.partition) for place in places]


def _places(partitions: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.number) for p in partitions]
