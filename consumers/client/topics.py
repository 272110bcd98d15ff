"""Latches a subscription that does not work, until metadata shows that it does again (B12).

Kafka says "unknown topic" once and is silent ever after, and under KIP-848 it may not say it at all. So the topics are
looked at now and then, more often while one is latched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from .admin import TopicFacts
from .ports import Listener

LOOK_S: Final = 30.0
"""A topic that vanishes is noticed within this time even if Kafka says nothing."""

LOOK_LATCHED_S: Final = 2.0
"""One that appears makes the worker ready within this time."""


@final
class TopicWatch:
    """Client thread only. `ask` looks in another thread and comes back with `seen` through the mail."""

    def __init__(self, topics: Sequence[str], listener: Listener, ask: Callable[[], None]) -> None:
        self._topics = tuple(topics)
        self._listener = listener
        self._ask = ask
        self._latched: dict[str, str] = {}
        self._due_s = 0.0
        self._asking = False

    def latch(self, topic: str, error: str) -> None:
        """The subscription to `topic` does not work. Said once, until it works again or fails in another way."""
        if self._latched.get(topic) != error:
            self._latched[topic] = error
            self._listener.topic_error(topic, error)
            self._due_s = 0.0

    def look(self, now_s: float) -> None:
        """Ask for the topics' metadata if it is time."""
        if now_s >= self._due_s and not self._asking:
            self._asking = True
            self._due_s = now_s + (LOOK_LATCHED_S if self._latched else LOOK_S)
            self._ask()

    def seen(self, facts: Mapping[str, TopicFacts]) -> None:
        """What metadata shows; empty where nobody answered, which proves nothing."""
        self._asking = False
        for topic in self._topics:
            fact = facts.get(topic)
            if fact is None:
                continue
            if fact.error is not None:
                self.latch(topic, fact.error)
            elif self._latched.pop(topic, None) is not None:
                self._listener.topic_error(topic, None)
