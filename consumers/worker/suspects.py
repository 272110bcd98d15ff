"""Handles what may have killed the process: one thing at a time, marked durably before it is touched, nothing beside.

After the second unclean end at one checkpoint the records behind it are suspects. They are read undecoded by a second
reader and handed over like any others, but one by one, so that claims, retries, parked keys and letters are what they
always are. Marks are the only thing that is new:

1. Everything else comes to its end; nothing more is read. 2. The checkpoints of all handlers are raised to the record.
3. The mark is committed. 4. The record is decoded, handled, durable. 5. The next one's mark takes its place.

What if the process dies in 4? Its successor finds the mark and looks at the record once more, first of all; the next
one gives it up if it died of it too (`killed`). Between 2 and 3, or 5 and the next 3? Nothing was in flight; at worst
the mark names a record whose claims answer. What if the worker is a zombie? Its fence row does not come back, and it
marks nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox import fence, suspects
from ...inbox.errors import DependencyError, OwnershipLost, TransientError
from ...inbox.event import Partition, Record
from ...inbox.failure_rows import Failure
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holding, Holdings
from ...inbox.points import Writes
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import Chunk, Intake, KafkaPort, Part, ReaderPort, Stretch
from ..engine.engine import Engine
from ..engine.signals import Examine, Examined, GoOn, PauseCause, Reached, StandBack
from .committing import Raiser
from .receiving import Receiver
from .slow_way import SlowWay
from .worker import POSTGRESQL, Worker

T = TypeVar("T")

log = structlog.get_logger(__name__)

READ_MAX: Final = 100
"""Records read at once, undecoded: a round trip for each would be half of the time that one takes."""

AGAIN_S: Final = 0.5
"""Between two asks of a broker that does not answer."""

WRITING_S: Final = 0.02
"""Between two tries to raise a checkpoint that another transaction is moving: as long as one takes."""

_NOWHERE: Final = Reached(Partition("", 0), 0, 0)
"""Goes through the receiver's queue and changes nothing: what was before it is through."""


@final
class Solo:
    """Makes room for one thing: reading stops, what is in memory comes to its end, the slow way stands still.

    Owned by the event loop. One at a time; raises OwnershipLost where the worker stops meanwhile.
    """

    def __init__(self, worker: Worker, kafka: KafkaPort, receiver: Receiver, slow_way: SlowWay) -> None:
        self._worker = worker
        self._kafka = kafka
        self._receiver = receiver
        self._slow_way = slow_way
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Nothing else is in flight in this process while the block runs."""
        async with self._turn:
            self._worker.signal(StandBack())
            self._slow_way.hold()
            try:
                await self._come_to_rest()
                yield
            finally:
                self._slow_way.go_on()
                self._worker.signal(GoOn())

    async def _come_to_rest(self) -> None:
        """What the client has read before it heard of the pause is on its way: behind its answer and the receiver's
        queue the engine has it all.
        """
        await self._kafka.committed([])
        through = asyncio.Event()
        self._receiver.put(_NOWHERE, through.set)
        await through.wait()
        await self._slow_way.stands_still()
        engine = self._worker.engine
        await self._worker.until(lambda: engine.is_at_rest() or _is_quiet(engine))
        if not engine.is_at_rest():
            raise OwnershipLost("the worker is asked to stop")


def _is_quiet(engine: Engine) -> bool:
    return PauseCause.QUIET in engine.causes()


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
        self._records_max = records_max

    async def examine(self, action: Examine) -> None:
        """As many records as may have been in flight, or up to the log's end, one by one; then the partition goes on.

        Ends early, and says nothing, where the partition is lost: its next owner finds the count as it was.
        """
        partition, epoch = action.partition, action.epoch
        holding = self._holdings.current(partition, epoch)
        if holding is None:
            return
        try:
            async with self._solo.alone():
                log.warning("suspects_alone", partition=str(partition), offset=action.offset)
                looked_at = await self._one_by_one(holding, action.offset)
        except OwnershipLost as error:
            log.warning("suspects_left", partition=str(partition), why=str(error))
            if self._is_ours(holding):  # by what the client says; asking Kafka tells, and begins anew
                self._worker.fenced(partition, epoch)
            return
        log.warning("suspects_done", partition=str(partition), records=looked_at)
        self._worker.signal(Examined(partition, epoch))

    @asynccontextmanager
    async def row_alone(self, row: Failure, holding: Holding) -> AsyncGenerator[None]:
        """A failure row whose record has killed a process: it is handled in the block, as the only thing in flight."""
        async with self._solo.alone():
            await self._mark(holding, row.record_offset, row.id)
            try:
                yield
            except (OwnershipLost, DependencyError, *STORE_ERRORS):
                await self._unmark(holding)  # it is not done, and it did no harm
                raise
            await self._unmark(holding)

    # ---------------------------------------------------------------------------------------------------- one by one

    async def _one_by_one(self, holding: Holding, offset: int) -> int:
        left, at_end = self._records_max, False
        while left > 0 and not at_end:
            stretch = await self._read(holding, offset, min(left, READ_MAX))
            for record in stretch.records:
                await self._one(holding, record)
            await self._unmark(holding)
            left -= len(stretch.records)
            offset, at_end = stretch.next_offset, stretch.at_end
        return self._records_max - left

    async def _read(self, holding: Holding, offset: int, records_max: int) -> Stretch:
        while True:
            self._check_ours(holding)
            try:
                return await self._reader.read(holding.partition, offset, records_max)
            except TransientError as error:
                log.warning("suspects_wait", partition=str(holding.partition), why=str(error))
                await asyncio.sleep(AGAIN_S)

    async def _one(self, holding: Holding, record: Record) -> None:
        """One record, from its mark to its end."""
        partition, epoch = holding.partition, holding.epoch
        await self._raise(holding, record.offset)
        await self._mark(holding, record.offset, None)
        while True:
            taken = await asyncio.to_thread(self._intake.take, partition, epoch, [record])
            if taken.stall is None:
                break
            await self._wait_for(taken.stall.dependency)
            self._check_ours(holding)
        self._receiver.put(Chunk((Part(partition, epoch, taken, record.offset + 1),)))
        engine, behind = self._worker.engine, record.offset + 1
        await self._worker.until(lambda: _is_quiet(engine) or engine.is_done(partition, epoch, behind) is not False)
        self._check_ours(holding)

    def _is_ours(self, holding: Holding) -> bool:
        engine = self._worker.engine
        return not _is_quiet(engine) and engine.is_done(holding.partition, holding.epoch, 0) is not None

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

    async def _unmark(self, holding: Holding) -> None:
        async def write() -> None:
            async with self._store.transaction(Writes.SUSPECT) as conn:
                await self._hold(conn, holding)
                await suspects.unmark(conn, self._store.tables, self._consumer, holding.partition)

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
