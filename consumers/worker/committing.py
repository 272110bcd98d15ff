"""Tells Kafka where we are: each offset first into the fence row, then to Kafka, so that Kafka is never ahead of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import final

import structlog

from ...inbox import fence
from ...inbox.errors import FatalError, OwnershipLost
from ...inbox.event import Partition
from ...inbox.holding import Holdings
from ...inbox.moving import Points
from ...inbox.points import Point, Writes, reach
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import ClientStopped, CommitAnswer, KafkaPort
from ..engine.signals import Commit, LetGo

Raiser = Callable[[Points], Awaitable[bool]]
"""Raises a track's checkpoints to points below which everything is durable; says whether it could do so now."""

log = structlog.get_logger(__name__)


@final
class Committer:
    """Owned by the event loop; one commit at a time. A commit that fails is said again with the next one."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        raisers: Mapping[str, Raiser],
        kafka: KafkaPort,
        holdings: Holdings,
        fenced: Callable[[Partition, int], None],
        not_committed: Callable[[Mapping[Partition, int]], None],
        count: Callable[[CommitAnswer], None],
    ) -> None:
        self._store = store
        self._consumer = consumer
        self._raisers = raisers
        self._kafka = kafka
        self._holdings = holdings
        self._fenced = fenced
        self._not_committed = not_committed
        self._count = count

    async def commit(self, commit: Commit) -> None:
        """Write the offsets down, then commit them. Raises FatalError where that is forbidden."""
        epochs = {partition: epoch for partition, (epoch, _) in commit.offsets.items()}
        try:
            noted = await self._note(commit)
            raised = await self._raise(commit)
            reach(Point.BEFORE_OFFSETS)
            answers = await self._kafka.commit(self._still_ours(noted, commit))
            reach(Point.AFTER_OFFSETS)
        except STORE_ERRORS as error:
            log.warning("commit_waits", error=type(error).__name__)
            self._not_committed(epochs)
            return
        except ClientStopped:
            return
        except OwnershipLost:  # somebody moved a checkpoint: asking for the partitions again tells who owns them
            for partition, epoch in epochs.items():
                self._fenced(partition, epoch)
            return
        self._read(answers, epochs)
        if not raised:  # perhaps nothing happens any more: said again, or the checkpoints would stay where they are
            self._not_committed(epochs)

    def _still_ours(self, noted: Collection[Partition], commit: Commit) -> dict[Partition, int]:
        """What may be said to Kafka now.

        1. The offset is written down, and we wait for the database. 2. The partition is revoked and let go, and its new
        owner starts. 3. We say our offset: Kafka takes it from any member of the group, and is ahead of the fence row,
        or behind the new owner's commit. So what was let go, or is being taken anew, is not said any more.
        """
        offsets = {partition: commit.offsets[partition] for partition in noted}
        return {p: offset for p, (epoch, offset) in offsets.items() if self._holdings.current(p, epoch) is not None}

    def _read(self, answers: Mapping[Partition, CommitAnswer], epochs: Mapping[Partition, int]) -> None:
        for answer in answers.values():
            self._count(answer)
        if CommitAnswer.FORBIDDEN in answers.values():
            raise FatalError(
                f"the principal may not commit offsets of group {self._consumer!r}",
                fix="allow READ on the group for this principal",
            )
        again = {p: epochs[p] for p, answer in answers.items() if answer is not CommitAnswer.ACCEPTED}
        if again:
            self._not_committed(again)

    async def let_go(self, action: LetGo) -> None:
        """Answer a revocation: commit only what the fence row holds; what could not be written is not committed."""
        partition, epoch, offset = action.partition, action.epoch, action.next_offset
        holding = self._holdings.current(partition, epoch)
        committable = None
        if holding is not None and offset is not None:
            try:
                noted = await self._note(Commit({partition: (epoch, offset)}))
                committable = offset if partition in noted else None
                async with self._store.transaction(Writes.RELEASE) as conn:  # what is given up is no unclean end
                    await fence.release(conn, self._store.tables, self._consumer, {partition: holding.fence_epoch})
            except STORE_ERRORS as error:
                log.warning("commit_left_out", partition=str(partition), error=type(error).__name__)
        self._holdings.drop(partition, epoch)
        self._kafka.let_go(partition, epoch, committable)

    async def _note(self, commit: Commit) -> frozenset[Partition]:
        """The offsets into the fence rows; gives back those that are ours."""
        held = {p: h for p, (epoch, _) in commit.offsets.items() if (h := self._holdings.current(p, epoch)) is not None}
        offsets = {p: (holding.fence_epoch, commit.offsets[p][1]) for p, holding in held.items()}
        async with self._store.transaction(Writes.NOTE) as conn:
            noted = await fence.note_offsets(conn, self._store.tables, self._consumer, offsets)
        for partition in held.keys() - noted:
            self._fenced(partition, held[partition].epoch)
        return frozenset(noted)

    async def _raise(self, commit: Commit) -> bool:
        """Checkpoints of handlers whose events are rare follow, so that retention never looks like a gap to them.

        False where a track was busy: nobody waits for it, because its batch may take minutes.
        """
        raised = True
        for track, raiser in self._raisers.items():
            points = {
                p: (commit.offsets[p][0], points[track]) for p, points in commit.points.items() if track in points
            }
            raised = await raiser(points) and raised
        return raised
