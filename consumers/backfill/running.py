"""One backfill at work: chunk by chunk, under fences of its own name, with its journal beside it.

The run is a consumer of its own as far as fences go: `<consumer>.backfill.<number>`. So it never meets the fences of
the live group, and one process at a time works on it.

1. A chunk is read, and what the inbox knows of it is noted in the journal. 2. Its events are handled: claimed, or rows.
3. What became of them is looked up and counted, and the part moves on.

What if the process is killed between two of these? The next one takes the fences over and begins the chunk again: what
was done has its claim or its row, is not done again, and is counted as this run's, because the note in 1 does not have
it. What if the process only froze? Its fences are gone when it wakes up, and it writes nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox import backfills, claim, fence, lanes
from ...inbox.backfills import Part, Run
from ...inbox.clock import Clock
from ...inbox.errors import FatalError, OwnershipLost
from ...inbox.event import Partition
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holding, Holdings
from ...inbox.identity import position_id16
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import Rejected
from ..worker.completion import COMMAND_VERSION
from ..worker.ownership import TAKEOVER_PATIENCE_S
from ..worker.rejects import RejectRows
from ..worker.worker import POSTGRESQL
from .order import Bounds, Frame
from .reading import EPOCH, Chunk, WindowReader
from .sifting import Cause, Plan, Sifted, Tally, Target, TenantOf, known_before, outcome, plan, sift
from .ways import Way

T = TypeVar("T")

log = structlog.get_logger(__name__)

CHUNK_MAX: Final = 500
"""Records in one chunk: what a stop waits for, and what is looked at once more after a kill."""

CHUNKS_PER_S: Final = 4
"""So that a limited rate is even."""

WAITING_SHARE: Final = 4
"""A handler's live events find three quarters of its `parked_max` free, however many of a backfill fail."""

LOOK_S: Final = 1.0
"""Between two looks whether there is room again."""

RELEASE_MAX_S: Final = 5.0
"""A database that is away holds up no process that wants to leave: the fences are taken over all the same."""


@final
@dataclass(frozen=True, slots=True)
class Sight:
    """What both a dry run and a run look through: reading, sorting, asking the inbox.

    `target` is who handles what comes for the first time; `again` who does where the live version is held and had it
    before (see `held`).
    """

    store: Store
    reader: WindowReader
    target: Target
    reserved: int
    frame: Frame
    bounds: Bounds
    tenant_of: TenantOf
    incarnations: dict[str, int]
    again: Target | None = None

    def at(self, part: Part) -> Sight:
        """As it looks at what comes next in the part."""
        return self if self.again is None or not part.is_again else replace(self, target=self.again)

    async def chunk(self, part: Part, records_max: int) -> Chunk:
        """The next one of the part; the one that is in hand, whole, where a run was interrupted in it."""
        end = part.chunk_end or part.leg_end
        whole = part.chunk_end is not None
        return await self.reader.chunk(part.partition, part.next_offset, end, records_max, whole=whole)

    def sift(self, chunk: Chunk) -> Sifted:
        """What of it the handler has to see."""
        return sift(chunk.records, chunk.taken, self.target, self.frame, self.tenant_of)

    async def known(self, sifted: Sifted) -> set[int]:
        """Offsets that the inbox knows now."""
        places = {self._place_id(reject): reject.record.offset for reject in sifted.rejects}
        async with self.store.look() as conn:
            now = await self.ask(conn, sifted)
            rows = await claim.probe(conn, self.store.tables, [(self.reserved, COMMAND_VERSION)], sorted(places))
        written = {places[key.event_id] for key in (*rows.claims, *rows.failures)}
        return known_before(sifted.events, now, self.target) | written

    async def ask(self, conn: AsyncConnection, sifted: Sifted) -> claim.Probe:
        """What the inbox says of its events."""
        ids = sorted({event.event_id for event in sifted.events})
        return await claim.probe(conn, self.store.tables, self.target.keys, ids)

    def _place_id(self, reject: Rejected) -> bytes:
        record = reject.record
        return position_id16(record.topic, self.incarnations[record.topic], record.partition, record.offset)


def count(chunk: Chunk, sifted: Sifted, tally: Tally, known: set[int]) -> Tally:
    """The whole chunk's: with what never came to the handler."""
    tally.causes.update(sifted.left)
    for reject in sifted.rejects:
        tally.causes[Cause.IN_INBOX if reject.record.offset in known else Cause.UNREADABLE] += 1
    if chunk.gone:
        tally.causes[Cause.RETENTION] += chunk.gone
    return tally


@final
class Running:
    """Works until everything is done, or until it is asked to stop. Owned by the event loop."""

    def __init__(
        self,
        run: Run,
        sight: Sight,
        way: Callable[[Target], Way],
        rejects: RejectRows,
        holdings: Holdings,
        clock: Clock,
        wait_for: Callable[[str], Awaitable[None]],
        *,
        rate: float,
        parked_max: int,
        stop: asyncio.Event,
        told: Callable[[Part, Tally], None],
        waits: Callable[[str], None],
    ) -> None:
        """`way` handles for a target; `told` hears of each chunk that is done, `waits` of why none is for a while."""
        self._run = run
        self._sight = sight
        self._store = sight.store
        self._way = way
        self._rejects = rejects
        self._holdings = holdings
        self._clock = clock
        self._wait_for = wait_for
        self._rate = rate
        self._parked_max = parked_max
        self._stop = stop
        self._told = told
        self._waits = waits

    async def work(self) -> bool:
        """True once all is done; False where it was asked to stop. Raises OwnershipLost and FatalError."""
        try:
            for part in self._run.parts:
                if part.next_offset < part.end_offset:
                    await self._take(part)
            for part in await self._parts_now():
                if not await self._part(part):
                    return False
        except OwnershipLost:
            if self._stop.is_set():  # what was in hand is left as it is: whoever goes on finds it
                return False
            raise
        finally:
            await self._release()
        return True

    async def _parts_now(self) -> Sequence[Part]:
        """Read behind the takeover: another process may have gone on, or ended it, or abandoned it, until then."""

        async def look() -> Run | None:
            async with self._store.look() as conn:
                return await backfills.read(conn, self._store.tables, self._run.id)

        run = await self._through_outages(look)
        if run is None or run.is_over:
            async with self._store.transaction() as conn:
                await fence.remove(conn, self._store.tables, self._run.group)
            raise OwnershipLost(f"backfill {self._run.id} is over: see tidegate backfill list")
        return run.parts

    async def _part(self, part: Part) -> bool:
        while part.next_offset < part.end_offset:
            if self._stop.is_set() or not await self._has_room():
                return False
            began_s = self._clock.monotonic_s()
            part, handled = await self._one(part)
            await self._pause(handled / self._rate - (self._clock.monotonic_s() - began_s))
        return True

    async def _one(self, part: Part) -> tuple[Part, int]:
        """One chunk to its end; the part behind it, and how many events came to the handler."""
        sight, run = self._sight.at(part), self._run
        chunk = await sight.chunk(part, max(1, min(CHUNK_MAX, round(self._rate / CHUNKS_PER_S))))
        sifted = sight.sift(chunk)
        known = set(part.known) if part.chunk_end is not None else await self._opened(sight, part, chunk, sifted)
        made = plan(sifted.events, known, sight.bounds, force=sight.frame.force)
        if made.fresh:
            await self._way(sight.target).handle(part.partition, made.fresh, chunk.next_offset)
        await self._write_rejects(part, [reject for reject in sifted.rejects if reject.record.offset not in known])
        tally = await self._until_written(lambda conn: self._close(conn, sight, part, chunk, sifted, made, known), part)
        self._told(part, tally)
        log.debug("backfilled", backfill=run.id, partition=str(part.partition), next_offset=chunk.next_offset)
        return part.behind(chunk.next_offset), len(made.fresh)

    async def _opened(self, sight: Sight, part: Part, chunk: Chunk, sifted: Sifted) -> set[int]:
        known = await self._through_outages(lambda: sight.known(sifted))

        async def write(conn: AsyncConnection) -> None:
            await backfills.open_chunk(
                conn, self._store.tables, self._run.id, part.partition, part.next_offset, chunk.next_offset, known
            )

        if sifted.events or sifted.rejects:
            await self._until_written(write, part)
        return known

    async def _close(
        self, conn: AsyncConnection, sight: Sight, part: Part, chunk: Chunk, sifted: Sifted, made: Plan, known: set[int]
    ) -> Tally:
        tally, undone = outcome(made, await sight.ask(conn, sifted), sight.target)
        if undone:
            raise FatalError(
                f"{undone[0].topic}/{undone[0].partition}@{undone[0].offset} was handled and has neither claim nor row",
                fix="this is a bug of tidegate; nothing of the chunk is counted, and the backfill can be resumed",
            )
        count(chunk, sifted, tally, known)
        tables, partition = self._store.tables, part.partition
        await backfills.close_chunk(
            conn, tables, self._run.id, partition, part.next_offset, chunk.next_offset, tally.counts()
        )
        return tally

    async def _write_rejects(self, part: Part, rejects: list[Rejected]) -> None:
        async def write(conn: AsyncConnection) -> list[Rejected]:
            return await self._rejects.write(conn, self._store.tables, rejects, part.incarnation)

        if rejects:
            self._rejects.tell(await self._until_written(write, part))

    # ---------------------------------------------------------------------------------------------------- its fences

    async def _take(self, part: Part) -> None:
        tables, group = self._store.tables, self._run.group

        async def take() -> int:
            token = self._clock.new_id()
            return await fence.take_over(
                self._store.database, tables, group, part.partition, token, TAKEOVER_PATIENCE_S
            )

        epoch = await self._through_outages(take)
        targets = (self._sight.target, self._sight.again)
        none_moved = {target.key: 0 for target in targets if target is not None}
        self._holdings.put(Holding(part.partition, EPOCH, epoch, part.incarnation, none_moved))

    async def _release(self) -> None:
        """Whoever goes on later has nobody to wait for."""
        fences = self._holdings.fences([holding.partition for holding in self._holdings])
        if not fences:
            return
        try:
            async with asyncio.timeout(RELEASE_MAX_S), self._store.transaction() as conn:
                await fence.release(conn, self._store.tables, self._run.group, fences)
        except STORE_ERRORS as error:
            log.warning("fences_not_released", error=type(error).__name__)

    async def _until_written(self, write: Callable[[AsyncConnection], Awaitable[T]], part: Part) -> T:
        """In a transaction under the part's fence."""

        async def transact() -> T:
            async with self._store.transaction() as conn:
                await self._hold(conn, part.partition)
                return await write(conn)

        return await self._through_outages(transact)

    async def _hold(self, conn: AsyncConnection, partition: Partition) -> None:
        fences = self._holdings.fences([partition])
        if not await fence.hold(conn, self._store.tables, self._run.group, fences):
            raise OwnershipLost(f"{partition} of backfill {self._run.id} was taken by another process")

    # ----------------------------------------------------------------------------------------------------- its pace

    async def _has_room(self) -> bool:
        """Returns once few enough of the handler's events wait; False where it was asked to stop."""
        handler_id = self._sight.target.handler_id
        most = max(1, self._parked_max // WAITING_SHARE)

        async def look() -> int:
            async with self._store.look() as conn:
                return (await lanes.waiting(conn, self._store.tables, [handler_id])).get(handler_id, 0)

        while (waiting := await self._through_outages(look)) >= most:
            self._waits(
                f"{waiting} events of the handler wait already: the rest comes when there are fewer than {most}"
            )
            await self._pause(LOOK_S)
            if self._stop.is_set():
                return False
        return True

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            stopping = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait((stopping,), timeout=seconds)
            stopping.cancel()

    async def _through_outages(self, do: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await do()
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                log.warning("backfill_waits", error=type(error).__name__)
                await self._wait_for(POSTGRESQL)
