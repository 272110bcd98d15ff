"""Writes groups of commands that went well and send nothing: nearly all there are, in one statement.

What if one of them turns out to be a repeat, a conflict, or its partition another's? Then it is left over, and the way
of all the others (`completing`) finds out what it is. What if the process stops? As there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import final

import structlog

from ...inbox import completions
from ...inbox.claim import ClaimKey
from ...inbox.completions import NewClaim, Written
from ...inbox.event import Partition
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holdings
from ...inbox.optimism import Optimism
from ...inbox.points import Point, Writes, reach
from ...inbox.quick import QuickStore
from ...inbox.store import STORE_ERRORS, Store
from .completion import COMMAND_VERSION, Completion
from .group import Group, Progress, Share

log = structlog.get_logger(__name__)


@final
class PlainGroups:
    """Owned by the completer, one group at a time, over a connection that it shares with groups of dead events."""

    def __init__(
        self, store: Store, quick_store: QuickStore, consumer: str, holdings: Holdings, progress: Progress
    ) -> None:
        self._store = store
        self._quick_store = quick_store
        self._consumer = consumer
        self._holdings = holdings
        self._progress = progress
        self._optimism = Optimism()

    async def write(self, members: list[Completion]) -> tuple[Group | None, list[Completion]]:
        """What could be written of these, None where nothing could, and all that is left."""
        claims, left = self._plain(members)
        group = self._group(list(claims.values())) if claims else None
        if group is None or not self._is_told(group):
            return None, members
        group.plan_moves(self._progress)
        try:
            written = await self._write(group, claims)
        except STORE_ERRORS as error:  # the other way meets the same trouble, and knows what to do
            if classify(error) in (Fault.DATA, Fault.PROGRAM):
                log.warning("plain_group_refused", error=type(error).__name__)
            return None, members
        if written.new is None and written.moved:
            return group, left
        new = claims.keys() if written.new is None else written.new
        mine = [member for key, member in claims.items() if key in new]
        group = self._group(mine) if mine else None
        if group is None:
            return None, members
        return group, left + [member for key, member in claims.items() if key not in new]

    async def ready(self) -> None:
        """Connect, and have the statement planned, so that no group waits for that; else the first one does."""
        with suppress(*STORE_ERRORS):
            async with self._quick_store.single(None) as statements:
                await completions.complete(
                    statements, self._store.tables, self._consumer, {}, [], [], [], optimistic=True
                )

    def _plain(self, members: list[Completion]) -> tuple[dict[ClaimKey, Completion], list[Completion]]:
        """By their claims: those that nothing is known against, one of each; and the others."""
        claims: dict[ClaimKey, Completion] = {}
        left: list[Completion] = []
        for member in members:
            if member.fate is None and not member.claimed and not member.outgoing:
                key = ClaimKey(member.handler_id, COMMAND_VERSION, member.item.event.event_id)
                if claims.setdefault(key, member) is member:
                    continue
            left.append(member)
        for handler_id in {member.handler_id for member in claims.values()}:
            ids = [key.event_id for key in claims if key.handler_id == handler_id]
            suspects = self._store.failing.suspects(handler_id, ids)
            left += [claims.pop(ClaimKey(handler_id, COMMAND_VERSION, event_id)) for event_id in suspects]
        return claims, left

    def _is_told(self, group: Group) -> bool:
        """Whether the filters have caught up: until then, and where too much fails, each id has to be looked up."""
        known = self._store.failing.read_up_to({share.handler_id for share in group.done})
        return all(one.server is not None for one in known)

    def _group(self, members: list[Completion]) -> Group | None:
        """All of these as durable; None where a partition is not ours any more."""
        group = Group(members, durable=members, handled=members)
        done: defaultdict[tuple[str, int, Partition, int], list[int]] = defaultdict(list)
        for member in members:
            partition, epoch, offset, _ = member.item
            done[(member.track, member.handler_id, partition, epoch)].append(offset)
        for key, offsets in done.items():
            share = Share(*key)
            holding = self._holdings.current(share.partition, share.epoch)
            if holding is None:
                return None
            group.holdings[share.partition] = holding
            group.done[share] = offsets
        return group

    async def _write(self, group: Group, claims: Mapping[ClaimKey, Completion]) -> Written:
        fences = {partition: holding.fence_epoch for partition, holding in group.holdings.items()}
        failing = self._store.failing.read_up_to({share.handler_id for share in group.done})
        new = [NewClaim(key, member.item.event.payload_hash) for key, member in claims.items()]

        async def write(optimistic: bool) -> Written:
            async with self._quick_store.single(Writes.GROUP, group.members[0].track) as statements:
                written = await completions.complete(
                    statements, self._store.tables, self._consumer, fences, failing, new, group.moves,
                    optimistic=optimistic,
                )  # fmt: skip
                reach(Point.CLAIMED, group.members[0].track)
            return written

        return await self._optimism.write(write)
