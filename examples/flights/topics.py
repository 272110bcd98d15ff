"""Makes the two topics of the example where they are missing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TOPICS: Final[Mapping[str, dict[str, str]]] = {
    # Its records carry the time of 2013: a broker that keeps records for a week would throw them away at once.
    "flights.reported": {"retention.ms": "-1"},
    "flights.compensations": {},
}
PARTITIONS: Final = 4


def main() -> None:
    """Make them on the broker of TIDEGATE_KAFKA_BOOTSTRAP_SERVERS, with the replicas that it makes by default."""
    admin = AdminClient({"bootstrap.servers": os.environ["TIDEGATE_KAFKA_BOOTSTRAP_SERVERS"]})
    new = [NewTopic(name, num_partitions=PARTITIONS, config=config) for name, config in TOPICS.items()]
    for name, made in cast("dict[str, Future[None]]", admin.create_topics(new)).items():
        try:
            made.result()
            print(f"made {name} with {PARTITIONS} partitions")
        except KafkaException as refusal:
            if refusal.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


if __name__ == "__main__":
    main()
