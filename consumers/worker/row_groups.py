"""Queued rows of commands that came back without a transaction of their own end together, in one transaction.

Whoever comes while a group is being written joins the next one. What if a group cannot be written? Each of its rows is
written by itself, so that one bad row never keeps its neighbours. What if the database is away? The row waits for it
here: its handler came back well, and does not run once more for that. What if whoever writes is cancelled? The others
of its group are written by the next one: nothing of it was committed, or their claims say that it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, final

from ...dlq.rules import DATABASE
from ...inbox import outbox
from ...inbox.errors import OwnershipLost
from ...inbox.faults import Fault, classify
from ...inbox.outbox import NewOutgoing
from ...inbox.points import Writes
from ...inbox.store import STORE_ERRORS, Store
from .dependencies import Dependencies
from .row_ends import ConflictMet, RowEnds, Taken

GROUP_ROWS_MAX: Final = 500
"""Rows in one transaction: more than are handled at once."""


@final
@dataclass(slots=True, eq=False)
class _Member:
    taken: Taken
    outgoing: Sequence[NewOutgoing]
    settled: bool = False
    mine: bool = False
    error: Exception | None = None


@final
class RowGroups:
    """Owned by the event loop."""

    def __init__(self, store: Store, ends: RowEnds, dependencies: Dependencies) -> None:
        self._store = store
        self._ends = ends
        self._dependencies = dependencies
        self._waiting: list[_Member] = []
        self._writing = asyncio.Lock()

    async def end(self, taken: Taken, outgoing: Sequence[NewOutgoing]) -> bool:
        """Claim the event and end its row. False: it was a repeat, and nothing goes out.

        Raises ConflictMet, OwnershipLost, and of STORE_ERRORS those that no further attempt helps; then nothing of it
        was written.
        """
        while True:
            member = _Member(taken, outgoing)
            self._waiting.append(member)
            async with self._writing:
                while not member.settled:
                    await self._write_waiting()
            if member.error is None:
                return member.mine
            if not isinstance(member.error, STORE_ERRORS) or classify(member.error) in (Fault.DATA, Fault.PROGRAM):
                raise member.error
            await self._dependencies.wait(DATABASE)

    async def _write_waiting(self) -> None:
        group, self._waiting = self._waiting[:GROUP_ROWS_MAX], self._waiting[GROUP_ROWS_MAX:]
        try:
            await self._write_all(group)
        finally:
            self._waiting = [member for member in group if not member.settled] + self._waiting

    async def _write_all(self, group: list[_Member]) -> None:
        try:
            await self._write(group)
        except (OwnershipLost, *STORE_ERRORS) as error:
            if len(group) == 1:
                group[0].settled, group[0].error = True, error
                return
            for member in group:
                await self._write_all([member])

    async def _write(self, group: list[_Member]) -> None:
        by_taken = {id(member.taken): member for member in group}
        members = sorted(group, key=lambda member: member.taken.key)
        mine: list[Taken] = []
        conflicts: list[Taken] = []
        repeats: list[Taken] = []
        later: list[Taken] = []
        async with self._store.transaction(Writes.ROW, self._ends.name_of([m.taken for m in members])) as conn:
            ours, locked = await self._ends.open(conn, [member.taken for member in members])
            for _, same in groupby(ours, key=lambda one: one.key):
                claims = await self._ends.claim(conn, list(same))
                mine += claims.mine
                repeats += claims.repeats
                later += claims.later
                conflicts += claims.conflicts
            await self._ends.complete(conn, mine, repeats, locked)
            await outbox.put(conn, self._store.tables, [o for one in mine for o in by_taken[id(one)].outgoing])
        put_off = {id(one) for one in later}
        self._settle([m for m in members if id(m.taken) not in put_off], ours, mine, conflicts)
        self._ends.repeated(repeats)

    def _settle(
        self, members: Sequence[_Member], ours: Sequence[Taken], mine: Sequence[Taken], conflicts: Sequence[Taken]
    ) -> None:
        """The commit was answered."""
        held, first, other = {id(one) for one in ours}, {id(one) for one in mine}, {id(one) for one in conflicts}
        for member in members:
            key = id(member.taken)
            member.settled, member.mine = True, key in first
            if key in other:
                member.error = ConflictMet()
            elif key not in held:
                member.error = OwnershipLost(f"{member.taken.row.home} is held by somebody else")
