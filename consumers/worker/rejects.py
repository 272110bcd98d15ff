"""Records that no handler can be given, made durable: a failure row and a letter each, under the reserved handler.

In a transaction of the caller's, behind its fence. A record that was written before, or whose repair was handed out
already, makes nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.burial import Burial, Buried, letters_of
from ...dlq.reporting import RECORD, report_dead
from ...inbox import claim, failure, outbox
from ...inbox.event import Event
from ...inbox.failure_rows import Place
from ...inbox.handlers import RESERVED
from ...inbox.meter import Meter
from ...inbox.outcome import Dead
from ...inbox.scope import Scope
from ...inbox.tables import Tables
from ..client.ports import Rejected
from ..intake import scope_of
from .completion import COMMAND_VERSION


@final
class RejectRows:
    """Makes them for one consumer; `handler_ids` has the reserved handler's."""

    def __init__(self, burial: Burial, scope: Scope, handler_ids: Mapping[str, int], meter: Meter) -> None:
        self._burial = burial
        self._scope = scope
        self._handler_ids = handler_ids
        self._meter = meter

    async def write(
        self, conn: AsyncConnection, t: Tables, rejects: Sequence[Rejected], incarnation: int
    ) -> list[Rejected]:
        """Lock order 2 to 7. Those that were written now: `tell` of them once they are durable."""
        place = Place(self._handler_ids[RESERVED], COMMAND_VERSION, incarnation)
        buried = [self._reject(place, reject) for reject in rejects]
        places = await failure.draw_places(conn, t, [row for row, _ in buried])
        fresh = await self._without_claimed(conn, t, buried)
        puts = await failure.put(conn, t, [row for row, _ in fresh], places)
        await outbox.put(conn, t, letters_of(puts, fresh))
        made = {pair.row.record_offset for pair, put in zip(fresh, puts, strict=True) if put.created}
        return [reject for reject in rejects if reject.record.offset in made]

    def tell(self, rejects: Sequence[Rejected]) -> None:
        """Into the log and the figures."""
        for reject in rejects:
            self._meter.dead(RESERVED, reject.reason, 1)
            report_dead(Event(None, reject.record), RESERVED, RECORD, Dead(reject.reason, reject.message))

    def _reject(self, place: Place, reject: Rejected) -> Buried:
        tenant, brand = scope_of(reject.record, self._scope)
        return self._burial.reject(
            place, reject.record, Dead(reject.reason, reject.message), tenant=tenant, brand=brand
        )

    async def _without_claimed(self, conn: AsyncConnection, t: Tables, buried: list[Buried]) -> list[Buried]:
        """Leave out records whose repair was handed out already: their positions are claimed."""
        ids = [row.event_id for row, _ in buried]
        known = await claim.probe(conn, t, [(self._handler_ids[RESERVED], COMMAND_VERSION)], ids)
        claimed = {key.event_id for key in known.claims}
        return [pair for pair in buried if pair.row.event_id not in claimed]
