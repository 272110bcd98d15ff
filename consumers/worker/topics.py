"""Watches what a topic's name stands for: a topic that was deleted and made anew is not the one that was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import structlog

from ...inbox import topics
from ...inbox.errors import FatalError
from ...inbox.points import Writes
from ...inbox.store import Store
from ...inbox.topics import TopicChange, TopicIdentity
from ..app import Consumer
from ..client.ports import KafkaPort

log = structlog.get_logger(__name__)


@final
class TopicWatch:
    """Owned by the event loop; `incarnations` is read by the client thread (a plain dict read is atomic)."""

    def __init__(self, store: Store, consumer: Consumer, kafka: KafkaPort, incarnations: dict[str, int]) -> None:
        self._store = store
        self._consumer = consumer
        self._kafka = kafka
        self.incarnations = incarnations
        self._warned: set[str] = set()

    async def identity(self, topic: str) -> TopicIdentity:
        """What the name stands for now. Raises FatalError for a re-created topic, unless that is declared as fine."""
        topic_id = (await self._kafka.topic_ids([topic]))[topic]
        async with self._store.transaction(Writes.TOPIC) as conn:
            identity = await topics.adopt_topic(conn, self._store.tables, topic, topic_id)
        if identity.change is TopicChange.KEPT and topic not in self._warned:
            self._warned.add(topic)
            log.warning("topic_id_not_told", topic=topic)
        if identity.change is TopicChange.RECREATED:
            identity = await self._recreated(topic, topic_id)
        self.incarnations[topic] = identity.incarnation
        return identity

    async def look(self, changed: Callable[[str], None]) -> None:
        """Compare every topic now; `changed` is told of those that are another topic by now."""
        for topic, before in tuple(self.incarnations.items()):
            identity = await self.identity(topic)
            if identity.incarnation != before:
                changed(topic)

    async def _recreated(self, topic: str, topic_id: str | None) -> TopicIdentity:
        if self._consumer.on_recreated == "stop":
            raise FatalError(
                f"topic {topic!r} was deleted and made anew (its id is {topic_id} now): its offsets mean other records",
                fix=f"if that was meant: tidegate topic reset {topic}; or declare on_recreated='earliest'",
            )
        async with self._store.transaction(Writes.TOPIC) as conn:
            incarnation = await topics.raise_incarnation(conn, self._store.tables, topic, topic_id)
        log.warning("topic_recreated", topic=topic, incarnation=incarnation)
        return TopicIdentity(topic, topic_id, incarnation, TopicChange.RECREATED)
