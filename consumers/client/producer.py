"""Produces records: idempotent, acknowledged by all in-sync replicas, an answer for each record and no exception.

One thread polls librdkafka for delivery reports and wakes the event loop once for each call of `send`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final, final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from .config import ClientOptions, producer_config
from .errors import send_answer
from .mail import Replies, Reply
from .ports import ClientStopped, Outgoing, SendAnswer, SendResult

POLL_S: Final = 0.1
"""How long a poll waits for a report; it returns as soon as there is one."""

QUEUE_FULL_WAIT_S: Final = 0.05
"""librdkafka's queue holds 100,000 records: when it is full, some are on their way within this time."""


@final
class _Batch:
    """The answers to one call of `send`. Reports come in the poll thread, in any order."""

    def __init__(self, count: int) -> None:
        self.results: list[SendResult | None] = [None] * count
        self.reply: Reply[list[SendResult]] = Reply()
        self._missing = count
        self._lock = threading.Lock()

    def settle(self, index: int, result: SendResult) -> None:
        with self._lock:
            self.results[index] = result
            self._missing -= 1
            done = self._missing == 0
        if done:
            self.reply.give([result for result in self.results if result is not None])

    def reporter(self, index: int) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            self.settle(index, _result(error, message))

        return report


@final
class KafkaProducer:
    """The real `ProducerPort`."""

    def __init__(self, options: ClientOptions, record_bytes_max: int | None = None) -> None:
        """`record_bytes_max`: the largest record that any topic takes, where the user sets no limit of the producer."""
        config = producer_config(options)
        self._config = config if record_bytes_max is None else {"message.max.bytes": record_bytes_max} | config
        self._producer = Producer(self._config)
        self._replies = Replies()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="tidegate-producer", daemon=True)
        self._thread.start()

    async def send(self, records: Sequence[Outgoing]) -> list[SendResult]:
        """See `ProducerPort`.

        Raises:
            ClientStopped: after `stop`.
        """
        if self._stopping.is_set():
            raise ClientStopped
        if not records:
            return []
        batch = _Batch(len(records))
        with self._replies.expect(batch.reply):
            for index, record in enumerate(records):
                await self._produce(record, index, batch)
            return await batch.reply

    async def stop(self, budget_s: float) -> None:
        """See `ProducerPort`."""
        if not self._stopping.is_set():
            await asyncio.to_thread(self._producer.flush, budget_s)
            self._stopping.set()
            await asyncio.to_thread(self._thread.join, POLL_S * 5)
            self._replies.fail_all(ClientStopped())

    async def _produce(self, record: Outgoing, index: int, batch: _Batch) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    on_delivery=batch.reporter(index),
                )
                return
            except BufferError:
                await asyncio.sleep(QUEUE_FULL_WAIT_S)
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                if error.fatal() or error.code() == KafkaError._FATAL:
                    self._replace()
                batch.settle(index, _result(error, None))
                return
            except (TypeError, ValueError) as refused:  # the binding cannot even make a record of it
                batch.settle(index, SendResult(SendAnswer.REFUSED, message=type(refused).__name__))
                return

    def _replace(self) -> None:
        """An idempotent producer whose sequence broke is dead for good; its records were answered with errors."""
        self._producer = Producer(self._config)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(POLL_S)


def _result(error: KafkaError | None, message: Message | None) -> SendResult:
    answer = send_answer(error)
    if answer is SendAnswer.SENT and message is not None:
        return SendResult(answer, _number(message.partition()), _number(message.offset()))
    return SendResult(answer, message="" if error is None else f"{error.name()}: {error.str()}")


def _number(value: int | None) -> int:
    return -1 if value is None else value
