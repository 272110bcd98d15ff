"""Queued rows of one projection, many in one transaction; what cannot end with the others goes one by one.

A replay of a hundred thousand letters would take a hundred thousand transactions otherwise. Only rows that may be
worked at the same time come here (the heads of different lanes, and rows that are alone), so no order is lost: within
the batch they stand as their partitions had them. What if one of them fails? The transaction is undone, and the halves
are tried by themselves, until the one that fails is alone: it goes the way of a single row, with its attempts and its
policy. Where halves fail again and again, all that is left goes that way. What if the world is away (a database, a
dependency)? One row waits for it, the others stay in the queue. What if the process stops meanwhile? The rows are
still queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, final

from ...dlq.decisions import DeadNow, ReviewNow, SkipNow, Transient
from ...dlq.guard import HandlerRaised
from ...dlq.reporting import PROJECTION
from ...dlq.rules import decide
from ...inbox import outbox
from ...inbox.clock import Clock
from ...inbox.event import Partition
from ...inbox.failure_rows import Failure
from ...inbox.faults import classify
from ...inbox.homes import Homes
from ...inbox.meter import Meter
from ...inbox.points import Writes
from ...inbox.store import STORE_ERRORS, Store
from ...projections.batch import BoundProjection, Projected
from ..intake import EventIntake
from .row_ends import Claims, RowEnds, Taken
from .taking_up import RowEvents, events_of_rows

BATCH_ROWS_MAX: Final = 4_000
"""Rows in one transaction, or as many as the projection's own batches hold: a fifth of a second of work. What a
transaction costs whatever it holds is a twentieth of that."""

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Payload in one batch, so that a thousand letters of a megabyte never stand in memory together. There are two batches:
the one that is worked and the one that comes behind it."""

FAILING_MAX: Final = 20
"""Halves that may fail before the rest goes one by one: one bad row in a thousand takes ten to be found."""


@final
class RowBatches:
    """Owned by the event loop; one batch of a projection at a time."""

    def __init__(
        self, store: Store, homes: Homes, intake: EventIntake, ends: RowEnds, meter: Meter, clock: Clock
    ) -> None:
        self._store = store
        self._homes = homes
        self._intake = intake
        self._ends = ends
        self._meter = meter
        self._clock = clock

    async def work(self, bound: BoundProjection, rows: Sequence[Failure], events: RowEvents | None) -> list[Failure]:
        """Work the rows; those that have to go one by one come back, others that are not done stay queued.

        `events` are theirs, where they are read already.

        Raises OwnershipLost, DependencyError and STORE_ERRORS where nothing more can be done now.
        """
        if events is None:
            events = await asyncio.to_thread(events_of_rows, self._intake, rows)
        taken: list[Taken] = []
        single: list[Failure] = []
        key, homes = bound.key, {(row.home_topic, row.home_partition) for row in rows}
        held = {home: self._homes.holding(Partition(*home)) for home in homes}
        for row, event in zip(rows, events, strict=True):
            holding = held[row.home_topic, row.home_partition]
            if event is None:
                single.append(row)
            elif holding is not None:
                taken.append(Taken(row, holding, event, key))
        taken.sort(key=lambda one: (one.row.topic, one.row.partition, one.row.record_offset, one.row.id))
        return single + await self._halving(bound, taken)

    async def _halving(self, bound: BoundProjection, taken: list[Taken]) -> list[Failure]:
        """Depth first, so that the order of the rows is kept."""
        single: list[Failure] = []
        parts, failed = [taken], 0
        while parts:
            part = parts.pop()
            error = await self._try(bound, part, single)
            if error is None:
                continue
            if not _is_theirs(bound, error, self._clock):
                return [*single, part[0].row]
            failed += 1
            if len(part) == 1 or failed > FAILING_MAX:
                single += [one.row for one in part]
                continue
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]
        return single

    async def _try(self, bound: BoundProjection, part: list[Taken], single: list[Failure]) -> Exception | None:
        """One transaction. Gives back what it failed of; conflicts go to `single`."""
        if not part:
            return None
        started_s = self._clock.monotonic_s()
        try:
            claims, projected = await self._transact(bound, part)
        except HandlerRaised as raised:
            return raised.error
        except STORE_ERRORS as error:
            return error
        single += [one.row for one in claims.conflicts]
        if projected.stale:
            self._meter.stale(bound.name, projected.stale)
        self._ends.repeated(claims.repeats)
        self._ends.done([*claims.mine, *claims.repeats], PROJECTION, started_s)
        return None

    async def _transact(self, bound: BoundProjection, part: list[Taken]) -> tuple[Claims, Projected]:
        async with self._store.transaction(Writes.ROW, bound.name) as conn:
            ours, locked = await self._ends.open(conn, part)
            claims, projected = await self._ends.claim(conn, ours), Projected()
            if claims.mine:
                projected = await bound.run([one.event for one in claims.mine], conn, constraints_now=True)
            await self._ends.complete(conn, claims.mine, claims.repeats, locked)
            await outbox.put(conn, self._store.tables, list(projected.outgoing))
        return claims, projected


def _is_theirs(bound: BoundProjection, error: Exception, clock: Clock) -> bool:
    """Whether it may be one row's fault; what is the world's holds up all of them."""
    rules = bound.projection.policy.rules
    return isinstance(decide(error, classify, rules, clock.now()), DeadNow | SkipNow | ReviewNow | Transient)
