"""What the command line asks of Kafka without being a member of any group. Blocking calls, each bounded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast, final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ...inbox.errors import ConfigurationError, Problem, TransientError
from ...inbox.event import Partition
from ..client.admin import ANSWER_MAX_S, Admin, TopicFacts, TopicRules
from ..client.config import admin_config, consumer_config, spelled
from ..layers import CLIENT_TABLE
from ..settings import Settings


@final
class Cluster:
    """The cluster of `kafka.bootstrap_servers`. Every method raises TransientError where nobody answers."""

    def __init__(self, settings: Settings) -> None:
        config: dict[str, Any] = {**admin_config(settings.client_options("", ("-",))), "logger": _NOBODY}
        if problems := property_problems(settings):
            raise ConfigurationError(problems)
        self._admin = Admin(config)
        self._client = AdminClient(config)

    def describe(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        """Facts about each topic; `error` says where there is none."""
        return self._admin.describe(topics) if topics else {}

    def rules(self, topics: Sequence[str]) -> Mapping[str, TopicRules]:
        """The rules of those topics whose configuration may be read."""
        return self._admin.rules(topics)

    def makes_topics(self) -> bool:
        """Whether a missing topic comes to be when it is asked for."""
        return self._admin.makes_topics()

    def ends(self, topics: Sequence[str]) -> dict[Partition, tuple[int, int]]:
        """Low watermark and last stable offset of every partition of those topics that exist."""
        partitions = [
            Partition(topic, number)
            for topic, facts in self.describe(topics).items()
            if facts.error is None
            for number in range(facts.partitions)
        ]
        return self._admin.watermarks(partitions) if partitions else {}

    def committed(self, group: str) -> dict[Partition, int]:
        """The group's committed offsets; a partition without one is left out."""
        request = [ConsumerGroupTopicPartitions(group)]
        answer = cast(
            "dict[str, Future[Any]]",
            self._client.list_consumer_group_offsets(request, request_timeout=ANSWER_MAX_S),
        )
        try:
            places = answer[group].result().topic_partitions
        except KafkaException as raised:
            raise TransientError(f"the group's coordinator does not answer: {raised.args[0].str()}") from raised
        return {Partition(place.topic, place.partition): place.offset for place in places if place.offset >= 0}

    def create(self, topics: Sequence[NewTopic], *, only_ask: bool = False) -> dict[str, str | None]:
        """Make topics; None where a topic is there now (or could be), else why the cluster refuses."""
        if not topics:
            return {}
        futures = cast(
            "dict[str, Future[Any]]",
            self._client.create_topics(list(topics), request_timeout=ANSWER_MAX_S, validate_only=only_ask),
        )
        return {name: _refusal(future) for name, future in futures.items()}


def property_problems(settings: Settings) -> list[Problem]:
    """Properties that librdkafka does not know, or whose values it does not take: it names one at a time."""
    config = consumer_config(settings.client_options("-", ("-",)), {}) | {"logger": _NOBODY}
    problems: list[Problem] = []
    while (refusal := _construction_error(config)) is not None:
        culprit = next((key for key in settings.kafka.client if f'"{spelled(key)}"' in refusal), None)
        fix = "see librdkafka's CONFIGURATION.md for names and values"
        problems.append(Problem("kafka.client" if culprit is None else CLIENT_TABLE + culprit, refusal, fix))
        if culprit is None or config.pop(spelled(culprit), None) is None:
            break
    return problems


def _construction_error(config: dict[str, Any]) -> str | None:
    try:
        Consumer(config).close()
    except KafkaException as error:
        return error.args[0].str()
    except (ValueError, TypeError) as error:  # what the Python binding itself refuses
        return str(error)
    return None


_NOBODY: Final = logging.getLogger("tidegate.kafka")
"""What librdkafka has to say while a broker is away would go to standard error; every call says it in its own error."""


def _refusal(future: Future[Any]) -> str | None:
    try:
        future.result()
    except KafkaException as raised:
        error = raised.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return None
        if error.code() < 0:  # librdkafka's own: nobody answered
            raise TransientError(f"the cluster does not answer: {error.str()}") from raised
        return f"{error.name()}: {error.str()}"
    return None
