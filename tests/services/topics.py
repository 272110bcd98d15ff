"""Topics of a test's own on the run's one broker."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from typing import Final, Protocol, cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

ANSWER_S: Final = 30.0


class Topic(Protocol):
    """Makes a topic and gives its name."""

    def __call__(self, partitions: int = 4, config: Mapping[str, str] | None = None, name: str | None = None) -> str:
        """Make a topic with a name that no other test has: a new one, or `name`, which begins with one made before."""
        ...


@contextlib.contextmanager
def fresh(bootstrap: str, hint: str) -> Generator[Topic]:
    """A maker of topics, which all go away at the end. `hint` stands in the names, for who reads a broker's log."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    made: list[str] = []

    def topic(partitions: int = 4, config: Mapping[str, str] | None = None, name: str | None = None) -> str:
        if name is None:
            name = f"{hint}-{uuid.uuid4().hex[:8]}"
        elif not any(name.startswith(other) for other in made):  # tests run beside each other, on one broker
            raise ValueError(f"topic {name}: begin the name with that of a topic that this test made")
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin.create_topics([new])[name].result(ANSWER_S)
        made.append(name)
        _wait_for_leaders(admin, name, partitions)
        return name

    try:
        yield topic
    finally:
        _delete(admin, made)


def _wait_for_leaders(admin: AdminClient, name: str, partitions: int) -> None:
    """Creation is answered before every partition has its leader in the brokers' metadata."""
    while True:
        found = admin.list_topics(name, timeout=ANSWER_S).topics[name].partitions
        if len(found) == partitions and all(partition.leader >= 0 for partition in found.values()):
            return


def _delete(admin: AdminClient, names: list[str]) -> None:
    if not names:
        return
    answers = cast(dict[str, Future[None]], admin.delete_topics(names))
    for answer in answers.values():
        with contextlib.suppress(KafkaException):  # the test may have deleted it, or ended its broker
            answer.result(ANSWER_S)
