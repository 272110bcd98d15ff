"""Commits to Kafka and what it says to them, without ever holding up the poll loop but inside a revocation.

A commit is sent asynchronously and answered by librdkafka's callback in a later poll. The commit's number travels in
the offset's metadata and comes back with the answer, so that a late answer is never taken for that of another question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ...inbox.event import Partition
from .errors import commit_answer
from .feed import Counts
from .mail import Reply
from .ports import CommitAnswer

ANSWER_MAX_S: Final = 15.0
"""librdkafka waits up to 10 s for a coordinator before it gives a commit up; this is a little longer."""

Answers = dict[Partition, CommitAnswer]


@dataclass(slots=True)
class _Asked:
    offsets: Mapping[Partition, int]
    reply: Reply[Answers]
    until_s: float


@final
class Commits:
    """Client thread only."""

    def __init__(self, counts: Counts, refused: Callable[[Sequence[Partition]], None]) -> None:
        self._counts = counts
        self._refused = refused
        self._asked: dict[str, _Asked] = {}
        self._number = 0

    def ask(self, consumer: Consumer, offsets: Mapping[Partition, int], reply: Reply[Answers], now_s: float) -> None:
        """Send a commit; `reply` is answered when Kafka answers, or with UNREACHABLE after a while."""
        self._number += 1
        number = str(self._number)
        self._asked[number] = _Asked(offsets, reply, now_s + ANSWER_MAX_S)
        try:
            consumer.commit(offsets=_places(offsets, number), asynchronous=True)
        except KafkaException as raised:
            self._settle(number, raised.args[0], ())

    def ask_now(self, consumer: Consumer, offsets: Mapping[Partition, int]) -> Answers:
        """Commit and wait for the answer: inside a rebalance callback, where no poll can bring it."""
        if not offsets:
            return {}
        try:
            return self._judge(offsets, None, consumer.commit(offsets=_places(offsets, ""), asynchronous=False))
        except KafkaException as raised:
            return self._judge(offsets, raised.args[0], ())

    def answered(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """The `on_commit` callback: Kafka's answer to `ask`."""
        if places and places[0].metadata in self._asked:
            self._settle(places[0].metadata, error, places)

    def expire(self, now_s: float) -> None:
        """Answer for Kafka where it took too long."""
        for number in [n for n, asked in self._asked.items() if asked.until_s <= now_s]:
            asked = self._asked.pop(number)
            asked.reply.give(dict.fromkeys(asked.offsets, CommitAnswer.UNREACHABLE))

    def _settle(self, number: str, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        asked = self._asked.pop(number)
        asked.reply.give(self._judge(asked.offsets, error, places))

    def _judge(
        self, offsets: Mapping[Partition, int], error: KafkaError | None, places: Sequence[TopicPartition]
    ) -> Answers:
        """An answer for each partition: its own error where Kafka gave one, else the request's."""
        own = {Partition(place.topic, place.partition): place.error for place in places}
        whole = None if own and any(own.values()) else error
        answers = {p: commit_answer(own.get(p) or whole) for p in offsets}
        if refused := [p for p, answer in answers.items() if answer is CommitAnswer.REFUSED]:
            self._counts.commits_refused += len(refused)
            self._refused(refused)
        return answers


def _places(offsets: Mapping[Partition, int], number: str) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.number, offset, number) for p, offset in offsets.items()]
