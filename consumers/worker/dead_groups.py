"""Writes groups of dead events whose keys go on: nearly all that fail for good, in two statements.

What if one of them turns out to be a repeat, or its partition another's? Then nothing of the group is written, and the
way of all the others (`completing`) finds out what it is. What if the process stops before the commit? The events are
read again, and fail again. After it, before anybody is told? They are read again, the rows are found by their
positions, and no letter is written twice. Where the answer to the commit is lost, the other way finds the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, final

import structlog

from ...inbox import dead_rows
from ...inbox.dead_rows import NotAsExpectedError
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holdings
from ...inbox.outbox import NewOutgoing
from ...inbox.outcome import Dead, Reason
from ...inbox.points import Writes
from ...inbox.quick import QuickStore
from ...inbox.store import STORE_ERRORS, Store
from .completion import Completion
from .failed_rows import FailedRows
from .group import Group, Progress
from .repeats import REPEAT

log = structlog.get_logger(__name__)

ROWS_MAX: Final = 100
"""Rows of one group: its letters find their rows by looking at each of them, and more gain nothing."""


@final
class DeadGroups:
    """Owned by the completer, one group at a time, over a connection that it shares with plain groups."""

    def __init__(
        self,
        store: Store,
        quick_store: QuickStore,
        consumer: str,
        holdings: Holdings,
        rows: FailedRows,
        progress: Progress,
    ) -> None:
        self._store = store
        self._quick_store = quick_store
        self._consumer = consumer
        self._holdings = holdings
        self._rows = rows
        self._progress = progress

    async def write(self, members: list[Completion]) -> Group | None:
        """Those of these that could be written; None where none could."""
        group = self._group(dict(islice(_dying(members).items(), ROWS_MAX)))
        if group is None:
            return None
        dead = self._dead(group)
        group.plan_moves(self._progress)
        epochs = {partition: holding.fence_epoch for partition, holding in group.holdings.items()}
        try:
            async with self._quick_store.transaction(Writes.GROUP, group.members[0].track) as statements:
                all_new = await dead_rows.put(
                    statements, self._store.tables, self._consumer, epochs, self._store.failing, dead, group.moves
                )
        except NotAsExpectedError:
            return None
        except STORE_ERRORS as error:  # the other way meets the same trouble, and knows what to do
            if classify(error) in (Fault.DATA, Fault.PROGRAM):
                log.warning("dead_group_refused", error=type(error).__name__)
            return None
        group.new_letters = [letter for _, letter in dead] if all_new else ()
        return group

    async def ready(self) -> None:
        """Connect, and have the statements planned, so that no group waits for that; else the first one does."""
        with suppress(*STORE_ERRORS):
            async with self._quick_store.single(None) as statements:
                await dead_rows.ready(statements, self._store.tables)

    def _group(self, members: Mapping[Completion, Dead]) -> Group | None:
        """All of these as durable; None where there are none, or a partition is not ours any more."""
        dying = [*members]
        group = Group(dying, durable=dying, put=dying, wrote_outbox=True)
        for partition, epoch, _, _ in [member.item for member in dying]:
            holding = self._holdings.current(partition, epoch)
            if holding is None:
                return None
            group.holdings[partition] = holding
        group.settle()
        return group if dying else None

    def _dead(self, group: Group) -> list[dead_rows.Dead]:
        made = [
            self._rows.make(member, member.fate, group.incarnation(member)) for member in group.members if member.fate
        ]
        return [(row, _the(letter)) for row, letter in made]


def _dying(members: list[Completion]) -> dict[Completion, Dead]:
    """Those that are dead and hold nobody, one of each id; no conflicts and repeats, of which something is known."""
    dying: dict[object, tuple[Completion, Dead]] = {}
    for member in members:
        fate = member.fate
        if (
            isinstance(fate, Dead)
            and fate is not REPEAT
            and fate.reason is not Reason.CONFLICT
            and not member.holds_dead
        ):
            dying.setdefault(member.claim_key, (member, fate))
    return dict(dying.values())


def _the(letter: NewOutgoing | None) -> NewOutgoing:
    assert letter is not None, "a dead event has its letter"
    return letter
