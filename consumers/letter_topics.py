"""What a consumer's dead-letter topics have to be like, judged from what the cluster says. No IO but the port's.

A letter that cannot be written waits in the outbox, so nothing is lost by a bad topic; but it is noticed by whoever
waits for letters, days later. So it is looked at before the first record is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from ..dlq.letter import LETTER_BYTES_MAX, LETTER_BYTES_MIN, dead_letter_topic
from ..inbox.errors import Problem
from .client.admin import TopicFacts, TopicRules

OVERHEAD_BYTES: Final = LETTER_BYTES_MIN
"""What a letter may be larger than its record: our headers at their longest, and the framing."""


_UNKNOWN: Final = "UNKNOWN_TOPIC_OR_PART"
"""Kafka's name for "there is no such topic"; whoever may not see it gets another one."""


class Describes(Protocol):
    """What is asked of the cluster. Both questions raise TransientError where nobody answers."""

    def describe(self, topics: Sequence[str]) -> Mapping[str, TopicFacts]:
        """Facts about each topic; `error` where there is none."""
        ...

    def rules(self, topics: Sequence[str]) -> Mapping[str, TopicRules]:
        """The rules of those topics whose configuration may be read."""
        ...


@final
@dataclass(frozen=True, slots=True)
class LetterTopic:
    """One dead-letter topic and the topic whose letters it takes; rules are None where they may not be read."""

    name: str
    partitions: int
    """As many as the topic that it belongs to has."""
    error: str | None
    """What the cluster says instead of describing it."""
    rules: TopicRules | None
    origin_rules: TopicRules | None

    @property
    def is_missing(self) -> bool:
        """It does not exist."""
        return self.error is not None and self.error.startswith(_UNKNOWN)

    @property
    def message_bytes_wanted(self) -> int:
        """What it has to take, so that every letter goes out whole."""
        return (LETTER_BYTES_MAX if self.origin_rules is None else self.origin_rules.message_bytes_max) + OVERHEAD_BYTES


def look(cluster: Describes, consumer: str, topics: Sequence[str]) -> list[LetterTopic]:
    """The dead-letter topics of `consumer`, for each of `topics` that exists."""
    origins = {topic: facts for topic, facts in cluster.describe(topics).items() if facts.error is None}
    names = {topic: dead_letter_topic(topic, consumer) for topic in origins}
    found = cluster.describe(tuple(names.values()))
    there = [name for name in names.values() if found[name].error is None]
    rules = cluster.rules([*origins, *there])
    return [
        LetterTopic(name, origins[t].partitions, found[name].error, rules.get(name), rules.get(t))
        for t, name in names.items()
    ]


def missing_problem(topic: LetterTopic) -> Problem:
    """What is said of a topic that does not exist and that nobody makes."""
    return Problem(
        f"topic {topic.name}",
        "it does not exist; dead letters would wait in the outbox, and too many of them pause the consumer",
        f"run `tidegate topic create`, make it with {topic.partitions} partitions, or set dlq.create_topics=true",
    )


def problems(topic: LetterTopic, retention_s: float) -> list[Problem]:
    """Why no letter should be trusted to an existing topic; what its rules do not say is no problem."""
    rules, key = topic.rules, f"topic {topic.name}"
    if topic.error is not None:
        return [Problem(key, f"it cannot be looked at: {topic.error}", "grant this principal Describe and Write on it")]
    if rules is None:
        return []
    found: list[Problem] = []
    if "compact" in rules.cleanup:
        what = "cleanup.policy holds compact: of two letters with one key the broker would drop the first"
        found.append(Problem(key, what, "set cleanup.policy=delete on it"))
    if rules.message_bytes_max < LETTER_BYTES_MIN:
        what = f"max.message.bytes is {rules.message_bytes_max}: not even a letter without its record fits for sure"
        found.append(Problem(key, what, f"set max.message.bytes={topic.message_bytes_wanted} on it"))
    if not 0 <= rules.retention_ms <= retention_s * 1000:
        kept = "for ever" if rules.retention_ms < 0 else f"for {rules.retention_ms // 1000} s"
        what = f"it keeps letters {kept}, and the inbox answers for {retention_s:.0f} s (dlq.retention_s)"
        found.append(Problem(key, what, f"set retention.ms={retention_s * 1000:.0f} on it, or raise dlq.retention_s"))
    if rules.may_write is False:
        found.append(Problem(key, "this principal may not write to it", "grant it Write on the topic"))
    return found


def warnings(topic: LetterTopic) -> list[str]:
    """What should be known of an existing topic."""
    if topic.error is not None:
        return []
    if topic.rules is None:
        return [f"topic {topic.name}: its configuration cannot be read; grant DescribeConfigs on it to have it checked"]
    limit, wanted = topic.rules.message_bytes_max, topic.message_bytes_wanted
    if limit >= wanted:
        return []
    return [
        f"topic {topic.name}: max.message.bytes is {limit}, so the letters of larger records go without their payload, "
        f"which stays in the inbox; with {wanted} every letter is whole"
    ]


def letter_bytes_max(topics: Sequence[LetterTopic], produced_bytes_max: int | None) -> dict[str, int]:
    """The largest letter that each topic takes, by name, and that a producer with this limit sends (None: it follows).

    What is not known is left out. Never below what a letter needs: less is refused when it is sent.
    """
    known = {topic.name: topic.rules.message_bytes_max for topic in topics if topic.rules is not None}
    cut = {n: limit if produced_bytes_max is None else min(limit, produced_bytes_max) for n, limit in known.items()}
    return {name: max(LETTER_BYTES_MIN, limit) for name, limit in cut.items()}
