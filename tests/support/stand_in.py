"""A stand-in for confluent's Consumer: it notes every call and plays the reads that a test wrote for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from tests.support.kafka_desk import Desk, PlainIntake
from tidegate.consumers.client.admin import TopicFacts
from tidegate.consumers.client.config import ClientOptions
from tidegate.consumers.client.thread import KafkaThread
from tidegate.inbox.event import Partition

TOPIC = "shop.orders"
P0, P1, P2, P3 = (Partition(TOPIC, number) for number in range(4))

Read = Callable[["StandIn"], list[Message]]


def record(partition: Partition, offset: int, value: bytes | None = b"v") -> Message:
    return Message(topic=partition.topic, partition=partition.number, offset=offset, value=value)


def error(code: int, partition: Partition | None = None, offset: int = -1, *, fatal: bool = False) -> Message:
    topic, number = partition or (None, -1)
    return Message(topic=topic, partition=number, offset=offset, error=KafkaError(code, fatal=fatal))


def end(partition: Partition, offset: int) -> Message:
    return error(KafkaError._PARTITION_EOF, partition, offset)


def raising(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class StandIn:
    """Each `poll` plays the next read's first message, the `consume` after it the rest."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.reads: deque[Read] = deque()
        self.commit_errors: deque[int] = deque()
        self.callbacks: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.assigned_at: list[int] = []
        self.read_all = threading.Event()
        self._rest: list[Message] = []

    def connect(self, config: dict[str, Any]) -> Any:
        self.config = config
        return self

    def play(self, *reads: Read | list[Message]) -> None:
        """Add reads."""
        self.read_all.clear()
        self.reads.extend(r if callable(r) else (lambda _, r=r: r) for r in reads)

    def named(self, name: str) -> list[Any]:
        return [arguments for called, arguments in self.calls if called == name]

    # ---------------------------------------------------------------------------------------- what confluent's has

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self.calls.append(("subscribe", topics))

    def poll(self, timeout: float) -> Message | None:
        if not self.reads:
            self.read_all.set()
            threading.Event().wait(0.001)
            return None
        messages = self.reads.popleft()(self)
        self._rest = messages[1:]
        return messages[0] if messages else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        rest, self._rest = self._rest, []
        return rest

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
        self.calls.append(("commit", {Partition(o.topic, o.partition): o.offset for o in offsets}))
        if self.commit_errors:
            raise raising(self.commit_errors.popleft())
        if not asynchronous:
            return offsets
        self.config["on_commit"](None, offsets)
        return None

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return places

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self._note("incremental_assign", places)
        self.assigned_at.extend(place.offset for place in places)

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self._note("incremental_unassign", places)

    def pause(self, places: list[TopicPartition]) -> None:
        self._note("pause", places)

    def resume(self, places: list[TopicPartition]) -> None:
        self._note("resume", places)

    def seek(self, place: TopicPartition) -> None:
        self.calls.append(("seek", (Partition(place.topic, place.partition), place.offset)))

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._note("offsets_for_times", places)
        return places

    def unsubscribe(self) -> None:
        self.calls.append(("unsubscribe", None))

    def close(self) -> None:
        self.calls.append(("close", None))

    def _note(self, name: str, places: Sequence[TopicPartition]) -> None:
        self.calls.append((name, [Partition(place.topic, place.partition) for place in places]))

    # ----------------------------------------------------------------------------------------- rebalances in a read

    def gives(self, *partitions: Partition) -> Read:
        """A read in which Kafka gives these."""
        return self._rebalance("assign", partitions)

    def takes(self, *partitions: Partition) -> Read:
        """A read in which Kafka takes these."""
        return self._rebalance("revoke", partitions)

    def loses(self, *partitions: Partition, and_returns: Sequence[Message] = ()) -> Read:
        """A read in which these are lost."""
        return self._rebalance("lost", partitions, and_returns)

    def _rebalance(self, name: str, partitions: Sequence[Partition], messages: Sequence[Message] = ()) -> Read:
        def read(_: StandIn) -> list[Message]:
            self.callbacks[name](self, [TopicPartition(p.topic, p.number) for p in partitions])
            return list(messages)

        return read


class StillCluster:
    """A cluster that knows one topic and tells nothing else."""

    def __init__(self, facts: Mapping[str, TopicFacts] | None = None) -> None:
        self.facts = dict(facts or {TOPIC: TopicFacts(None, 4)})

    def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, 0))

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        return {topic: self.facts[topic] for topic in topics}


def client(stand_in: StandIn, desk: Desk, **options: Any) -> KafkaThread:
    """The real client thread around the stand-in."""
    port = KafkaThread(
        ClientOptions("nowhere:1", "g", (TOPIC,)),
        PlainIntake(),
        desk,
        connect=stand_in.connect,
        admin=options.pop("admin", StillCluster()),
        **options,
    )
    desk.port = port
    return port
