"""Judges a mark that a dead owner left: the record that two of them died with, alone in hand, is given up, undecoded.

One transaction: the failure row under the reserved handler and its letter, the checkpoints of the handlers that stand
right at the record (they wait for it; those that claimed it stand behind), the mark, the count of unclean ends. A
replay of the letter delivers it to every handler, and claims answer for those that had handled it.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.burial import Burial, letters_of
from ...dlq.reporting import RECORD, report_dead
from ...inbox import checkpoint, claim, failure, fence, finding, outbox, suspects
from ...inbox.errors import OwnershipLost
from ...inbox.event import Event, Record
from ...inbox.failure_rows import Failure, Place
from ...inbox.handlers import RESERVED
from ...inbox.holding import HandlerVersion, Holding
from ...inbox.meter import Meter
from ...inbox.moving import judge
from ...inbox.outcome import Dead, Reason
from ...inbox.points import Writes
from ...inbox.scope import Scope
from ...inbox.store import Store
from ...inbox.suspects import Suspect
from ..client.ports import ReaderPort
from ..intake import scope_of
from .completion import COMMAND_VERSION

log = structlog.get_logger(__name__)

DEATHS_ALONE: Final = 2
"""So often a process must have died with it as the only thing in its hands. Whatever else ends a process (no memory on
the node, a probe that is too strict) ends it while some record is in hand; the same one twice is hardly chance."""

DEATHS_AMID_CHANCE: Final = 3
"""So often where a record that was found so has been handled unharmed since: somebody ends processes by chance."""

CHANCE_S: Final = 3_600.0
"""How long that is remembered: longer than anybody who ends processes at random takes between two of them."""


class Judgement(enum.Enum):
    """What a mark says."""

    NOTHING = "nothing"
    SUSPECT = "suspect"
    """It is to be looked at alone, first of all."""
    CULPRIT = "culprit"
    """It was given up."""


KILLED: Final = Dead(
    Reason.KILLED_PROCESS, "two processes died with this record as the only one in their hands; it was not decoded"
)

GiveUp = Callable[[Failure, Holding, Dead], Awaitable[None]]
"""Buries a queued row once more."""


@final
class Judge:
    """Owned by the event loop; asked at a takeover, between the fence and the checkpoints."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        scope: Scope,
        handler_ids: Mapping[str, int],
        handlers: Collection[HandlerVersion],
        burial: Burial,
        reader: ReaderPort,
        meter: Meter,
        give_up: GiveUp,
        wrote_letters: Callable[[], None],
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._scope = scope
        self._reserved = handler_ids[RESERVED]
        self._handlers = frozenset(handlers)
        self._burial = burial
        self._reader = reader
        self._meter = meter
        self._give_up = give_up
        self._wrote_letters = wrote_letters

    async def judge(self, holding: Holding, low: int, high: int, *, unclean: bool) -> Judgement:
        """What becomes of the partition's mark.

        CULPRIT where it was given up: the unclean ends have their reason, and are counted anew. Raises TransientError
        where the record cannot be read now.
        """
        async with self._store.look() as conn:
            mark = await suspects.found(conn, self._store.tables, self._consumer, holding.partition)
            if mark is None:
                return Judgement.NOTHING
            done = unclean and mark.in_hand and await self._is_done(conn, holding, mark)
            chance = await suspects.was_chance(conn, self._store.tables, self._consumer, CHANCE_S)
        if done:
            await self._acquit(holding)
            return Judgement.NOTHING
        if unclean and not mark.in_hand:
            # the last owner died before it came to it, or with others in its hands: that says nothing of it
            return Judgement.SUSPECT if mark.deaths else Judgement.NOTHING
        if unclean and mark.deaths + 1 < (DEATHS_AMID_CHANCE if chance else DEATHS_ALONE):
            await self._count(holding, mark)
            return Judgement.SUSPECT
        if unclean and mark.failure_id is not None:
            await self._row(holding, mark.failure_id)
            return Judgement.CULPRIT
        if unclean and low <= mark.record_offset < high:
            return await self._record(holding, mark.record_offset)
        await self._forget(holding)
        return Judgement.NOTHING

    async def nothing_unread(self, holding: Holding) -> None:
        """No record of this partition can have been at fault: its next one is no suspect for deaths before it came."""
        async with self._store.transaction(Writes.SUSPECT) as conn:
            await self._absolve(conn, holding)

    async def _count(self, holding: Holding, mark: Suspect) -> None:
        """It is looked at once more, first of all and alone again."""
        log.warning("suspect_in_doubt", partition=str(holding.partition), offset=mark.record_offset)
        async with self._store.transaction(Writes.SUSPECT) as conn:
            await self._hold(conn, holding)
            await suspects.count(conn, self._store.tables, self._consumer, holding.partition)
        holding.found_in_hand = (mark.record_offset, mark.failure_id)

    async def _is_done(self, conn: AsyncConnection, holding: Holding, mark: Suspect) -> bool:
        """It came to its end, and then the process to its own."""
        if mark.failure_id is not None:
            return await finding.get(conn, self._store.tables, mark.failure_id) is None
        mine = await self._offsets(conn, holding)
        return bool(mine) and min(mine.values()) > mark.record_offset

    async def _offsets(self, conn: AsyncConnection, holding: Holding) -> dict[HandlerVersion, int]:
        """Where the handlers stand that go on with the partition: one that a backfill holds stands still."""
        found = await checkpoint.read(conn, self._store.tables, self._consumer, holding.partition)
        return {
            key: at.next_offset
            for key, at in found.items()
            if key in self._handlers and (at.incarnation, at.held) == (holding.incarnation, None)
        }

    async def _acquit(self, holding: Holding) -> None:
        async with self._store.transaction(Writes.SUSPECT) as conn:
            if not await suspects.acquit(
                conn, self._store.tables, self._consumer, holding.partition, holding.fence_epoch
            ):
                raise OwnershipLost(f"{holding.partition} is held by somebody else")
            await suspects.unmark(conn, self._store.tables, self._consumer, holding.partition)

    async def _forget(self, holding: Holding) -> None:
        async with self._store.transaction(Writes.SUSPECT) as conn:
            await self._hold(conn, holding)
            await suspects.unmark(conn, self._store.tables, self._consumer, holding.partition)

    async def _row(self, holding: Holding, failure_id: int) -> None:
        """A row whose record was replayed and killed again. Dead first, then its mark: a repeat finds it dead."""
        async with self._store.look() as conn:
            row = await finding.get(conn, self._store.tables, failure_id)
        if row is not None:
            await self._give_up(row, holding, KILLED)
        async with self._store.transaction(Writes.SUSPECT) as conn:
            await self._absolve(conn, holding)
            await suspects.unmark(conn, self._store.tables, self._consumer, holding.partition)

    # ----------------------------------------------------------------------------------------------- a record's end

    async def _record(self, holding: Holding, offset: int) -> Judgement:
        stretch = await self._reader.read(holding.partition, offset, 1)
        if not stretch.records or stretch.records[0].offset != offset:
            await self._forget(holding)  # compaction took it: nobody can deliver it any more
            return Judgement.NOTHING
        record = stretch.records[0]
        if await self._bury(holding, record):
            self._meter.dead(RESERVED, KILLED.reason, 1)
            report_dead(Event(None, record), RESERVED, RECORD, KILLED)
        self._wrote_letters()
        return Judgement.CULPRIT

    async def _bury(self, holding: Holding, record: Record) -> bool:
        """Steps 1, 2, 3, 6, 7, 8, and the mark. False: its row is there already."""
        tables, tenant_brand = self._store.tables, scope_of(record, self._scope)
        place = Place(self._reserved, COMMAND_VERSION, holding.incarnation)
        buried = self._burial.reject(place, record, KILLED, tenant=tenant_brand[0], brand=tenant_brand[1])
        async with self._store.transaction(Writes.REJECTS) as conn:
            await self._absolve(conn, holding)
            places = await failure.draw_places(conn, tables, [buried.row])
            known = await claim.probe(conn, tables, [place[:2]], [buried.row.event_id])
            fresh = [] if known.claims else [buried]
            puts = await failure.put(conn, tables, [row for row, _ in fresh], places)
            await outbox.put(conn, tables, letters_of(puts, fresh))
            await self._pass(conn, holding, record.offset)
            await suspects.unmark(conn, tables, self._consumer, holding.partition)
        return any(put.created for put in puts)

    async def _pass(self, conn: AsyncConnection, holding: Holding, offset: int) -> None:
        """Step 8: the handlers that stand right at the record go on behind it."""
        mine = await self._offsets(conn, holding)
        here = [key for key, next_offset in mine.items() if next_offset == offset]
        moves = [checkpoint.Move(*key, *holding.partition, offset, offset + 1) for key in here]
        judge(await checkpoint.move(conn, self._store.tables, moves), len(moves))

    async def _hold(self, conn: AsyncConnection, holding: Holding) -> None:
        fences = {holding.partition: holding.fence_epoch}
        if not await fence.hold(conn, self._store.tables, self._consumer, fences):
            raise OwnershipLost(f"{holding.partition} is held by somebody else")

    async def _absolve(self, conn: AsyncConnection, holding: Holding) -> None:
        tables, partition = self._store.tables, holding.partition
        if not await fence.absolve(conn, tables, self._consumer, partition, holding.fence_epoch):
            raise OwnershipLost(f"{partition} is held by somebody else")
