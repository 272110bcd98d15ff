"""Hands a record that could not be read, and now can, to every handler that takes its type: one queued row for each.

All in one transaction. What if the process stops meanwhile? The record's own row is still queued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from ...dlq.policy import FailurePolicy
from ...dlq.reporting import RECORD
from ...inbox import claim, failure
from ...inbox.clock import Clock
from ...inbox.event import Event
from ...inbox.failure_rows import Failure, Place, Verdict
from ...inbox.failure_rows import queued as queued_row
from ...inbox.holding import Holding
from ...inbox.points import Writes
from ...inbox.store import Store
from ...projections.batch import BoundProjection
from .completion import COMMAND_VERSION
from .row_ends import RowEnds, Taken


@final
class HandsOut:
    """Owned by the event loop."""

    def __init__(
        self,
        store: Store,
        ends: RowEnds,
        handler_ids: Mapping[str, int],
        projections: Mapping[int, BoundProjection],
        policy_of: Callable[[int], FailurePolicy],
        clock: Clock,
    ) -> None:
        self._store = store
        self._ends = ends
        self._handler_ids = handler_ids
        self._projections = projections
        self._policy_of = policy_of
        self._clock = clock

    async def hand_out(self, row: Failure, holding: Holding, event: Event[Any], names: Sequence[str]) -> None:
        """A row for each of these handlers; the record's own is done."""
        now, taken = self._clock.now(), Taken(row, holding, event, (row.handler, COMMAND_VERSION))
        async with self._store.transaction(Writes.HAND_OUT) as conn:
            await self._ends.hold(conn, holding)
            rows = [
                queued_row(
                    Place(self._handler_ids[name], self._version(name), row.incarnation), event,
                    Verdict(row.reason, "handed out after its repair"), due=now, attempts=0, now=now,
                    alone=self._policy_of(self._handler_ids[name]).on_failure != "block",
                )
                for name in names
            ]  # fmt: skip
            places = await failure.draw_places(conn, self._store.tables, rows, [(row.id, row.row_version)])
            await claim.lock_generations(conn, self._store.tables)
            mine = [(row.event_id, row.payload_hash8)]
            await claim.claim(conn, self._store.tables, row.handler, COMMAND_VERSION, mine, optimistic=False)
            if row.origin == "letter":  # where it stood once is what somebody wrote into a header: no key
                await failure.adopt(conn, self._store.tables, [replace(r, origin="letter") for r in rows], places)
            else:
                await failure.put(conn, self._store.tables, rows, places)
            await self._ends.complete_one(conn, taken)
        self._ends.done([taken], RECORD, self._clock.monotonic_s())

    def _version(self, name: str) -> int:
        bound = self._projections.get(self._handler_ids[name])
        return COMMAND_VERSION if bound is None else bound.projection.version
