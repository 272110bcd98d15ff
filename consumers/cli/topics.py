"""`tidegate topic reset` and `tidegate topic create`: what an operator says and does about topics."""

from __future__ import annotations

from typing import Final

from confluent_kafka.cimpl import NewTopic

from ...dlq import declaring
from ...inbox.errors import ConfigurationError, FatalError, Problem
from .. import letter_topics
from ..app import Consumer
from ..letter_topics import LetterTopic
from ..settings import Settings
from .access import Access, open_gate
from .cluster import Cluster
from .options import OUT


async def reset(access: Access, topic: str, by_hand: bool, reason: str) -> None:
    """Declare that `topic` is another one under its old name: its records are new, whatever their offsets.

    With Kafka's topic id this is done once, however often it is said; `by_hand` is for brokers that do not tell ids.
    """
    topic_id = None if by_hand else _topic_id(access.settings, topic)
    async with open_gate(access, "topic reset") as gate:
        before, after = await declaring.reset_topic(gate, topic, topic_id, reason)
    if before == after:
        OUT.print(f"{topic}: nothing to do, it is still the topic with the id {topic_id} (incarnation {after})")
    else:
        OUT.print(f"{topic}: incarnation {before} -> {after}; its records are read from the start as new ones")


def _topic_id(settings: Settings, topic: str) -> str:
    facts = Cluster(settings).describe([topic])[topic]
    if facts.error is not None:
        raise ConfigurationError.of("topic", f"{topic}: {facts.error}", "make the topic first, then reset it")
    if facts.topic_id is None:
        raise ConfigurationError.of(
            "topic", f"the broker does not tell the id of {topic}", "say it with --by-hand, once for each re-creation"
        )
    return facts.topic_id


# --------------------------------------------------------------------------------------------- dead-letter topics


def create(settings: Settings, consumers: tuple[Consumer, ...]) -> None:
    """Make the dead-letter topics that are missing. Raises FatalError where the cluster refuses one."""
    cluster = Cluster(settings)
    missing = [topic for consumer in consumers for topic in _looked_at(cluster, consumer) if topic.is_missing]
    answers = cluster.create([_new(topic, settings) for topic in missing])
    for topic in missing:
        if answers[topic.name] is None:
            OUT.print(f"made {topic.name} with {topic.partitions} partitions")
    refused = [f"{name}: {why}" for name, why in answers.items() if why is not None]
    if refused:
        raise FatalError(f"not made: {'; '.join(refused)}", fix=_CREATE_FIX)
    if not missing:
        OUT.print("every dead-letter topic is there")


_CREATE_FIX: Final = "grant this principal Create, or make them by hand"


def check_letter_topics(settings: Settings, cluster: Cluster, consumer: Consumer) -> tuple[list[Problem], list[str]]:
    """What is wrong with them, and what should be known. Nothing is made."""
    problems: list[Problem] = []
    warnings: list[str] = []
    topics = _looked_at(cluster, consumer)
    for topic in topics:
        if not topic.is_missing:
            problems += letter_topics.problems(topic, settings.dlq.retention_s)
            warnings += letter_topics.warnings(topic)
    missing = [topic for topic in topics if topic.is_missing]
    if missing and settings.dlq.create_topics:
        answers = cluster.create([_new(topic, settings) for topic in missing], only_ask=True)
        problems += [_not_made(name, why) for name, why in answers.items() if why is not None]
    elif missing and cluster.makes_topics():
        warnings += [f"topic {topic.name}: the broker will make it, with its own defaults" for topic in missing]
    else:
        problems += [letter_topics.missing_problem(topic) for topic in missing]
    return problems, warnings


def ready_letter_topics(settings: Settings, consumer: Consumer) -> list[str]:
    """Before `run` reads its first record: make what it may make, refuse what is wrong; warnings come back.

    Raises:
        ConfigurationError: a topic is missing or cannot take letters.
        TransientError: nobody answers.
    """
    cluster = Cluster(settings)
    missing = [topic for topic in _looked_at(cluster, consumer) if topic.is_missing]
    if missing and settings.dlq.create_topics:
        answers = cluster.create([_new(topic, settings) for topic in missing])
        if refused := [_not_made(name, why) for name, why in answers.items() if why is not None]:
            raise ConfigurationError(refused)
        return [f"topic {topic.name}: made with {topic.partitions} partitions" for topic in missing]
    problems, warnings = check_letter_topics(settings, cluster, consumer)
    if problems:
        raise ConfigurationError(problems)
    return warnings


def _looked_at(cluster: Cluster, consumer: Consumer) -> list[LetterTopic]:
    return letter_topics.look(cluster, consumer.name, consumer.topics)


def _new(topic: LetterTopic, settings: Settings) -> NewTopic:
    config = {
        "cleanup.policy": "delete",
        "retention.ms": f"{settings.dlq.retention_s * 1000:.0f}",
        "max.message.bytes": str(topic.message_bytes_wanted),
    }
    return NewTopic(topic.name, num_partitions=topic.partitions, config=config)


def _not_made(name: str, why: str) -> Problem:
    return Problem(f"topic {name}", f"it does not exist and cannot be made: {why}", _CREATE_FIX)
