"""Kafka in this process: librdkafka's mock cluster, which any client reaches by its address as long as we live.

It keeps topics, groups, commits and rebalances; it has no disk, and a topic that is named gets four partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from ...inbox.errors import FatalError
from .orders import Sent

WAIT_S: Final = 10.0
"""For an answer of this same process: more than enough on the slowest machine."""


@final
class Cluster:
    """One broker. Keep it as long as others need it."""

    def __init__(self) -> None:
        self._host = Producer({"test.mock.num.brokers": 1, "log_level": 0, "linger.ms": 5})
        brokers = self._host.list_topics(timeout=WAIT_S).brokers.values()
        self.address = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def send(self, topic: str, records: Iterable[Sent]) -> None:
        """Write all of them. Raises FatalError where one does not arrive."""
        failures: list[KafkaError] = []
        for record in records:
            self._host.produce(
                topic,
                record.value,
                record.key,
                headers=dict(record.headers),
                on_delivery=lambda error, _: failures.append(error) if error is not None else None,
            )
            self._host.poll(0)
        if self._host.flush(WAIT_S) or failures:
            raise FatalError(f"the mock cluster did not take every record of {topic}", fix="run the demo again")

    def partitions(self, topic: str) -> int:
        """How many the topic has; naming it makes it."""
        return len(self._host.list_topics(topic, timeout=WAIT_S).topics[topic].partitions)

    def read(self, topic: str) -> list[Message]:
        """Every record that the topic holds now, from the first to the last."""
        reader = Consumer({"bootstrap.servers": self.address, "group.id": "demo", "enable.auto.commit": False,
                           "enable.partition.eof": False, "auto.offset.reset": "error", "log_level": 0})  # fmt: skip
        try:
            parts = [TopicPartition(topic, number, 0) for number in range(self.partitions(topic))]
            total = sum(reader.get_watermark_offsets(part, timeout=WAIT_S)[1] for part in parts)
            reader.assign(parts)
            found: list[Message] = []
            while len(found) < total:
                found += _whole(reader.consume(total - len(found), timeout=WAIT_S), topic)
            return found
        finally:
            reader.close()


def _whole(messages: list[Message], topic: str) -> list[Message]:
    for message in messages:
        if (error := message.error()) is not None:
            raise KafkaException(error)
    if not messages:
        raise FatalError(f"the mock cluster does not give out the records of {topic}", fix="run the demo again")
    return messages
