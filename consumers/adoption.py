"""What a replay out of a dead-letter topic works with: the app's consumer, its intake, and the topic's partitions.

Which topic the letters come from is told by its name, `<topic>.<consumer>.dlq`; of a topic that others named it has to
be said, and must be one that the consumer declares. Names are compared letter by letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from ..dlq.adopting import Handler, MakeEvent, Target
from ..dlq.letter import dead_letter_topic
from ..dlq.replay_journal import Part
from ..inbox import handlers
from ..inbox.errors import ConfigurationError
from ..inbox.event import Event, Partition, Record
from ..inbox.handlers import RESERVED
from ..inbox.store import Store
from .app import Consumer
from .client.admin import Admin
from .intake import EventIntake, scope_of
from .routing import Router
from .settings import Settings
from .worker.completion import COMMAND_VERSION
from .worker.run import open_codec


def source_of(consumer: Consumer, letters: str, source: str | None) -> str:
    """The topic whose letters stand in the topic `letters`. Raises ConfigurationError."""
    if source is not None and source not in consumer.topics:
        what = f"the consumer {consumer.name!r} does not read {source!r}"
        raise ConfigurationError.of("--topic", what, f"name one of: {', '.join(consumer.topics)}")
    named = [topic for topic in consumer.topics if dead_letter_topic(topic, consumer.name) == letters]
    if named and source not in (None, *named):
        raise ConfigurationError.of("--topic", f"{letters} holds letters of {named[0]}", f"name {named[0]}, or nothing")
    if not named and source is None:
        what = f"{letters} is not the dead-letter topic of a topic that {consumer.name!r} reads"
        raise ConfigurationError.of("--topic", what, f"say whose letters they are: one of {', '.join(consumer.topics)}")
    return named[0] if named else str(source)


async def target_of(store: Store, consumer: Consumer, source: str, partitions: int, handler: str | None) -> Target:
    """Where the letters go. Raises ConfigurationError where the database or the app has no such handler."""
    if handler is not None and handler not in consumer.handler_names:
        raise ConfigurationError.of(
            "--handler", f"{consumer.name!r} has no handler {handler!r}", f"one of {', '.join(consumer.handler_names)}"
        )
    async with store.look() as conn:
        ids = await handlers.known_handlers(conn, store.tables, consumer.name)
        t = store.tables.topic
        incarnation = await conn.scalar(sa.select(t.c.incarnation).where(t.c.name == source))
    if missing := sorted({*consumer.handler_names, RESERVED} - ids.keys()):
        what = f"the database does not know its handlers: {', '.join(name or '(all)' for name in missing)}"
        raise ConfigurationError.of(f"consumer {consumer.name!r}", what, "start it once with this release")
    known = {name: _handler(consumer, name, ids[name]) for name in (*consumer.handler_names, RESERVED)}
    return Target(
        consumer=consumer.name,
        source=source,
        partitions=partitions,
        incarnation=incarnation or 0,
        handlers=known,
        scope_of=lambda record: scope_of(record, consumer.scope),
        handler=handler,
    )


def _handler(consumer: Consumer, name: str, handler_id: int) -> Handler:
    if name == RESERVED:
        return Handler(handler_id, COMMAND_VERSION, alone=True)
    projection = consumer.projections.get(name)
    version = COMMAND_VERSION if projection is None else projection.version
    return Handler(handler_id, version, consumer.policies()[name].on_failure != "block")


def intake_of(consumer: Consumer, settings: Settings, incarnations: Mapping[str, int]) -> MakeEvent:
    """How the consumer makes events of records."""
    router = Router(tuple(consumer.projections.values()), tuple(consumer.commands.values()))
    intake = EventIntake(consumer, open_codec(consumer, settings), router, incarnations, _nobody_counts)

    def make(record: Record) -> Event[Any]:
        return intake.event_of(record)[0]

    return make


def _nobody_counts(topic: str, type_name: str) -> None:
    """What no handler takes is told by its replay."""


def parts_of(admin: Admin, letters: str) -> list[Part]:
    """The topic's partitions, from their beginnings to their ends now. Blocks. Raises ConfigurationError."""
    partitions = [Partition(letters, number) for number in range(partitions_of(admin, letters))]
    return [Part(partition, low, end) for partition, (low, end) in sorted(admin.watermarks(partitions).items())]


def partitions_of(admin: Admin, topic: str) -> int:
    """How many partitions the topic has. Blocks. Raises ConfigurationError where there is none."""
    facts = admin.describe([topic])[topic]
    if facts.error is not None:
        raise ConfigurationError.of(f"topic {topic}", facts.error, "look at its name and at this principal's rights")
    return facts.partitions
