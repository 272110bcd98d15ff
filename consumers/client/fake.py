"""A Kafka client for tests: logs in memory, one member, one thread, and nothing happens by chance.

It hands over exactly as the real client does (the same table and feed), in turns of the event loop: whatever is
written, sought or resumed is delivered by the time the loop has nothing else to do. A test scripts the rest: `revoke`,
`lose`, `trim`, `marker`, and what a commit is answered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, final

from confluent_kafka import KafkaError, Message

from ...inbox.clock import Clock, SystemClock
from ...inbox.errors import TransientError
from ...inbox.event import TIMESTAMP_NOT_AVAILABLE, Headers, Partition
from .feed import Counts, Feed
from .partitions import PartitionTable
from .ports import ClientStopped, CommitAnswer, Intake, Listener

READ_MAX: Final = 500
"""Records of one partition in one turn."""

STALL_LOOK_S: Final = 0.02
"""How often a stalled partition's backoff is looked at."""


@final
class FakeLog:
    """One partition of the fake cluster; an entry of None is a gap (a transaction marker, a compacted record)."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.low = 0
        self.entries: list[Message | None] = []

    @property
    def end(self) -> int:
        """The next offset to be written."""
        return len(self.entries)

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> int:
        """Write a record; returns its offset."""
        self.entries.append(
            Message(
                topic=self.partition.topic,
                partition=self.partition.number,
                offset=self.end,
                key=key,
                value=value,
                headers=list(headers) or None,
                timestamp=(1, timestamp_ms) if timestamp_ms >= 0 else (TIMESTAMP_NOT_AVAILABLE, -1),
            )
        )
        return self.end - 1

    def read(self, position: int) -> list[Message]:
        """What a fetch from `position` gives: records, or the end, or that there is no such position."""
        if not self.low <= position <= self.end:
            return [self._entry(KafkaError._AUTO_OFFSET_RESET, position)]
        ahead = self.entries[position : position + READ_MAX]
        found = [entry for entry in ahead if entry is not None]
        at_end = position + len(ahead) == self.end
        return [*found, self._entry(KafkaError._PARTITION_EOF, self.end)] if at_end else found

    def _entry(self, code: int, offset: int) -> Message:
        topic, number = self.partition
        return Message(topic=topic, partition=number, offset=offset, error=KafkaError(code))


@final
class FakeKafka:
    """A fake `KafkaPort` over `topics` (name -> partition count). `start` gives it every partition."""

    def __init__(
        self, intake: Intake, listener: Listener, topics: Mapping[str, int], *, clock: Clock | None = None
    ) -> None:
        self._listener = listener
        self._clock: Clock = clock or SystemClock()
        self._table = PartitionTable()
        self._feed = Feed(self._table, intake, listener, self._clock, listener.topic_error)
        self._logs = {p: FakeLog(p) for t, n in topics.items() for p in (Partition(t, i) for i in range(n))}
        self._awaited: dict[Partition, int] = {}
        self._let_go: dict[Partition, int | None] = {}
        self._all_let_go = asyncio.Event()
        self._stopped = False
        self._pumping = False
        self.topic_id: dict[str, str | None] = dict.fromkeys(topics)
        """What `topic_ids` tells; a test may set them."""
        self.group: dict[Partition, int] = {}
        """The group's committed offsets."""
        self.commits: list[dict[Partition, int]] = []
        """Every commit that was asked for, in order, accepted or not."""
        self.answers: defaultdict[Partition, CommitAnswer] = defaultdict(lambda: CommitAnswer.ACCEPTED)
        """What a commit of a partition is answered; a test may set them."""
        self.reachable = True
        """False: every question is a TransientError, every commit UNREACHABLE."""

    # -------------------------------------------------------------------------------------------------- the script

    def append(
        self,
        partition: Partition,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int = 0,
    ) -> int:
        """Write a record; returns its offset."""
        offset = self._logs[partition].append(key, value, headers, timestamp_ms)
        self._pump_soon()
        return offset

    def marker(self, partition: Partition, count: int = 1) -> None:
        """Write `count` offsets that hold no record: transaction markers, records that compaction took."""
        self._logs[partition].entries.extend([None] * count)
        self._pump_soon()

    def trim(self, partition: Partition, low: int) -> None:
        """Let retention take what is below `low`."""
        self._logs[partition].low = low
        self._pump_soon()

    def recreate(self, topic: str) -> None:
        """Delete the topic and make it again, empty."""
        for partition in [p for p in self._logs if p.topic == topic]:
            self._logs[partition] = FakeLog(partition)
        self._pump_soon()

    def assign(self, *partitions: Partition) -> None:
        """Kafka gives these."""
        self._listener.assigned(self._table.assign(partitions))

    async def revoke(self, *partitions: Partition, budget_s: float = 5.0) -> None:
        """Kafka takes these away and waits, at most `budget_s`, until they are let go."""
        owned = self._table.owned(partitions)
        if not owned:
            return
        self._awaited, self._let_go = dict(owned), {}
        self._all_let_go.clear()
        self._listener.revoking(owned, budget_s)
        try:
            async with asyncio.timeout(budget_s):
                await self._all_let_go.wait()
        except TimeoutError:
            pass
        self._commit({p: offset for p, offset in self._let_go.items() if offset is not None})
        self._awaited = {}
        self._table.drop(owned)

    def lose(self, *partitions: Partition) -> None:
        """These belong to somebody else already."""
        if gone := self._table.drop(partitions):
            self._listener.lost(gone)

    @property
    def counts(self) -> Counts:
        """As the real client counts."""
        return self._feed.counts

    # -------------------------------------------------------------------------------------------------- the contract

    def start(self) -> None:
        """Join the group: every partition is ours in the loop's next turn."""
        self._check_open()
        asyncio.get_running_loop().call_soon(self.assign, *self._logs)

    def pause(self, partitions: frozenset[Partition]) -> None:
        """See `KafkaPort`."""
        self._check_open()
        self._table.pause(partitions)

    def resume(self, partitions: frozenset[Partition]) -> None:
        """See `KafkaPort`."""
        self._check_open()
        self._table.resume(partitions)
        self._pump_soon()

    def seek(self, partition: Partition, epoch: int, offset: int) -> None:
        """See `KafkaPort`."""
        self._check_open()
        if state := self._table.get(partition, epoch):
            state.seek(offset)
            self._pump_soon()

    def let_go(self, partition: Partition, epoch: int, offset: int | None) -> None:
        """See `KafkaPort`."""
        self._check_open()
        if self._awaited.get(partition) == epoch:
            self._let_go[partition] = offset
            if len(self._let_go) == len(self._awaited):
                self._all_let_go.set()

    async def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """See `KafkaPort`."""
        await self._ask()
        return {p: self.group.get(p) for p in partitions}

    async def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """See `KafkaPort`."""
        await self._ask()
        return {p: (self._logs[p].low, self._logs[p].end) for p in partitions}

    async def commit(self, offsets: Mapping[Partition, int]) -> dict[Partition, CommitAnswer]:
        """See `KafkaPort`. What is not owned is REFUSED."""
        self._check_open()
        await asyncio.sleep(0)
        return self._commit(offsets)

    async def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """See `KafkaPort`."""
        await self._ask()
        return {topic: self.topic_id.get(topic) for topic in topics}

    async def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """See `KafkaPort`."""
        await self._ask()
        counts = {topic: sum(p.topic == topic for p in self._logs) for topic in topics}
        return {topic: count for topic, count in counts.items() if count}

    def polled_at(self) -> float:
        """See `KafkaPort`."""
        self._check_open()
        return self._clock.monotonic_s()

    async def stop(self, budget_s: float) -> None:
        """See `KafkaPort`."""
        self._stopped = True
        self._all_let_go.set()

    # ----------------------------------------------------------------------------------------------------- the inside

    def _check_open(self) -> None:
        if self._stopped:
            raise ClientStopped

    async def _ask(self) -> None:
        self._check_open()
        await asyncio.sleep(0)
        if not self.reachable:
            raise TransientError("the cluster does not answer")

    def _commit(self, offsets: Mapping[Partition, int]) -> dict[Partition, CommitAnswer]:
        self.commits.append(dict(offsets))
        owned = self._table.owned(offsets)
        answers = {p: self.answers[p] if p in owned else CommitAnswer.REFUSED for p in offsets}
        if not self.reachable:
            answers = dict.fromkeys(offsets, CommitAnswer.UNREACHABLE)
        self.group.update({p: offsets[p] for p, answer in answers.items() if answer is CommitAnswer.ACCEPTED})
        return answers

    def _pump_soon(self, after_s: float = 0.0) -> None:
        if not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_later(after_s, self._pump)

    def _pump(self) -> None:
        """One turn of the poll loop."""
        self._pumping = False
        if self._stopped or self._feed.failed:
            return
        self._table.end_stalls(self._clock.monotonic_s())
        messages = [message for p, position in self._placed().items() for message in self._logs[p].read(position)]
        self._feed.take(messages)
        if any(state.stall_until_s is not None for state in self._table.values()):
            self._pump_soon(STALL_LOOK_S)
        if any(position < self._logs[p].end for p, position in self._table.flowing().items()):
            self._pump_soon()

    def _placed(self) -> dict[Partition, int]:
        """Do at once what the real client does with pauses, seeks and resumes."""
        for state in self._table.values():
            state.fetching = not state.causes
            if state.fetching:
                state.rewind = state.broken = False
        return self._table.flowing()
