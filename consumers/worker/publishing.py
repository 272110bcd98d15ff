"""Turns `publish` calls of a handling into outbox rows whose ids a repeat repeats."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final, final

from ...inbox.event import Event, Header, Headers, Partition
from ...inbox.identity import outbox_id16
from ...inbox.outbox import NewOutgoing
from ..codecs.codec import Codec
from ..context import HeaderMap

MESSAGE_ID: Final = "tidegate-message-id"
"""The header that carries a published record's stable id: a consumer behind us can use it as its event id."""

RECORD_BYTES_MAX: Final = 1_000_000
"""The producer's own limit, unless the property message.max.bytes says another: what is larger never leaves."""

HEADER_BYTES: Final = 10
"""What Kafka adds to each header, at most."""

CORRELATION_ID: Final = "correlation-id"
CAUSATION_ID: Final = "causation-id"


@final
class Encoder:
    """Encodes values by the codec. The first value of a (topic, class) is encoded in a thread, because the codec may
    have to ask the registry for a schema; from then on encoding is arithmetic.
    """

    def __init__(self, codec: Codec, consumer: str, record_bytes_max: int = RECORD_BYTES_MAX) -> None:
        self._codec = codec
        self.consumer = consumer
        self.record_bytes_max = record_bytes_max
        self._known: set[tuple[str, type]] = set()

    async def encode(self, topic: str, value: object) -> bytes | None:
        """The bytes of a value; None (a tombstone) stays None."""
        if value is None:
            return None
        if (topic, type(value)) in self._known:
            return self._codec.encode(topic, value)
        encoded = await asyncio.to_thread(self._codec.encode, topic, value)
        self._known.add((topic, type(value)))
        return encoded


@final
class Publication:
    """The records that one handling publishes. They count only with the handling's claim."""

    def __init__(self, encoder: Encoder, handler: str, event: Event[Any]) -> None:
        self._encoder = encoder
        self._handler = handler
        self._event = event
        self._ordinals: Counter[tuple[str, bytes | None, str]] = Counter()
        self.outgoing: list[NewOutgoing] = []

    @property
    def handler(self) -> str:
        """Whose records these are."""
        return self._handler

    async def publish(
        self, topic: str, value: object, key: bytes | str | None, headers: HeaderMap | None, name: str
    ) -> None:
        """Encode now (a bad value fails the handling), send when the handling is durable."""
        key_bytes = key.encode() if isinstance(key, str) else key
        payload = await self._encoder.encode(topic, value)
        place = (topic, key_bytes, name)
        ordinal = self._ordinals[place]
        self._ordinals[place] += 1
        event = self._event
        row_id = outbox_id16(self._handler, _operation(event), topic, key_bytes, name, ordinal)
        all_headers = (*_given(headers), *_ours(row_id, event))
        _check_size(self._encoder.record_bytes_max, topic, key_bytes, payload, all_headers)
        self.outgoing.append(
            NewOutgoing(
                id=row_id,
                topic=topic,
                key=key_bytes,
                payload=payload,
                headers=all_headers,
                home=Partition(event.record.topic, event.record.partition),
                consumer=self._encoder.consumer,
                kind="publish",
                correlation_id=event.correlation_id,
            )
        )


def _operation(event: Event[Any]) -> str:
    """What the id hangs on: the event's identity, which is the operation's as long as nobody names another."""
    return event.event_id.hex()


def _check_size(limit: int, topic: str, key: bytes | None, payload: bytes | None, headers: Headers) -> None:
    """What the producer would refuse for ever must not come into the outbox. Raises ValueError."""
    size = len(key or b"") + len(payload or b"")
    size += sum(len(name.encode()) + len(value or b"") + HEADER_BYTES for name, value in headers)
    if size > limit:
        raise ValueError(f"a record for {topic} of {size} bytes: a producer sends {limit} at most (message.max.bytes)")


def _given(headers: HeaderMap | None) -> tuple[Header, ...]:
    reserved = {MESSAGE_ID, CORRELATION_ID, CAUSATION_ID}
    return tuple(
        (name, value.encode() if isinstance(value, str) else value)
        for name, value in (headers or {}).items()
        if name not in reserved
    )


def _ours(row_id: bytes, event: Event[Any]) -> tuple[Header, ...]:
    return (
        (MESSAGE_ID, row_id.hex().encode()),
        (CORRELATION_ID, event.correlation_id.encode("utf-8", "replace")),
        (CAUSATION_ID, event.id_text.encode("utf-8", "replace")),
    )
