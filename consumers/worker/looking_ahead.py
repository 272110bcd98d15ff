"""What comes behind a batch of queued rows, looked for and read while the batch is worked: neither waits for the other.

Nothing is locked and nothing is written down: what comes back is a reading, like any other look of the slow way. What
if one of its rows is changed before its turn? Its version tells, as it does of every row that is in hand. What if the
batch does not go well? Then what was found is forgotten; it is still queued. After an unclean end nothing is looked for
ahead: then it is written down which rows are in hand, before they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from ...inbox import failure
from ...inbox.clock import Clock
from ...inbox.errors import DependencyError
from ...inbox.failure_rows import Failure
from ...inbox.holding import Holdings
from ...inbox.homes import Homes
from ...inbox.outcome import Reason
from ...inbox.store import STORE_ERRORS, Store
from ...inbox.versions import is_run
from ...projections.batch import BoundProjection
from ..intake import EventIntake
from .row_batches import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from .taking_up import RowEvents, events_of_rows


class Found(NamedTuple):
    """Rows that may end together, with their events where these are read already."""

    rows: Sequence[Failure]
    events: RowEvents | None = None


NOTHING: Final = Found(())


@final
class LookAhead:
    """Owned by the event loop."""

    def __init__(self, store: Store, holdings: Holdings, homes: Homes, intake: EventIntake, clock: Clock) -> None:
        self._store = store
        self._holdings = holdings
        self._homes = homes
        self._intake = intake
        self._clock = clock

    async def behind(self, bound: BoundProjection, rows: Sequence[Failure], busy: Sequence[int]) -> Found:
        """The next batch of the projection's rows, where they may all end together; else nothing.

        `busy` are the rows that are worked by themselves. Behind rows of lanes come others of these lanes, which wait
        for them anyway.
        """
        holdings = tuple(self._holdings)
        doubts = any(holding.unclean_ends or holding.suspect_rows for holding in holdings)
        if doubts or not holdings or not all(row.alone for row in rows):
            return NOTHING
        most, places = min(BATCH_ROWS_MAX, bound.projection.batch_max), self._homes.places()
        try:
            async with self._store.look() as conn:
                found = await failure.pick(
                    conn, self._store.tables, [bound.handler_id], *places, self._clock.now(), most,
                    busy=busy, bytes_max=BATCH_BYTES_MAX, taken=[row.id for row in rows],
                )  # fmt: skip
            if len(found) < 2 or not all(is_alike(row) for row in found):
                return NOTHING
            return Found(found, await asyncio.to_thread(events_of_rows, self._intake, found))
        except (*STORE_ERRORS, DependencyError):
            return NOTHING  # whoever works the rows hears of it too


def is_alike(row: Failure) -> bool:
    """Whether it may end with others: its record has killed nobody, and it is claimed for the live version."""
    return not (kills(row) or is_run(row.version))


def kills(row: Failure) -> bool:
    """Whether its record has killed a process."""
    return row.reason == Reason.KILLED_PROCESS
