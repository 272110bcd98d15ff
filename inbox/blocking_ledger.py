"""The ledger for programs without an event loop: it has one of its own, in a thread.

Every call hops to that thread and waits; any number of threads may use one ledger. It is made once for a process, and
behind a fork anew: threads do not survive one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Self, final

from .database import Database, DatabaseSettings
from .effect_call import BlockingEffectCall
from .effect_rules import Effect
from .ledger import Ledger
from .store import Store
from .tables import DEFAULT_SCHEMA, tables

POOL_MAX: Final = 4
"""Besides its two connections the ledger needs one only where something went wrong before."""


@asynccontextmanager
async def open_ledger(url: str, *, schema: str = DEFAULT_SCHEMA, member: str = "ledger") -> AsyncGenerator[Ledger]:
    """A ledger for a program with an event loop, on the inbox at `url` (a `postgresql://` address)."""
    database = Database(url, member=member, settings=DatabaseSettings(pool_max=POOL_MAX, tx_pool_max=1))
    ledger = Ledger(Store(database, tables(schema)))
    try:
        yield ledger
    finally:
        await ledger.close()
        await database.close()


@final
class BlockingLedger:
    """`with ledger.effect(...) as effect:` from any thread. Close it, or use it as a context manager."""

    def __init__(self, url: str, *, schema: str = DEFAULT_SCHEMA, member: str = "ledger") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidegate-ledger", daemon=True)
        self._thread.start()
        self._opened = open_ledger(url, schema=schema, member=member)
        self._ledger = self._wait(self._opened.__aenter__())

    def effect(
        self,
        effect: Effect,
        operation_id: str,
        *,
        owner: str,
        scope: str = "",
        request: Any = None,
        tenant: str | None = None,
        brand: str | None = None,
        correlation_id: str = "",
    ) -> BlockingEffectCall:
        """A call, as `Ledger.effect`, for a plain `with`."""
        made = self._ledger.effect(
            effect, operation_id, owner=owner, scope=scope, request=request, tenant=tenant, brand=brand,
            correlation_id=correlation_id,
        )  # fmt: skip
        return BlockingEffectCall(made, self._loop)

    def close(self) -> None:
        """Write what is on its way, then end the thread."""
        if self._loop.is_closed():
            return
        self._wait(self._opened.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
