"""The relay: what stands in the outbox goes out to Kafka, in order for each (topic, key), at least once.

Each topic is a stream of its own: one that answers slowly, may not be written or does not exist holds up no other. The
owner of a row's home (`Homes`) relays it, under its fence. What if the process stops after the send and before the
mark? The row is sent again with the same id in its header. What if this worker is a zombie? Its fence row does not come
back when it marks, so the row stays for the new owner, and again an id is repeated, never another one made. What cannot
be written now is left out of the next looks for a while: a topic as a whole, or, where only the record is at fault, the
records of its key (itself alone, where it has none). A letter that its topic finds too large goes out as a claim
letter: its record stays in the inbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, final

from ...dlq.letter import shrunk
from ...inbox import fence, outbox
from ...inbox.clock import Clock
from ...inbox.event import Headers, Record
from ...inbox.homes import Homes
from ...inbox.points import Point, Writes, reach
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import Outgoing, ProducerPort, SendAnswer, SendResult

LOOK_S: Final = 1.0
"""Without a wake-up the relay looks this often: for rows of a partition that was taken over."""

LOOK_MIN_S: Final = 0.05
"""While more comes all the time the relay looks twenty times a second: what was committed in between goes out together,
with one look and one mark for all of it. The first to come after a quiet while goes at once."""

LETTERS_APART_S: Final = 0.25
"""Where nothing but letters comes, it looks four times a second: nobody waits for a letter, and a look and a mark are
seven ways to the database and back."""

ROWS_MAX: Final = 1_000
"""Rows read at once: a few megabytes of letters, one round trip."""

KNOWN_MAX: Final = 1_000
"""Letters that were just written, whose headers are kept (some 3 KB each) until they are read to be sent: to decode
them takes half as long as it took to make the letter."""

TOPIC_WAIT_S: Final = 10.0
"""How long a topic, or a key, that cannot be written is left alone."""

STUCK_MAX: Final = 10_000
"""Keys and rows that are left alone. A topic that refuses more is left alone as a whole: each look names them all."""

Stuck = str | tuple[str, bytes] | bytes
"""A topic, the records of one key in it, or the id of a row that has no key."""


@final
class Relay:
    """Owned by the event loop. `wake` after a commit that wrote outbox rows; `run` relays until it is cancelled.

    `published(sent, failed)` counts; `blocked(topic, why)` tells of a topic that cannot be written.
    """

    def __init__(
        self,
        store: Store,
        consumer: str,
        homes: Homes,
        producer: ProducerPort,
        clock: Clock,
        wait_for: Callable[[str], Awaitable[None]],
        blocked: Callable[[str, str], None],
        published: Callable[[int, int], None],
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._homes = homes
        self._producer = producer
        self._clock = clock
        self._wait_for = wait_for
        self._blocked = blocked
        self._published = published
        self._blocked_until: dict[Stuck, float] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._passed_over: set[str] = set()
        """Topics that were left out of a look, because something was being sent to them."""
        self._known: dict[bytes, Headers] = {}
        self._looked_s = float("-inf")
        self._letters_due: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()

    def wake(self, new: Sequence[outbox.NewOutgoing] = ()) -> None:
        """There may be something to send; or letters alone, which were committed just now, as they are here."""
        if not new:
            self._wake.set()
            return
        self._wake_for_letters()
        known = self._known
        known.update([(row.id, row.headers) for row in new])
        for row_id in [*islice(known, max(0, len(known) - KNOWN_MAX))]:
            del known[row_id]

    def _wake_for_letters(self) -> None:
        if self._letters_due is not None:
            return
        loop, due_s = asyncio.get_running_loop(), self._looked_s + LETTERS_APART_S
        if loop.time() >= due_s:
            self._wake.set()
        else:
            self._letters_due = loop.call_at(due_s, self._letters_are_due)

    def _letters_are_due(self) -> None:
        self._letters_due = None
        self._wake.set()

    async def run(self) -> None:
        """Relay for ever."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self._looked_s = loop.time()
                if not await self._look(group):
                    await self._pause()
                    await asyncio.sleep(self._looked_s + LOOK_MIN_S - loop.time())

    async def drain(self, budget_s: float) -> None:
        """Have what is there relayed, at most for `budget_s`; the rest waits in the table for the next owner."""
        try:
            async with asyncio.timeout(budget_s):
                while self._sending or (await self._read())[0]:
                    self._looked.clear()
                    self.wake()
                    await self._looked.wait()
        except (TimeoutError, *STORE_ERRORS):
            return

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _look(self, group: asyncio.TaskGroup) -> bool:
        """Begin to send what waits for topics that nothing is being sent to; True where there may be more of it."""
        try:
            rows, there_is_more = await self._read()
        except STORE_ERRORS:
            await self._wait_for("postgresql")
            return False
        finally:
            self._looked.set()
        by_topic: dict[str, list[outbox.Outgoing]] = {}
        for row in rows:
            by_topic.setdefault(row.topic, []).append(row)
        for topic, mine in by_topic.items():
            self._sending[topic] = task = group.create_task(self._send(mine))
            task.add_done_callback(lambda _, topic=topic: self._sent(topic))
        return there_is_more and bool(rows)

    def _sent(self, topic: str) -> None:
        del self._sending[topic]
        if topic in self._passed_over:
            self._passed_over.discard(topic)
            self._wake.set()

    async def _read(self) -> tuple[list[outbox.Outgoing], bool]:
        """What may be sent now, and whether more stands behind it."""
        places = self._homes.places()
        if not places.homes:
            return [], False
        now_s = self._clock.monotonic_s()
        self._blocked_until = {stuck: until for stuck, until in self._blocked_until.items() if until > now_s}
        self._passed_over.update(self._sending)
        blocked = self._left_out()
        async with self._store.look() as conn:
            rows = await outbox.unpublished(
                conn, self._store.tables, self._consumer, *places, limit=ROWS_MAX, blocked=blocked, known=self._known
            )
        for row in rows:
            self._known.pop(row.id, None)
        # both may have grown while the database was asked
        free = [row for row in rows if row.topic not in self._sending and not self._is_stuck(row)]
        return free, len(rows) == ROWS_MAX

    def _left_out(self) -> outbox.Blocked:
        """What is being sent, and what cannot be written now."""
        topics, keys, ids = {*self._sending}, list[tuple[str, bytes]](), list[bytes]()
        for stuck in self._blocked_until:
            if isinstance(stuck, str):
                topics.add(stuck)
            elif isinstance(stuck, bytes):
                ids.append(stuck)
            else:
                keys.append(stuck)
        return outbox.Blocked(sorted(topics), keys, ids)

    async def _send(self, rows: list[outbox.Outgoing]) -> None:
        """Rounds of at most one row a key, so that a failed one is never overtaken by the next of its key."""
        for round_rows in _rounds(rows):
            going = [row for row in round_rows if not self._is_stuck(row)]
            reach(Point.BEFORE_SEND, rows[0].topic)
            results = await self._sent_or_smaller(going)
            reach(Point.AFTER_SEND, rows[0].topic)
            sent = [row for row, result in zip(going, results, strict=True) if result.sent]
            for row, result in zip(going, results, strict=True):
                if not result.sent:
                    self._note(row, result)
            self._published(len(sent), len(going) - len(sent))
            if sent and not await self._mark(sent):
                self._blocked_until[rows[0].topic] = self._clock.monotonic_s() + LOOK_S
                return

    async def _sent_or_smaller(self, rows: list[outbox.Outgoing]) -> list[SendResult]:
        """An answer for each row.

        A broker refuses a batch as a whole, so "too large" may mean a neighbour: each of them is sent once more, alone.
        """
        records = [Outgoing(row.topic, row.key, row.payload, row.headers) for row in rows]
        results = list(await self._producer.send(records))
        for n, row in enumerate(rows):
            if results[n].answer is SendAnswer.TOO_LARGE:
                results[n] = await self._sent_alone(records[n], is_letter=row.kind == "letter")
        return results

    async def _sent_alone(self, record: Outgoing, *, is_letter: bool) -> SendResult:
        """A letter that its topic finds too large goes with less in it, until one is taken or nothing is left."""
        while True:
            (result,) = await self._producer.send([record])
            smaller = _smaller(record) if is_letter and result.answer is SendAnswer.TOO_LARGE else None
            if smaller is None:
                return result
            record = smaller

    def _is_stuck(self, row: outbox.Outgoing) -> bool:
        return row.topic in self._blocked_until or _by_itself(row) in self._blocked_until

    async def _mark(self, rows: list[outbox.Outgoing]) -> bool:
        """Steps 1 and 7: published, unless the row's home is not ours any more. False: none of them is marked."""
        owners = {home: self._homes.holding(home) for row in rows if (home := row.home) is not None}
        fences = {holding.partition: holding.fence_epoch for holding in owners.values() if holding is not None}
        try:
            async with self._store.transaction(Writes.MARK, rows[0].topic) as conn:
                held = await fence.hold(conn, self._store.tables, self._consumer, fences)
                ours = {home for home, holding in owners.items() if holding is not None and holding.partition in held}
                await outbox.mark_published(conn, self._store.tables, [row.id for row in rows if row.home in ours])
        except STORE_ERRORS:
            await self._wait_for("postgresql")
            return False
        return bool(held)  # a zombie that marks nothing must not send the same rows again and again

    def _fault(self, row: outbox.Outgoing, *, of_record: bool) -> Stuck:
        """What is left alone for a while."""
        return _by_itself(row) if of_record and len(self._blocked_until) < STUCK_MAX else row.topic

    def _note(self, row: outbox.Outgoing, result: SendResult) -> None:
        now_s = self._clock.monotonic_s()
        if result.answer is SendAnswer.UNREACHABLE:
            self._blocked_until[self._fault(row, of_record=True)] = now_s + LOOK_S
            return
        stuck = self._fault(row, of_record=result.answer in (SendAnswer.TOO_LARGE, SendAnswer.REFUSED))
        told, self._blocked_until[stuck] = stuck in self._blocked_until, now_s + TOPIC_WAIT_S
        if not told:  # of a thousand letters for a topic that is not there
            self._blocked(row.topic, f"{result.answer.value}: {result.message}")


def _by_itself(row: outbox.Outgoing) -> tuple[str, bytes] | bytes:
    """What goes no further with this row: its key, whose order is kept, or nothing else."""
    return row.id if row.key is None else (row.topic, row.key)


def _smaller(record: Outgoing) -> Outgoing | None:
    """The same letter as a claim letter, or with less than it has."""
    written = shrunk(Record(record.topic, 0, 0, record.key, record.value, record.headers))
    return None if written is None else Outgoing(record.topic, written.key, written.value, written.headers)


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
