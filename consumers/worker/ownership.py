"""Takes partitions over: asks Kafka, takes the fence, asks again, reads the checkpoints, decides where to start.

1. The fence row is read, and Kafka's committed offset compared with what was last written there: Kafka ahead of the
   database means that the database went back in time.
2. Kafka is asked by a commit of the offset that it holds already. A zombie is refused and bumps nothing.
3. The fence is taken (two steps, see `inbox.fence`). From here on the former owner writes nothing more.
4. Kafka is asked again. Who froze between 2 and 3, and was replaced meanwhile, gives the fence back. So does, at the
   end, whoever has heard of its loss by then: a member that froze may be back in the group before it asks, and Kafka
   takes a commit of any partition from any member.
5. What a dead owner had alone in its hands is judged (`killed`).
6. Checkpoints are read (nobody else moves them now), missing ones are made, with their births (`inbox.births`), and
   reading starts at the lowest; after an unclean end it starts with the suspects, one by one (`suspects`).

Where Kafka holds no offset yet, 2 is left out, and the start position is committed at the end: that is the ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox import births, checkpoint, claim, fence, holds
from ...inbox.clock import Clock
from ...inbox.errors import FatalError, OwnershipLost, TransientError
from ...inbox.event import Partition
from ...inbox.holding import Holding, Holdings
from ...inbox.points import Point, Writes, reach
from ...inbox.store import STORE_ERRORS, Store
from ..app import Consumer
from ..client.ports import CommitAnswer, KafkaPort
from ..engine.positions import (
    BeyondEnd,
    Findings,
    Gap,
    OnGap,
    StartAt,
    StartFrom,
    StartPolicy,
    WentBackInTime,
    decide_start,
)
from ..engine.signals import Ready, Refused
from .killed import Judge, Judgement
from .topics import TopicWatch

log = structlog.get_logger(__name__)

ASK_AGAIN_S = 0.5
"""Between two asks of a coordinator that is away or busy with a rebalance."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A handler as the database knows it, and the engine's track that it runs on."""

    name: str
    handler_id: int
    version: int
    track: str

    @property
    def key(self) -> tuple[int, int]:
        """(handler id, version)."""
        return (self.handler_id, self.version)


TAKEOVER_PATIENCE_S = 5.0
"""How long open writers of the former owner may take before they are ended: a batch takes a tenth of it."""

SUSPECTED_FROM: Final = 1
"""Unclean ends in a row at one checkpoint. One is mostly a machine that was taken away, so the look is a short one; but
who waits for the second pays with a death more."""

SURELY_FROM: Final = 2
"""From here on it takes the time that it takes: two ends in one place are seldom chance."""

ROWS_IN_HAND_MAX: Final = 100
"""So many queued rows a dead owner may have had in its hands by themselves; who they were it did not write down."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A fence that was just taken."""

    partition: Partition
    token: str
    fence_epoch: int


@final
class Ownership:
    """Owned by the event loop. One partition's takeover is one coroutine; several run side by side."""

    def __init__(
        self,
        store: Store,
        consumer: Consumer,
        bindings: Sequence[Binding],
        kafka: KafkaPort,
        holdings: Holdings,
        topics: TopicWatch,
        clock: Clock,
        wait_for: Callable[[str], Awaitable[None]],
        gap: Callable[[Partition, int], None],
        judge: Judge,
        is_given: Callable[[Partition, int], bool],
        *,
        known: bool,
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._bindings = tuple(bindings)
        self._kafka = kafka
        self._holdings = holdings
        self._topics = topics
        self._clock = clock
        self._wait_for = wait_for
        self._gap = gap
        self._judge = judge
        self._is_given = is_given
        self._unfinished: dict[Partition, _Taken] = {}
        self._known = known
        self._policy = StartPolicy(StartFrom(consumer.start), OnGap(consumer.on_gap))

    async def take(self, partition: Partition, epoch: int) -> Ready | Refused:
        """Take the partition, however long its dependencies are away. Raises FatalError where a person must look."""
        former = self._holdings.fences([partition])
        self._holdings.drop(partition)
        if former:
            await self.live_on(former)
        told = ""
        while True:
            try:
                return await self._take(partition, epoch)
            except OwnershipLost as error:
                log.warning("takeover_refused", topic=partition.topic, partition=partition.number, why=str(error))
                return Refused(partition, epoch)
            except TransientError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("takeover_waits", partition=str(partition), why=told)
                await asyncio.sleep(ASK_AGAIN_S)
            except STORE_ERRORS as error:
                log.warning("takeover_waits", partition=str(partition), error=type(error).__name__)
                await self._wait_for("postgresql")
                await asyncio.sleep(ASK_AGAIN_S)

    async def _take(self, partition: Partition, epoch: int) -> Ready:
        identity = await self._topics.identity(partition.topic)
        committed = (await self._kafka.committed([partition]))[partition]
        before = await self._offset_of(partition)
        if committed is not None and (before is None or committed > before):
            raise _refusal(partition, self._consumer.name, WentBackInTime(committed, before))
        if committed is not None:
            await self._ask(partition, committed)
        await self._give_unfinished_back(partition)
        token = self._clock.new_id()
        reach(Point.BEFORE_TAKEOVER)
        fence_epoch = await fence.take_over(
            self._store.database, self._store.tables, self._consumer.name, partition, token, TAKEOVER_PATIENCE_S
        )
        reach(Point.AFTER_TAKEOVER)
        taken = self._unfinished[partition] = _Taken(partition, token, fence_epoch)
        if committed is not None:
            await self._ask_or_give_back(taken, committed)
        # not before the fence: until then the former owner goes on, and passes whatever end was read before
        low, high = (await self._kafka.watermarks([partition]))[partition]
        holding = Holding(partition, epoch, fence_epoch, identity.incarnation)
        crashes = await self._count_of(holding)
        judgement = await self._judge.judge(holding, low, high, unclean=crashes > 0)
        if judgement is Judgement.CULPRIT:
            crashes = 0
        start = await self._decide(holding, Findings(committed, before, low, high, {}, self._known))
        await self._agree(taken, start, committed, before)
        if not self._is_given(partition, epoch):  # the ask came from a member that is back, and has it no more
            await self._give_unfinished_back(partition)
            raise OwnershipLost(f"{partition} was taken away meanwhile")
        self._holdings.put(holding)
        del self._unfinished[partition]
        log.info("partition_taken", partition=str(partition), fence_epoch=fence_epoch, start=start, crashes=crashes)
        if crashes and start >= high:
            await self._judge.nothing_unread(holding)
        if judgement is Judgement.SUSPECT:
            holding.unclean_ends = max(holding.unclean_ends, SURELY_FROM)
        anew = before is not None and start < before
        suspected = crashes >= SUSPECTED_FROM or judgement is Judgement.SUSPECT
        return Ready(partition, epoch, self._by_track(holding, start), anew, suspected and start < high)

    async def live_on(self, fences: Mapping[Partition, int]) -> None:
        """These fences are not ours any more, and we are no dead owner: say so, however long the database is away."""
        while True:
            try:
                async with self._store.transaction(Writes.RELEASE) as conn:
                    await fence.release(conn, self._store.tables, self._consumer.name, fences)
                return
            except STORE_ERRORS as error:
                log.warning("release_waits", error=type(error).__name__)
                await self._wait_for("postgresql")

    # ----------------------------------------------------------------------------------------------- asking Kafka

    async def _ask(self, partition: Partition, offset: int) -> None:
        answer = (await self._kafka.commit({partition: offset}))[partition]
        if answer is CommitAnswer.ACCEPTED:
            return
        if answer is CommitAnswer.REFUSED:
            raise OwnershipLost(f"Kafka refuses a commit of {partition}")
        if answer is CommitAnswer.FORBIDDEN:
            raise FatalError(
                f"the principal may not commit offsets of group {self._consumer.name!r}",
                fix="allow READ on the group for this principal",
            )
        raise TransientError(f"the coordinator does not answer for {partition}")

    async def _ask_or_give_back(self, taken: _Taken, offset: int) -> None:
        try:
            await self._ask(taken.partition, offset)
        except OwnershipLost:
            await self._give_unfinished_back(taken.partition)
            raise

    async def _give_unfinished_back(self, partition: Partition) -> None:
        """A takeover that came to nothing is no owner's unclean end."""
        taken = self._unfinished.get(partition)
        if taken is None:
            return
        async with self._store.transaction(Writes.GIVE_BACK) as conn:
            await fence.give_back(
                conn, self._store.tables, self._consumer.name, partition, taken.token, taken.fence_epoch
            )
        del self._unfinished[partition]

    async def _agree(self, taken: _Taken, start: int, committed: int | None, before: int | None) -> None:
        """From here on Kafka and the fence row hold the same offset, and it is not behind the start.

        Whatever ends in between, Kafka must not be ahead of the row: that is the alarm. So on the way up the row goes
        first, and on the way down (a handler's checkpoint is behind what Kafka was told) Kafka does. A row that was
        ahead (somebody died between writing it and telling Kafka) would refuse commits up to there.
        """
        if committed is None:
            await self._note(taken, start)
            await self._ask_or_give_back(taken, start)
        elif start < committed:
            await self._ask_or_give_back(taken, start)
            await self._note(taken, start)
        elif before != committed:
            await self._note(taken, committed)

    async def _note(self, taken: _Taken, offset: int) -> None:
        offsets = {taken.partition: (taken.fence_epoch, offset)}
        async with self._store.transaction(Writes.AGREE) as conn:
            noted = await fence.note_offsets(conn, self._store.tables, self._consumer.name, offsets, forced=True)
        if not noted:
            raise OwnershipLost(f"{taken.partition} was taken by somebody else")

    # ------------------------------------------------------------------------------------------ where to start

    async def _offset_of(self, partition: Partition) -> int | None:
        """Kafka's offset as it was last written into the fence row."""
        row = await self._read(partition)
        return None if row is None else row.kafka_offset

    async def _count_of(self, holding: Holding) -> int:
        """Unclean ends in a row at this place, the former owner's included; the holding learns what that one held."""
        row = await self._read(holding.partition)
        if row is None or not row.crashes:
            return 0
        holding.unclean_ends, holding.suspect_rows = row.crashes, set(row.in_hand)
        holding.rows_unseen = ROWS_IN_HAND_MAX
        return row.crashes

    async def _read(self, partition: Partition) -> fence.Fence | None:
        async with self._store.look() as conn:
            rows = await fence.read(conn, self._store.tables, self._consumer.name, [partition])
        return rows.get(partition)

    async def _decide(self, holding: Holding, found: Findings) -> int:
        """Step 6: read the checkpoints, make those that are missing, remember them all; where reading starts.

        What a backfill holds is left out, and remembered as behind every record: nothing is given to it.
        """
        partition, tables = holding.partition, self._store.tables
        async with self._store.transaction(Writes.START) as conn:
            rows = await checkpoint.read(conn, tables, self._consumer.name, partition)
            held = {b: by for b in self._bindings if b.key in rows and (by := rows[b.key].held) is not None}
            known = {b: _offset_in(rows.get(b.key), holding.incarnation) for b in self._bindings if b not in held}
            start, starts = self._starts(partition, known, found)
            if None in known.values():
                await self._note_births(conn, holding, {b: at for b, at in starts.items() if known[b] is None})
            for offset in set(starts.values()):
                keys = [b.key for b, at in starts.items() if at == offset and known[b] != offset]
                await checkpoint.reset(conn, tables, keys, partition, holding.incarnation, offset)
        for binding, by in held.items():
            log.warning("handler_held", handler=binding.name, partition=str(partition), backfill=by)
        holding.checkpoints = {b.key: holds.HELD for b in held} | {b.key: offset for b, offset in starts.items()}
        return start

    async def _note_births(self, conn: AsyncConnection, holding: Holding, firsts: Mapping[Binding, int]) -> None:
        """Steps 3 and 8: these handlers' claims begin where their first checkpoints are."""
        await claim.lock_generations(conn, self._store.tables)
        for offset in sorted(set(firsts.values())):
            keys = [binding.key for binding, start in firsts.items() if start == offset]
            await births.note(conn, self._store.tables, keys, holding.partition, holding.incarnation, offset)

    def _starts(
        self, partition: Partition, known: Mapping[Binding, int | None], found: Findings
    ) -> tuple[int, Mapping[Binding, int]]:
        """Where reading starts, and each handler; or a FatalError that says what is wrong and what to do."""
        by_name = {binding.name: offset for binding, offset in known.items()}
        decision = decide_start(replace(found, checkpoints=by_name), self._policy)
        if isinstance(decision, StartAt):
            if decision.lost:
                self._gap(partition, decision.lost)
            return decision.position, {binding: decision.offsets[binding.name] for binding in known}
        raise _refusal(partition, self._consumer.name, decision)

    def _by_track(self, holding: Holding, start: int) -> dict[str, int]:
        """A track starts at the lowest of its handlers; each handler skips what is below its own.

        One of which all are held starts with the partition: it has nothing to do, and holds up no commit.
        """
        tracks: dict[str, int] = {}
        for binding in self._bindings:
            offset = holding.checkpoints[binding.key]
            tracks[binding.track] = min(offset, tracks.get(binding.track, offset))
        return {track: start if offset == holds.HELD else offset for track, offset in tracks.items()}


def _offset_in(row: checkpoint.Checkpoint | None, incarnation: int) -> int | None:
    """None: there is no checkpoint for the topic as it is."""
    return row.next_offset if row is not None and row.incarnation == incarnation else None


def _refusal(partition: Partition, group: str, decision: Gap | BeyondEnd | WentBackInTime) -> FatalError:
    """What is wrong with the start position, for a person."""
    if isinstance(decision, Gap):
        return FatalError(
            f"retention took {decision.lost} records of {partition} that {', '.join(decision.handlers)} never saw",
            fix="find out why the consumer was away; to go on behind the gap declare on_gap='earliest'",
        )
    if isinstance(decision, BeyondEnd):
        return FatalError(
            f"the checkpoint {decision.offset} of {partition} is beyond the log's end {decision.high}:"
            " the topic was made anew or truncated",
            fix=f"if that was meant: tidegate topic reset {partition.topic} --by-hand",
        )
    known = "nothing" if decision.fence_offset is None else f"only up to {decision.fence_offset}"
    return FatalError(
        f"Kafka holds offset {decision.kafka_offset} of {partition} for group {group!r}, the database knows {known}:"
        " it went back in time, or the group was used by another program before",
        fix=f"find out what was restored, then declare it: tidegate restored --consumer {group}",
    )
