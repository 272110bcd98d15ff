"""Questions about the cluster that no consumer is needed for: watermarks, topic ids, partition counts. Blocking calls.

Called from a small thread pool of the client's own, never from the event loop or the poll loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast, final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import EarliestSpec, LatestSpec, OffsetSpec

from ...inbox.errors import TransientError
from ...inbox.event import Partition

T = TypeVar("T")

ANSWER_MAX_S: Final = 10.0
"""A controller election or a broker restart takes less; who asks gets an error after that and asks again."""

_MOCK: Final = "mockCluster"
"""What librdkafka's mock cluster calls itself. It has no controller, for which `describe_topics` would wait."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The cluster's word on a topic: `topic_id` None where it does not tell, `error` where there is no such topic."""

    topic_id: str | None
    partitions: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What a topic keeps and takes; `may_write` is None where the broker does not say what this principal may do."""

    cleanup: frozenset[str]
    message_bytes_max: int
    retention_ms: int
    """-1: for ever."""
    may_write: bool | None = None


class Cluster(Protocol):
    """What the client asks about the cluster; both questions block and raise TransientError."""

    def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Low watermark and last stable offset of each partition."""
        ...

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        """Facts about each of `topics`."""
        ...


@final
class Admin:
    """Thread-safe; every method blocks, at most for about `ANSWER_MAX_S`, and raises TransientError."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._client = AdminClient(dict(config))
        self._is_mock: bool | None = None

    def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """See `Cluster`."""
        low = self._list_offsets(partitions, EarliestSpec())
        high = self._list_offsets(partitions, LatestSpec())
        return {p: (self._offset(low[p]), self._offset(high[p])) for p in partitions}

    def offsets_at(self, partitions: Sequence[Partition], time_ms: int) -> dict[Partition, int | None]:
        """The first offset of each whose record is of this time (ms since 1970) or later; None where none is."""
        found = self._list_offsets(partitions, OffsetSpec.for_timestamp(time_ms)) if partitions else {}
        return {p: offset if (offset := self._offset(found[p])) >= 0 else None for p in partitions}

    def cluster_id(self) -> str:
        """What the cluster calls itself; empty where it does not tell."""
        try:
            return str(self._client.list_topics(timeout=ANSWER_MAX_S).cluster_id or "")
        except KafkaException as error:
            raise TransientError(f"the cluster does not answer: {error.args[0].str()}") from error

    def members(self, group: str) -> int:
        """How many live members the group has; 0 where there is no such group."""
        if self._asks_a_mock():
            return 0
        described = cast(
            "Mapping[str, Future[Any]]",
            self._client.describe_consumer_groups([group], request_timeout=ANSWER_MAX_S),
        )
        try:
            return len(described[group].result().members)
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise TransientError(f"the group's coordinator does not answer: {error.str()}") from raised

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        """See `Cluster`."""
        try:
            return self._listed(topics) if self._asks_a_mock() else self._described(topics)
        except KafkaException as error:
            raise TransientError(f"the cluster does not answer: {error.args[0].str()}") from error

    def rules(self, topics: Sequence[str]) -> dict[str, TopicRules]:
        """The rules of each of `topics` that exists and whose configuration may be read; none on a mock cluster."""
        try:
            if not topics or self._asks_a_mock():
                return {}
            may_write = self._may_write(topics)
            return {t: _rules(found, may_write.get(t)) for t, found in self._configs("TOPIC", topics).items()}
        except KafkaException as error:
            raise TransientError(f"the cluster does not answer: {error.args[0].str()}") from error

    def makes_topics(self) -> bool:
        """Whether a topic that is missing comes to be when it is asked for; False where the cluster does not tell."""
        try:
            if self._asks_a_mock():
                return True
            broker = next(iter(self._client.list_topics(timeout=ANSWER_MAX_S).brokers))
            found = self._configs("BROKER", [str(broker)])
        except KafkaException as error:
            raise TransientError(f"the cluster does not answer: {error.args[0].str()}") from error
        return any(entries["auto.create.topics.enable"].value == "true" for entries in found.values())

    def _configs(self, kind: str, names: Sequence[str]) -> dict[str, Mapping[str, ConfigEntry]]:
        """The configuration of each resource; one that is not there, or may not be looked at, is left out."""
        resources = [ConfigResource(ConfigResource.Type[kind], name) for name in names]
        futures = cast(
            "dict[ConfigResource, Future[Mapping[str, ConfigEntry]]]",
            self._client.describe_configs(resources, request_timeout=ANSWER_MAX_S),
        )
        answers = {resource.name: _answer(future) for resource, future in futures.items()}
        return {name: entries for name, entries in answers.items() if entries is not None}

    def _may_write(self, topics: Sequence[str]) -> dict[str, bool]:
        futures = cast(
            "Mapping[str, Future[Any]]",
            self._client.describe_topics(
                TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=ANSWER_MAX_S
            ),
        )
        found = {topic: _answer(future) for topic, future in futures.items()}
        told = {t: facts.authorized_operations for t, facts in found.items() if facts is not None}
        return {topic: AclOperation.WRITE in allowed for topic, allowed in told.items() if allowed is not None}

    def _list_offsets(self, partitions: Sequence[Partition], spec: OffsetSpec) -> dict[Partition, Future[Any]]:
        asked = {TopicPartition(p.topic, p.number): spec for p in partitions}
        futures = cast(
            dict[TopicPartition, Future[Any]],
            self._client.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_MAX_S
            ),
        )
        return {Partition(place.topic, place.partition): future for place, future in futures.items()}

    def _offset(self, future: Future[Any]) -> int:
        try:
            return future.result().offset
        except KafkaException as error:
            raise TransientError(f"no watermark: {error.args[0].str()}") from error

    def _asks_a_mock(self) -> bool:
        if self._is_mock is None:
            self._is_mock = str(self._client.list_topics(timeout=ANSWER_MAX_S).cluster_id).startswith(_MOCK)
        return self._is_mock

    def _described(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        futures = cast(
            Mapping[str, Future[Any]],
            self._client.describe_topics(TopicCollection(list(topics)), request_timeout=ANSWER_MAX_S),
        )
        return {topic: self._facts(future) for topic, future in futures.items()}

    def _facts(self, future: Future[Any]) -> TopicFacts:
        try:
            found = future.result()
        except KafkaException as raised:
            error = raised.args[0]
            if error.code() < 0:  # librdkafka's own: the cluster did not answer
                raise
            return TopicFacts(None, 0, f"{error.name()}: {error.str()}")
        return TopicFacts(str(found.topic_id) if found.topic_id is not None else None, len(found.partitions))

    def _listed(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        """By plain metadata of all topics: asking for one by name would make it on some clusters."""
        known = self._client.list_topics(timeout=ANSWER_MAX_S).topics
        return {
            topic: TopicFacts(None, len(known[topic].partitions))
            if topic in known
            else TopicFacts(None, 0, "UNKNOWN_TOPIC_OR_PART: no such topic")
            for topic in topics
        }


def _answer(future: Future[T]) -> T | None:
    """What was asked for; None where the cluster refuses it, raised where nobody answers."""
    try:
        return future.result()
    except KafkaException as raised:
        if raised.args[0].code() < 0:  # librdkafka's own: the cluster did not answer
            raise
        return None


def _rules(entries: Mapping[str, ConfigEntry], may_write: bool | None) -> TopicRules:
    told = {name: str(entries[name].value) for name in ("cleanup.policy", "max.message.bytes", "retention.ms")}
    cleanup = frozenset(part.strip() for part in told["cleanup.policy"].split(","))
    return TopicRules(cleanup, int(told["max.message.bytes"]), int(told["retention.ms"]), may_write)
