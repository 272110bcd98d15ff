"""The sealer: one worker in the fleet seals what was written to the audit, and says in the log where the chain ends.

The log is the place outside of the database from which removed ends are told (`inbox.audit_seal`). A worker that dies
in a pass leaves nothing behind, and the lease goes to another one.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

import structlog

from ...inbox import audit_seal, lease
from ...inbox.clock import Clock
from ...inbox.lease import Leaseholder
from ...inbox.points import Writes
from ...inbox.store import STORE_ERRORS, Store

SEAL_EVERY_S: Final = 5.0
"""How long a line stands without its seal, at most a few times this: one short query of the fleet each time."""

LEASE: Final = "audit_seal"

log = structlog.get_logger(__name__)


@final
class Sealer:
    """Owned by the event loop; `run` until cancelled, then `give_up`."""

    def __init__(self, store: Store, clock: Clock, holder: str) -> None:
        self._store = store
        self._leaseholder = Leaseholder(store, clock, LEASE, holder)

    async def run(self) -> None:
        """Seal in rounds; a database that is away is waited for."""
        while True:
            try:
                while await self.round() == audit_seal.LINES_MAX:
                    pass
            except STORE_ERRORS as error:
                log.warning("sealer_waits", error=type(error).__name__)
            await asyncio.sleep(SEAL_EVERY_S)

    async def round(self) -> int:
        """One pass, where the lease is ours: how many lines were sealed."""
        held = await self._leaseholder.held()
        if held is None:
            return 0
        async with self._store.transaction(Writes.SEAL) as conn:
            if not await lease.hold(conn, self._store.tables, held):
                return 0
            head, sealed = await audit_seal.seal(conn, self._store.tables)
        if sealed:
            log.info("audit_sealed", lines=sealed, head=str(head))
        return sealed

    async def give_up(self) -> None:
        """At a clean end: the next one begins at once."""
        await self._leaseholder.give_up()
