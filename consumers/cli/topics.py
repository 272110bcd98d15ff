"""`tidegate topic reset` and `tidegate topic create`: what an operator says and does about topics."""

from __future__ import annotations

import sqlalchemy as sa

from ...dlq.letter import dead_letter_topic
from ...inbox.errors import ConfigurationError, FatalError, Problem
from ...inbox.migrate import check_schema
from ...inbox.store import Store
from ...inbox.topics import raise_incarnation
from ..app import Consumer
from ..settings import Settings
from .cluster import Cluster
from .options import OUT
from .preparing import open_store


async def reset(settings: Settings, topic: str, by_hand: bool) -> None:
    """Declare that `topic` is another one under its old name: its records are new, whatever their offsets.

    With Kafka's topic id this is done once, however often it is said; `by_hand` is for brokers that do not tell ids.
    """
    topic_id = None if by_hand else _topic_id(settings, topic)
    store = open_store(settings, "topic reset")
    try:
        before, after = await _raise(store, topic, topic_id)
    finally:
        await store.database.close()
    if before == after:
        OUT.print(f"{topic}: nothing to do, it is still the topic with the id {topic_id} (incarnation {after})")
    else:
        OUT.print(f"{topic}: incarnation {before} -> {after}; its records are read from the start as new ones")


async def _raise(store: Store, topic: str, topic_id: str | None) -> tuple[int, int]:
    async with store.transaction() as conn:
        await check_schema(conn, store.tables)
        known = store.tables.topic
        before: int | None = await conn.scalar(sa.select(known.c.incarnation).where(known.c.name == topic))
        if before is None:
            names = (await conn.scalars(sa.select(known.c.name).order_by(known.c.name))).all()
            fix = f"name one of: {', '.join(names)}" if names else "no consumer has read a topic yet: nothing to reset"
            raise ConfigurationError.of("topic", f"the inbox knows no topic {topic!r}", fix)
        return before, await raise_incarnation(conn, store.tables, topic, topic_id)


def _topic_id(settings: Settings, topic: str) -> str:
    facts = Cluster(settings).describe([topic])[topic]
    if facts.error is not None:
        raise ConfigurationError.of("topic", f"{topic}: {facts.error}", "make the topic first, then reset it")
    if facts.topic_id is None:
        raise ConfigurationError.of(
            "topic", f"the broker does not tell the id of {topic}", "say it with --by-hand, once for each re-creation"
        )
    return facts.topic_id


def missing_letter_topics(cluster: Cluster, consumer: Consumer) -> dict[str, int]:
    """Dead-letter topics that do not exist: name -> partitions, as many as the topic that they belong to has."""
    origins = cluster.describe(consumer.topics)
    wanted = {
        dead_letter_topic(topic, consumer.name): facts.partitions
        for topic, facts in origins.items()
        if facts.error is None
    }
    found = cluster.describe(tuple(wanted))
    return {name: count for name, count in wanted.items() if found[name].error is not None}


def create(settings: Settings, consumers: tuple[Consumer, ...]) -> None:
    """Make the dead-letter topics that are missing. Raises FatalError where the cluster refuses one."""
    cluster = Cluster(settings)
    missing: dict[str, int] = {}
    for consumer in consumers:
        missing |= missing_letter_topics(cluster, consumer)
    answers = cluster.create(missing)
    for name, count in missing.items():
        if answers[name] is None:
            OUT.print(f"made {name} with {count} partitions")
    refused = [f"{name}: {why}" for name, why in answers.items() if why is not None]
    if refused:
        raise FatalError(f"not made: {'; '.join(refused)}", fix="grant this principal Create, or make them by hand")
    if not missing:
        OUT.print("every dead-letter topic is there")


def letter_topic_problems(cluster: Cluster, consumer: Consumer) -> list[Problem]:
    """What `tidegate check` says of them."""
    return [
        Problem(
            f"topic {name}",
            "it does not exist; dead letters would wait in the outbox, and too many of them pause the consumer",
            f"run `tidegate topic create`, or make it with {count} partitions",
        )
        for name, count in missing_letter_topics(cluster, consumer).items()
    ]
