"""The relay: what stands in the outbox goes out to Kafka, in order for each (topic, key), at least once.

The owner of a row's home relays it, under its fence. What if the process stops after the send and before the mark? The
row is sent again with the same id in its header. What if this worker is a zombie? Its fence row does not come back when
it marks, so the row stays for the new owner, and again an id is repeated, never another one made. A topic that may not
be written, or does not exist, waits by itself: its rows are left out of the next looks for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, final

from ...inbox import fence, outbox
from ...inbox.clock import Clock
from ...inbox.faults import classify
from ...inbox.holding import Holdings
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import Outgoing, ProducerPort, SendAnswer, SendResult

LOOK_S: Final = 1.0
"""Without a wake-up the relay looks this often: for rows of a partition that was taken over."""

ROWS_MAX: Final = 1_000
"""Rows read at once: a few megabytes of letters, one round trip."""

TOPIC_WAIT_S: Final = 10.0
"""How long a topic that cannot be written is left alone."""


@final
class Relay:
    """Owned by the event loop. `wake` after a commit that wrote outbox rows; `run` relays until it is cancelled.

    `published(sent, failed)` counts; `blocked(topic, why)` tells of a topic that cannot be written.
    """

    def __init__(
        self,
        store: Store,
        consumer: str,
        holdings: Holdings,
        producer: ProducerPort,
        clock: Clock,
        wait_for: Callable[[str], Awaitable[None]],
        blocked: Callable[[str, str], None],
        published: Callable[[int, int], None],
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._holdings = holdings
        self._producer = producer
        self._clock = clock
        self._wait_for = wait_for
        self._blocked = blocked
        self._published = published
        self._blocked_until: dict[str, float] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    async def run(self) -> None:
        """Relay for ever."""
        while True:
            if not await self._once():
                await self._pause()

    async def drain(self, budget_s: float) -> None:
        """Relay what is there, at most for `budget_s`; the rest waits in the table for the next owner."""
        try:
            async with asyncio.timeout(budget_s):
                while await self._once():
                    pass
        except TimeoutError:
            return

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _once(self) -> bool:
        """One look; True where something was sent."""
        try:
            rows = await self._read()
            return bool(rows) and await self._send(rows)
        except STORE_ERRORS as error:
            classify(error)
            await self._wait_for("postgresql")
            return False

    async def _read(self) -> list[outbox.Outgoing]:
        homes = [holding.partition for holding in self._holdings]
        if not homes:
            return []
        async with self._store.transaction() as conn:
            return await outbox.unpublished(
                conn, self._store.tables, self._consumer, homes, blocked_topics=self._blocked_topics(), limit=ROWS_MAX
            )

    def _blocked_topics(self) -> list[str]:
        now_s = self._clock.monotonic_s()
        self._blocked_until = {topic: until for topic, until in self._blocked_until.items() if until > now_s}
        return sorted(self._blocked_until)

    async def _send(self, rows: list[outbox.Outgoing]) -> bool:
        """Rounds of at most one row a (topic, key), so that a failed one is never overtaken by the next of its key."""
        sent_any = False
        stuck: set[tuple[str, bytes | None]] = set()
        for round_rows in _rounds(rows):
            going = [
                row for row in round_rows if (row.topic, row.key) not in stuck and row.topic not in self._blocked_until
            ]
            results = await self._producer.send(
                [Outgoing(row.topic, row.key, row.payload, row.headers) for row in going]
            )
            sent = [row for row, result in zip(going, results, strict=True) if result.sent]
            for row, result in zip(going, results, strict=True):
                if not result.sent:
                    stuck.add((row.topic, row.key))
                    self._note(row.topic, result)
            self._published(len(sent), len(going) - len(sent))
            sent_any = await self._mark(sent) or sent_any
        return sent_any

    async def _mark(self, rows: list[outbox.Outgoing]) -> bool:
        """Steps 1 and 7: published, unless the row's home is not ours any more."""
        if not rows:
            return False
        fences = self._holdings.fences({row.home for row in rows if row.home is not None})
        async with self._store.transaction() as conn:
            held = await fence.hold(conn, self._store.tables, self._consumer, fences)
            await outbox.mark_published(conn, self._store.tables, [row.id for row in rows if row.home in held])
        return bool(held)  # a zombie that marks nothing must not send the same rows again and again

    def _note(self, topic: str, result: SendResult) -> None:
        if result.answer is SendAnswer.UNREACHABLE:
            return
        self._blocked_until[topic] = self._clock.monotonic_s() + TOPIC_WAIT_S
        self._blocked(topic, f"{result.answer.value}: {result.message}")


def _rounds(rows: list[outbox.Outgoing]) -> list[list[outbox.Outgoing]]:
    """Split into rounds: the n-th row of each (topic, key) is in round n. A record without a key has no order."""
    rounds: list[list[outbox.Outgoing]] = []
    places: dict[tuple[str, bytes], int] = {}
    for row in rows:
        place = 0
        if row.key is not None:
            place = places.get((row.topic, row.key), 0)
            places[(row.topic, row.key)] = place + 1
        while len(rounds) <= place:
            rounds.append([])
        rounds[place].append(row)
    return rounds
