"""What the client delivered, on its way to the engine: rejects become letters, known repeats leave, order is kept.

Records that no handler can be given get their failure rows and letters before the engine hears of their slice, so that
no commit ever passes one that is not saved. What if the process stops between that commit and the engine? The records
are read again, and the failure row's position, which is unique, tells that they are known. For commands the inbox is
asked before anything runs: for ids, which is advice (the claim in the completing transaction decides), and for parked
keys, which is not. Records that cannot be read in numbers are held back by a breaker, like any handler's dead.

What is of an earlier life of its partition is not handed on:
1. A chunk waits here (the database is away, say). 2. The fence turns out to be lost, and is taken again under the same
assignment: reading begins anew at the checkpoint, below the chunk. 3. Handed on now, the chunk would stand for all the
records before it, which nobody saw, and for its rejects, which nobody wrote. So what the client
delivered carries the holding under which it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.breakers import DeadBreakers
from ...dlq.burial import Burial
from ...inbox import claim, fence, lanes
from ...inbox.errors import OwnershipLost
from ...inbox.event import Event, Partition
from ...inbox.faults import Fault, classify
from ...inbox.handlers import RESERVED
from ...inbox.holding import Holding, Holdings
from ...inbox.identity import key_hash16
from ...inbox.meter import Meter
from ...inbox.outcome import Reason
from ...inbox.points import Point, Writes, reach
from ...inbox.scope import Scope
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import Chunk, Part
from ..engine.signals import Delivered, Reached, Slice
from .completion import COMMAND_VERSION
from .parked_keys import Lane, ParkedKeys
from .rejects import RejectRows

log = structlog.get_logger(__name__)

HASHES_MAX: Final = 10_000
"""Hashes of keys that are remembered while keys are parked, a few megabytes: keys come again, and to make a hash takes
ten times as long as to find it."""

Received = Chunk | Reached
Lives = Mapping[Partition, Holding | None]
"""What was held of each partition when its records came."""
Through = Callable[[], None]


@final
class Receiver:
    """Owned by the event loop: `put` from any callback on it, `run` hands on in order until it is cancelled."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        scope: Scope,
        handler_ids: Mapping[str, int],
        holdings: Holdings,
        burial: Burial,
        meter: Meter,
        wait_for: Callable[[str], Awaitable[None]],
        hand_on: Callable[[Delivered | Reached], None],
        fenced: Callable[[Partition, int], None],
        wrote_letters: Callable[[], None],
        suspect: Callable[[tuple[int, bytes]], None],
        parked: ParkedKeys,
        blocking: Collection[str] = (),
        breakers: DeadBreakers | None = None,
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._handler_ids = handler_ids
        self._holdings = holdings
        self._rows = RejectRows(burial, scope, handler_ids, meter)
        self._meter = meter
        self._wait_for = wait_for
        self._hand_on = hand_on
        self._fenced = fenced
        self._wrote_letters = wrote_letters
        self._suspect = suspect
        self._parked = parked
        self._blocking = frozenset(blocking)
        self._breakers = breakers
        self._key_hash = lru_cache(HASHES_MAX)(key_hash16)
        self._busy = False
        self._waiting: asyncio.Queue[tuple[Received, Lives, Through]] = asyncio.Queue()

    def put(self, received: Received, through: Through = lambda: None) -> None:
        """The client delivered this; `through` is called once it does not wait here any more.

        What waits is in nobody's window yet: whoever puts it bounds it.
        """
        self._waiting.put_nowait((received, self._lives(received), through))

    def put_through(self, received: Received, through: Through = lambda: None) -> None:
        """The same, without a turn through the queue where nothing has to be asked or written first."""
        if self._waiting.empty() and not self._busy and not _needs_work(received):
            if isinstance(received, Chunk):
                self._readable(sum(len(part.taken.events) for part in received.parts))
            self._hand_on(_as_signal(received))
            through()
        else:
            self.put(received, through)

    async def run(self) -> None:
        """Hand on for ever."""
        while True:
            received, lives, through = await self._waiting.get()
            self._busy = True
            await self._one(received, lives)
            self._busy = False
            through()

    async def _one(self, received: Received, lives: Lives) -> None:
        if isinstance(received, Reached):
            if self._is_current(received, lives):
                self._hand_on(received)
            return
        made: list[tuple[Part, Slice]] = []
        for part in received.parts:
            if part.taken.rejects and self._is_current(part, lives):
                if not await self._is_admitted(part, lives):
                    continue  # not handed on: whoever owns the partition next reads it again
                await self._until_written(part)
            else:
                self._readable(len(part.taken.events))
            made.append((part, await self._slice(part)))
        current = [slice_ for part, slice_ in made if self._is_current(part, lives)]
        if current:
            self._hand_on(Delivered(tuple(current)))

    def _lives(self, received: Received) -> Lives:
        parts = (received,) if isinstance(received, Reached) else received.parts
        return {part.partition: self._holdings.current(part.partition, part.epoch) for part in parts}

    def _is_current(self, part: Part | Reached, lives: Lives) -> bool:
        holding = self._holdings.current(part.partition, part.epoch)
        return holding is not None and lives[part.partition] is holding

    # ------------------------------------------------------------------------------------------------------ rejects

    def _readable(self, events: int) -> None:
        """So many records became events."""
        if self._breakers is not None and events:
            self._breakers.fine(RESERVED, events)

    async def _is_admitted(self, part: Part, lives: Lives) -> bool:
        """Whether the letters of its rejects may be written; waits while the breaker on such letters holds them back.

        False: the process stops, or the partition is not ours any more. What no handler takes is no sign of trouble.
        """
        if self._breakers is None:
            return True
        rejects, events = part.taken.rejects, len(part.taken.events)
        outcomes = [*(reject.reason is not Reason.UNMATCHED for reject in rejects), *[False] * events]
        try:
            while self._is_current(part, lives):
                if await self._breakers.admits(RESERVED, outcomes):
                    return True
        except OwnershipLost:
            log.info("rejects_not_written", partition=str(part.partition), rejects=len(rejects))
        return False

    async def _until_written(self, part: Part) -> None:
        while True:
            try:
                if not await self._bury(part):
                    self._fenced(part.partition, part.epoch)
                return
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                log.warning("rejects_wait", partition=str(part.partition), error=type(error).__name__)
                await self._wait_for("postgresql")
                await asyncio.sleep(0)

    async def _bury(self, part: Part) -> bool:
        """Failure rows and letters under the reserved handler. False: the partition is not ours."""
        holding = self._holdings.current(part.partition, part.epoch)
        if holding is None:
            return True  # dropped meanwhile: the engine will drop the slice too
        async with self._store.transaction(Writes.REJECTS) as conn:
            fences = {part.partition: holding.fence_epoch}
            if not await fence.hold(conn, self._store.tables, self._consumer, fences):
                return False
            written = await self._rows.write(conn, self._store.tables, part.taken.rejects, holding.incarnation)
        self._wrote_letters()
        self._rows.tell(written)
        return True

    # ------------------------------------------------------------------------------------------------------ repeats

    async def _slice(self, part: Part) -> Slice:
        taken = part.taken.lanes
        if taken:
            taken = await self._without_repeats(part)
        return Slice(part.partition, part.epoch, part.taken.events, part.next_offset, part.taken.size_bytes, taken)

    async def _without_repeats(self, part: Part) -> Mapping[str, tuple[int, ...]]:
        """Leave out what the inbox knows, and learn which keys are parked.

        Of repeats the answer is only advice. A key that is parked must not be missed: so the question is asked until
        it is answered.
        """
        events, wanted = part.taken.events, part.taken.lanes
        indexes = sorted({index for taken in wanted.values() for index in taken})
        keys = [(self._handler_ids[name], COMMAND_VERSION) for name in wanted]
        while True:
            self._parked.looking_up(part.partition, part.next_offset)
            try:
                async with self._store.look() as conn:
                    ids = _ids(events, indexes)
                    known = await claim.advise(conn, self._store.tables, keys, ids, self._store.failing)
                    await self._look_for_parked(conn, part)
                break
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                log.warning("probe_waits", partition=str(part.partition), error=type(error).__name__)
                await self._wait_for("postgresql")
        reach(Point.PROBED)
        return {name: self._left(name, its, events, known) for name, its in wanted.items()} if known else wanted

    async def _look_for_parked(self, conn: AsyncConnection, part: Part) -> None:
        """One statement, unless many keys are parked."""
        blocking = {self._handler_ids[name]: name for name in part.taken.lanes if name in self._blocking}
        if not blocking or not (told := await lanes.tell(conn, self._store.tables, blocking)):
            return
        topic = part.partition.topic
        asked = {(handler_id, topic): self._keys_by_hash(part, blocking[handler_id]) for handler_id in told}
        for stream, hashes in (await lanes.parked_in(conn, self._store.tables, told, asked)).items():
            for hashed in hashes:
                self._parked.found(Lane(*stream, asked[stream][hashed]), part.partition, part.next_offset)

    def _keys_by_hash(self, part: Part, name: str) -> dict[bytes, bytes]:
        """Of the events that are for this handler."""
        events = part.taken.events
        keys = [key for key in {events[index].record.key for index in part.taken.lanes[name]} if key is not None]
        return dict(zip(map(self._key_hash, keys), keys, strict=True))

    def _left(
        self, name: str, indexes: tuple[int, ...], events: Sequence[Event[Any]], known: claim.Probe
    ) -> tuple[int, ...]:
        """What a handler still has to do. A claim with other bytes stays: it ends as a conflict. So does what stands in
        the failure table: it is linked to what is there, or a conflict too.
        """
        handler_id = self._handler_ids[name]
        left: list[int] = []
        for index in indexes:
            event = events[index]
            key = claim.ClaimKey(handler_id, COMMAND_VERSION, event.event_id)
            if key in known.failures:
                self._suspect((handler_id, event.event_id))
            elif known.claims.get(key) == event.payload_hash:
                continue
            left.append(index)
        if len(left) < len(indexes):
            self._meter.duplicates(name, len(indexes) - len(left))
        return tuple(left)


def _needs_work(received: Received) -> bool:
    return isinstance(received, Chunk) and any(part.taken.rejects or part.taken.lanes for part in received.parts)


def _as_signal(received: Received) -> Delivered | Reached:
    if isinstance(received, Reached):
        return received
    return Delivered(
        tuple(
            Slice(part.partition, part.epoch, part.taken.events, part.next_offset, part.taken.size_bytes)
            for part in received.parts
        )
    )


def _ids(events: Sequence[Event[Any]], indexes: Sequence[int]) -> list[bytes]:
    return sorted({events[index].event_id for index in indexes})
