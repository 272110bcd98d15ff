"""Handles what may have killed the process: one thing at a time, marked durably before it is touched, nothing beside.

After an unclean end the records behind the checkpoint are suspects. They are read undecoded by a second reader and
handed over like any others, but one by one, so that claims, retries, parked keys and letters are what they always are.
Marks are the only thing that is new:

1. Everything else comes to its end; nothing more is read. 2. The checkpoints of all handlers are raised to the record.
3. The mark is committed. 4. The record is decoded, handled, durable. 5. The next one's mark takes its place.

What if the process dies in 4? Its successor finds the mark and looks at the record once more, first of all; the next
one gives it up if it died of it too (`killed`). Between 2 and 3, or 5 and the next 3? Nothing was in flight; at worst
the mark names a record whose claims answer. What if the worker is a zombie? Its fence row does not come back, and it
marks nothing.

All of it is bounded, by records and by time: shortly after one unclean end, for most are chance, longer after more of
them at one place. What then? It is written down that nobody is alone any more, and how far it was looked: whoever dies
there next stands at the same place again. Then everything goes on together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeVar, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox import fence, suspects
from ...inbox.clock import Clock
from ...inbox.errors import DependencyError, OwnershipLost, TransientError
from ...inbox.event import Record
from ...inbox.failure_rows import Failure
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holding, Holdings
from ...inbox.points import Writes
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import Chunk, Intake, Part, ReaderPort, Stretch
from ..engine.signals import Examine, Examined
from .committing import Raiser
from .ownership import SURELY_FROM
from .receiving import Receiver
from .solo import Bound, NotAlone, Room, Solo, is_quiet
from .worker import POSTGRESQL, Worker

T = TypeVar("T")

log = structlog.get_logger(__name__)

READ_MAX: Final = 100
"""Records read at once, undecoded: a round trip for each would be half of the time that one takes."""

AGAIN_S: Final = 0.5
"""Between two asks of a broker that does not answer."""

WRITING_S: Final = 0.002
"""Between two tries to raise a checkpoint that another transaction is moving: as long as its commit takes."""

FIRST_RECORDS_MAX: Final = 5_000
"""Behind one unclean end: as many as a projection's batch holds, which leaves no trace of where in it somebody died."""

FIRST_S: Final = 5.0
"""Behind one unclean end, for all partitions and rows of this process together: a ninth of the 45 s that Kafka takes by
default to notice a death. Most of those have nothing to do with any record."""

LONG_S: Final = 300.0
"""Behind the second unclean end at one place, which is seldom chance: as long as slow handlers take for what they have
in hand at once. Each further one there doubles it, so that what is slow cannot hide what kills behind it."""

DOUBLINGS_MAX: Final = 8
"""The bound has a bound: a day."""


@final
class Suspects:
    """Examines partitions, and rows of the slow way. Owned by the event loop."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        holdings: Holdings,
        worker: Worker,
        intake: Intake,
        reader: ReaderPort,
        receiver: Receiver,
        raisers: Mapping[str, Raiser],
        solo: Solo,
        wait_for: Callable[[str], Awaitable[None]],
        clock: Clock,
        records_max: int,
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._holdings = holdings
        self._worker = worker
        self._intake = intake
        self._reader = reader
        self._receiver = receiver
        self._raisers = raisers
        self._solo = solo
        self._wait_for = wait_for
        self._clock = clock
        self._records_max = records_max
        self._first = Bound(clock, FIRST_S, min(FIRST_RECORDS_MAX, records_max))

    async def examine(self, action: Examine) -> None:
        """What may have been in flight, or up to the log's end, one by one; then the partition goes on.

        Ends early, and says nothing, where the partition is lost: its next owner finds the count as it was.
        """
        partition, epoch = action.partition, action.epoch
        holding = self._holdings.current(partition, epoch)
        if holding is None:
            return
        try:
            looked_at = await self._look(holding, action.offset)
        except OwnershipLost as error:
            log.warning("suspects_left", partition=str(partition), why=str(error))
            if self._is_ours(holding):  # by what the client says; asking Kafka tells, and begins anew
                self._worker.fenced(partition, epoch)
            return
        log.warning("suspects_done", partition=str(partition), records=looked_at)
        self._worker.signal(Examined(partition, epoch))

    async def _look(self, holding: Holding, offset: int) -> int:
        """How many were looked at; what was left out is written down."""
        bound = self._bound_of(holding)
        looked_at, whole = 0, False
        with bound:
            try:
                async with self._solo.alone(bound.left_s):
                    log.warning("suspects_alone", partition=str(holding.partition), offset=offset)
                    looked_at, whole = await self._one_by_one(holding, offset, bound)
                    if not whole:
                        await self._give_over(holding)
            except NotAlone:
                await self._give_over(holding)
        if not whole:
            log.warning("suspects_given_over", partition=str(holding.partition), records=looked_at)
        return looked_at

    def _bound_of(self, holding: Holding) -> Bound:
        if holding.unclean_ends < SURELY_FROM:
            return self._first
        doublings = min(holding.unclean_ends - SURELY_FROM, DOUBLINGS_MAX)
        return Bound(self._clock, LONG_S * 2**doublings, self._records_max)

    @asynccontextmanager
    async def row_alone(self, row: Failure, holding: Holding) -> AsyncGenerator[None]:
        """A failure row whose record may have killed a process: handled in the block, as the only thing in flight.

        Or in company, once it has taken too long. Raises OwnershipLost where it cannot be alone in time: it is still
        queued.
        """
        bound = self._first if row.id in holding.doubtful_rows else Bound(self._clock, LONG_S, 1)
        with bound:
            try:
                async with self._solo.alone(bound.left_s) as room:
                    await self._mark(holding, row.record_offset, row.id)
                    done = asyncio.Event()
                    patience = self._worker.spawn(self._lose_patience(holding, room, done, bound.left_s()))
                    try:
                        yield
                    except (OwnershipLost, DependencyError, *STORE_ERRORS):
                        await self._unmark(holding, done, patience)  # it is not done, and it did no harm
                        raise
                    await self._unharmed(holding, row.record_offset, row.id)
                    await self._unmark(holding, done, patience)
            except NotAlone:
                await self._not_alone(row, holding, bound.whole_s)

    async def _not_alone(self, row: Failure, holding: Holding, waited_s: float) -> None:
        if row.id in holding.doubtful_rows:  # there was one unclean end: it is handled like any other row
            holding.trust()
        else:  # reading stood still meanwhile, and goes on for as long before the next try
            await asyncio.sleep(waited_s)
        raise OwnershipLost("it could not be handled alone in time")

    async def _lose_patience(self, holding: Holding, room: Room, done: asyncio.Event, left_s: float) -> None:
        """Nothing is cancelled in here: it may be in the middle of writing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await done.wait()
                return
        log.warning("suspects_given_over", partition=str(holding.partition), records=0)
        with suppress(OwnershipLost):  # whoever handles the row learns of it
            await self._give_over(holding)
        room.leave()

    # ---------------------------------------------------------------------------------------------------- one by one

    async def _one_by_one(self, holding: Holding, offset: int, bound: Bound) -> tuple[int, bool]:
        """How many came to their end, and whether they are all: else there are more, or the last one takes too long."""
        looked_at = 0
        while True:
            stretch = await self._read(holding, offset, min(bound.records_max - looked_at, READ_MAX))
            for record in stretch.records:
                if not (bound.left_s() > 0 and await self._one(holding, record, bound)):
                    return looked_at, False
                looked_at += 1
            offset = stretch.next_offset
            await self._raise(holding, offset)  # or a row that kills would find the next owner here, each time anew
            await self._unmark(holding)
            if stretch.at_end:
                return looked_at, True
            if looked_at >= bound.records_max:
                return looked_at, bound.records_max >= self._records_max  # no more can have been in memory

    async def _read(self, holding: Holding, offset: int, records_max: int) -> Stretch:
        while True:
            self._check_ours(holding)
            try:
                return await self._reader.read(holding.partition, offset, records_max)
            except TransientError as error:
                log.warning("suspects_wait", partition=str(holding.partition), why=str(error))
                await asyncio.sleep(AGAIN_S)

    async def _one(self, holding: Holding, record: Record, bound: Bound) -> bool:
        """One record, from its mark to its end. False: that takes too long, and it is left to itself."""
        await self._raise(holding, record.offset)
        await self._mark(holding, record.offset, None)
        try:
            async with asyncio.timeout(bound.left_s()):
                await self._hand_over(holding, record)
        except TimeoutError:
            return False
        self._check_ours(holding)
        await self._unharmed(holding, record.offset, None)
        return True

    async def _unharmed(self, holding: Holding, offset: int, failure_id: int | None) -> None:
        """If a dead owner had just this alone in its hands, it died of something else; others may have, too."""
        if holding.found_in_hand != (offset, failure_id):
            return

        async def write() -> None:
            async with self._store.transaction(Writes.SUSPECT) as conn:
                tables, partition = self._store.tables, holding.partition
                if not await suspects.acquit(conn, tables, self._consumer, partition, holding.fence_epoch):
                    raise OwnershipLost(f"{partition} is held by somebody else")

        await self._through_outages(write)
        holding.found_in_hand = None

    async def _hand_over(self, holding: Holding, record: Record) -> None:
        """To the engine, like any other; return once it is durable, or nothing is ours any more."""
        partition, epoch = holding.partition, holding.epoch
        while True:
            taken = await asyncio.to_thread(self._intake.take, partition, epoch, [record])
            if taken.stall is None:
                break
            await self._wait_for(taken.stall.dependency)
            self._check_ours(holding)
        self._receiver.put(Chunk((Part(partition, epoch, taken, record.offset + 1),)))
        engine, behind = self._worker.engine, record.offset + 1
        await self._worker.until(lambda: is_quiet(engine) or engine.is_done(partition, epoch, behind) is not False)

    def _is_ours(self, holding: Holding) -> bool:
        engine = self._worker.engine
        return not is_quiet(engine) and engine.is_done(holding.partition, holding.epoch, 0) is not None

    def _check_ours(self, holding: Holding) -> None:
        if not self._is_ours(holding):
            raise OwnershipLost(f"{holding.partition} is not ours to work on any more")

    async def _raise(self, holding: Holding, offset: int) -> None:
        """All below is done, also for handlers whose events are rare: who finds the mark takes its word for that."""
        points = {holding.partition: (holding.epoch, offset)}
        for raiser in self._raisers.values():
            while True:
                if await self._through_outages(partial(raiser, points)):
                    break
                await asyncio.sleep(WRITING_S)

    # --------------------------------------------------------------------------------------------------------- marks

    async def _mark(self, holding: Holding, offset: int, failure_id: int | None) -> None:
        async def write() -> None:
            async with self._store.transaction(Writes.SUSPECT) as conn:
                await self._hold(conn, holding)
                tables = self._store.tables
                await suspects.mark(conn, tables, self._consumer, holding.partition, offset, failure_id)

        await self._through_outages(write)

    async def _unmark(
        self, holding: Holding, done: asyncio.Event | None = None, patience: asyncio.Task[None] | None = None
    ) -> None:
        if done is not None and patience is not None:
            done.set()
            await asyncio.wait([patience])

        async def write() -> None:
            async with self._store.transaction(Writes.SUSPECT) as conn:
                await self._hold(conn, holding)
                await suspects.unmark(conn, self._store.tables, self._consumer, holding.partition)

        await self._through_outages(write)

    async def _give_over(self, holding: Holding) -> None:
        """Nobody is alone any more, and who dies from here on has died where we stand now."""

        async def write() -> None:
            async with self._store.transaction(Writes.SUSPECT) as conn:
                tables, partition = self._store.tables, holding.partition
                if not await suspects.carry(conn, tables, self._consumer, partition, holding.fence_epoch):
                    raise OwnershipLost(f"{partition} is held by somebody else")
                await suspects.let_go(conn, tables, self._consumer, partition)

        await self._through_outages(write)

    async def _hold(self, conn: AsyncConnection, holding: Holding) -> None:
        fences = {holding.partition: holding.fence_epoch}
        if not await fence.hold(conn, self._store.tables, self._consumer, fences):
            raise OwnershipLost(f"{holding.partition} is held by somebody else")

    async def _through_outages(self, write: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await write()
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                log.warning("suspects_wait", error=type(error).__name__)
                await self._wait_for(POSTGRESQL)
