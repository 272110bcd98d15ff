"""librdkafka's own mock cluster: groups, commits and rebalances in this process. It lives as long as its `Mock`."""

from __future__ import annotations

from confluent_kafka import Producer


class Mock:
    """One broker; topics are made when they are first named, with four partitions."""

    def __init__(self) -> None:
        self._cluster = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        brokers = self._cluster.list_topics(timeout=10).brokers.values()
        self.bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def make_topic(self, name: str) -> str:
        """Have it made by asking for it."""
        self._cluster.list_topics(name, timeout=10)
        return name
