"""The second reader: records of a partition beside the group, undecoded, for whoever holds its fence.

Its consumer is assigned by hand and commits nothing, so the group never learns of it. It is made at its first use and
has one thread, in which all calls to it run (one at a time).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast, final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ...inbox.errors import TransientError
from ...inbox.event import Headers, Partition, Record
from .config import ClientOptions, reader_config
from .ports import ClientStopped, Stretch

ANSWER_MAX_S: Final = 10.0
"""A broker that restarts answers within this time; whoever asks tries again after it."""

POLL_S: Final = 0.2
"""How soon a stop is noticed."""

Connect = Callable[[dict[str, Any]], Consumer]


@final
class KafkaReader:
    """The real `ReaderPort`."""

    def __init__(self, options: ClientOptions, connect: Connect = Consumer) -> None:
        self._config = reader_config(options)
        self._connect = connect
        self._thread = ThreadPoolExecutor(1, "tidegate-reader")
        self._consumer: Consumer | None = None
        self._place: tuple[Partition, int] | None = None
        """Where the consumer reads next; None where it has to be told."""
        self._stopped = False

    async def read(self, partition: Partition, offset: int, records_max: int) -> Stretch:
        """See `ReaderPort`."""
        if self._stopped:
            raise ClientStopped
        return await asyncio.wrap_future(self._thread.submit(self._read, partition, offset, records_max))

    async def stop(self) -> None:
        """See `ReaderPort`."""
        if not self._stopped:
            self._stopped = True
            await asyncio.wrap_future(self._thread.submit(self._close))
            self._thread.shutdown(wait=False)

    # --------------------------------------------------------------------------------------------- in the one thread

    def _read(self, partition: Partition, offset: int, records_max: int) -> Stretch:
        try:
            stretch = self._stretch(self._at(partition, offset), offset, records_max)
        except KafkaException as raised:
            self._place = None
            raise TransientError(f"{partition} at {offset}: {raised.args[0].str()}") from raised
        # an end is told once for each assignment: to hear it again it takes a new one
        self._place = None if stretch.at_end else (partition, stretch.next_offset)
        return stretch

    def _at(self, partition: Partition, offset: int) -> Consumer:
        if self._consumer is None:
            self._consumer = self._connect(self._config)
        if self._place != (partition, offset):
            self._place = None
            self._consumer.assign([TopicPartition(partition.topic, partition.number, offset)])
        return self._consumer

    def _stretch(self, consumer: Consumer, offset: int, records_max: int) -> Stretch:
        give_up_s = time.monotonic() + ANSWER_MAX_S
        while time.monotonic() < give_up_s:
            if self._stopped:
                raise ClientStopped
            found = _sorted(consumer.consume(records_max, POLL_S), offset)
            if found is not None:
                return found
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def _sorted(messages: Sequence[Message], offset: int) -> Stretch | None:
    """What one read brought; None where that is nothing. Raises KafkaException with the first error that is none of an
    end.
    """
    records: list[Record] = []
    end: int | None = None
    for message in messages:
        error = message.error()
        if error is None:
            records.append(_record(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            end = message.offset()
        elif not error.retriable() and error.code() not in _WEATHER:
            raise KafkaException(error)
    if not records and end is None:
        return None
    behind = records[-1].offset + 1 if records else offset
    return Stretch(tuple(records), behind if end is None else max(behind, end), end is not None)


_WEATHER: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE})
"""librdkafka reconnects by itself."""


def _record(message: Message) -> Record:
    kind, timestamp_ms = message.timestamp()
    topic, number, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a record has a place"
    assert number is not None, "a record has a place"
    assert offset is not None, "a record has a place"
    headers = cast(Headers, tuple(message.headers() or ()))
    return Record(topic, number, offset, message.key(), message.value(), headers, timestamp_ms, kind)
