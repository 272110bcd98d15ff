"""Writes groups of commands that went well and send nothing: nearly all there are, in two statements.

What if one of them turns out to be a repeat, a conflict, or its partition another's? Then nothing of the group was
written, and the way of all the others (`completing`) finds out which one. What if the process stops? As there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import final

from ...inbox import completions
from ...inbox.claim import ClaimKey
from ...inbox.completions import NewClaim
from ...inbox.event import Partition
from ...inbox.holding import Holdings
from ...inbox.points import Point, Writes, reach
from ...inbox.quick import QuickStore, Statements
from ...inbox.store import STORE_ERRORS, Store
from .completion import COMMAND_VERSION, Completion
from .group import Group, Progress, Share


def is_plain(member: Completion) -> bool:
    """It went well, and there is nothing to write but its claim."""
    return member.fate is None and not member.claimed and not member.outgoing


class _NotPlainError(Exception):
    """Something is not as it looked: undo, and go the other way."""


@final
class PlainGroups:
    """Owned by the completer, one group at a time."""

    def __init__(self, store: Store, consumer: str, holdings: Holdings, progress: Progress) -> None:
        self._store = store
        self._quick_store = QuickStore(store.database)
        self._consumer = consumer
        self._holdings = holdings
        self._progress = progress

    async def write(self, members: list[Completion]) -> Group | None:
        """Write the group; None where nothing was written, because it is not plain."""
        group = Group(members, durable=members, handled=members)
        claims = self._take_in(group)
        if claims is None:
            return None
        try:
            async with self._quick_store.transaction(Writes.GROUP) as statements:
                await self._write(statements, group, claims)
        except (_NotPlainError, *STORE_ERRORS):  # the other way meets the same trouble, and knows what to do
            return None
        return group

    async def close(self) -> None:
        """Nothing is written any more."""
        await self._quick_store.close()

    def _take_in(self, group: Group) -> list[NewClaim] | None:
        """The claims in their order; None where two of them are one, or a partition is not ours."""
        done: defaultdict[tuple[str, int, Partition, int], list[int]] = defaultdict(list)
        claims: dict[tuple[int, bytes], int] = {}
        for member in group.members:
            handler_id, (partition, epoch, offset, event) = member.handler_id, member.item
            done[(member.track, handler_id, partition, epoch)].append(offset)
            claims[(handler_id, event.event_id)] = event.payload_hash
        for key, offsets in done.items():
            share = Share(*key)
            holding = self._holdings.current(share.partition, share.epoch)
            if holding is None:
                return None
            group.holdings[share.partition] = holding
            group.done[share] = offsets
        if len(claims) < len(group.members):
            return None
        return [
            NewClaim(ClaimKey(handler, COMMAND_VERSION, id_), hash_) for (handler, id_), hash_ in sorted(claims.items())
        ]

    async def _write(self, statements: Statements, group: Group, claims: Sequence[NewClaim]) -> None:
        tables, failing = self._store.tables, self._store.failing
        fences = {partition: holding.fence_epoch for partition, holding in group.holdings.items()}
        handler_ids = {share.handler_id for share in group.done}
        generations = await completions.open_group(statements, tables, self._consumer, fences, handler_ids, failing)
        if generations is None:
            raise _NotPlainError
        for handler_id in generations.failing:
            ids = [claim.key.event_id for claim in claims if claim.key.handler_id == handler_id]
            if generations.suspects(handler_id, ids):
                raise _NotPlainError
        group.plan_moves(self._progress)
        if not await completions.claim_and_move(statements, tables, claims, group.moves):
            raise _NotPlainError
        reach(Point.CLAIMED, group.members[0].track)
