"""The worlds in which the Kafka port's contract is tested: the fake, librdkafka's mock cluster, a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from confluent_kafka import Producer

from tests.support.kafka_desk import Desk, PlainIntake
from tidegate.consumers.client.config import ClientOptions
from tidegate.consumers.client.fake import FakeKafka
from tidegate.consumers.client.ports import KafkaPort
from tidegate.consumers.client.thread import KafkaThread
from tidegate.inbox.event import Headers, Partition

GroupProtocol = Literal["consumer", "classic"]

QUICK_CLASSIC = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
"""A classic group notices a second member at its next heartbeat."""


class World(Protocol):
    """A cluster with one topic of four partitions, and a member of a group that reads it."""

    desk: Desk
    intake: PlainIntake
    topic: str

    @property
    def port(self) -> KafkaPort:
        """The member under test."""
        ...

    def write(self, partition: Partition, value: bytes | None, key: bytes | None = None, headers: Headers = ()) -> None:
        """Write a record; it can be read when this returns."""
        ...

    def rival(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Another member joins, takes some partitions, and leaves at the end of the block."""
        ...


@dataclass
class FakeWorld:
    """The fake."""

    desk: Desk
    intake: PlainIntake
    topic: str = "shop.orders"
    port: FakeKafka = field(init=False)

    def __post_init__(self) -> None:
        self.port = FakeKafka(self.intake, self.desk, {self.topic: 4})

    def write(self, partition: Partition, value: bytes | None, key: bytes | None = None, headers: Headers = ()) -> None:
        self.port.append(partition, value, key, headers)

    @contextlib.asynccontextmanager
    async def rival(self) -> AsyncGenerator[None]:
        taken = (Partition(self.topic, 2), Partition(self.topic, 3))
        revoked = asyncio.create_task(self.port.revoke(*taken))
        yield
        await revoked
        self.port.assign(*taken)


@dataclass
class ClusterWorld:
    """A cluster that clients reach by TCP, whether mock or real."""

    desk: Desk
    intake: PlainIntake
    topic: str
    bootstrap: str
    protocol: GroupProtocol
    kafka: dict[str, Any] = field(default_factory=dict[str, Any])
    group: str = field(default_factory=lambda: f"g-{uuid.uuid4().hex[:8]}")
    revoke_budget_s: float = 10.0
    port: KafkaThread = field(init=False)

    def __post_init__(self) -> None:
        self._writer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0, "linger.ms": 0})
        self.port = self.member(self.desk)

    def member(self, desk: Desk, intake: PlainIntake | None = None) -> KafkaThread:
        """A client of the group."""
        quick = QUICK_CLASSIC if self.protocol == "classic" else {}
        options = ClientOptions(self.bootstrap, self.group, (self.topic,), self.protocol, {**quick, **self.kafka})
        port = KafkaThread(options, intake or self.intake, desk, revoke_budget_s=self.revoke_budget_s)
        desk.port = port
        return port

    def write(self, partition: Partition, value: bytes | None, key: bytes | None = None, headers: Headers = ()) -> None:
        self._writer.produce(partition.topic, value, key, partition.number, headers=list(headers) or None)
        assert self._writer.flush(30) == 0

    @contextlib.asynccontextmanager
    async def rival(self) -> AsyncGenerator[None]:
        other = Desk(start_at=None)
        port = self.member(other)
        port.start()
        try:
            yield
        finally:
            await port.stop(10)


Make = Callable[[Desk, PlainIntake], World]
