"""A process that can be stopped by a signal: it joins, commits, and on each line of its input commits again."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidegate.consumers.client.config import ClientOptions, consumer_config
from tidegate.consumers.client.errors import commit_answer


def main(bootstrap: str, group: str, topic: str) -> None:
    options = ClientOptions(bootstrap, group, (topic,))
    consumer = Consumer(consumer_config(options, {}))
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)

    def commit() -> str:
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        except KafkaException as error:
            return commit_answer(error.args[0]).value
        return "accepted"

    print(commit(), flush=True)
    for _ in sys.stdin:
        print(f"{commit()}, still listing {len(consumer.assignment())}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
