"""What the dead-letter room's tests share: a migrated database, and a way to bury events in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from tidegate.dlq.burial import Burial, Buried, letters_of
from tidegate.dlq.permission import Gate
from tidegate.dlq.reach import Caller, unlimited
from tidegate.inbox import failure, outbox
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.event import Event, Record
from tidegate.inbox.failure_rows import Place
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.identity import digest16, payload_hash8
from tidegate.inbox.outcome import Dead, Reason
from tidegate.inbox.store import Store
from tidegate.inbox.tables import Tables, tables

REJECTED = Dead(Reason.REJECTED, "no credit", "billing.CreditRefused", "0123456789abcdef")


@dataclass
class Graveyard:
    """A database with one consumer, `billing`, and its handlers `revenue` and `invoices`."""

    db: Database
    t: Tables
    handlers: dict[str, int]
    clock: ManualClock = field(default_factory=lambda: ManualClock(start_s=1_700_000_000.0))

    def gate(self, caller: Caller | None = None) -> Gate:
        """Where `caller` asks, or ann, who may do everything."""
        return Gate(Store(self.db, self.t), unlimited("ann") if caller is None else caller)

    def event(
        self, offset: int, *, key: bytes | None = b"k", value: bytes | None = b"v", tenant: str | None = None
    ) -> Event[None]:
        """An event of shop.orders/3, known as `o-<offset>`."""
        record = Record("shop.orders", 3, offset, key, value, (("ce_id", b"o-%d" % offset), ("null", None)), 5, 1)
        return Event(
            None,
            record,
            event_id=digest16(b"test", b"%d" % offset),
            id_text=f"o-{offset}",
            payload_hash=payload_hash8(value),
            tenant=tenant,
        )

    def place(self, handler: str = "revenue") -> Place:
        """Version 1 of a handler, the topic's first life."""
        return Place(self.handlers[handler], 1, 0)

    async def bury(self, *events: Event[None], handler: str = "revenue", dead: Dead = REJECTED) -> list[int]:
        """Rows and letters of `events`, as a worker writes them; gives the rows' numbers."""
        burial = Burial("billing", self.clock)
        return await self.put([burial.bury(self.place(handler), handler, event, dead) for event in events])

    async def put(self, buried: Sequence[Buried]) -> list[int]:
        """One transaction with rows and letters."""
        async with self.db.transaction() as conn:
            puts = await failure.put(conn, self.t, [row for row, _ in buried])
            await outbox.put(conn, self.t, letters_of(puts, buried))
        return [put.id for put in puts]

    async def requeue(self, number: int) -> None:
        """What a replay does to a dead row that nobody touched."""
        async with self.db.transaction() as conn:
            assert await failure.requeue(conn, self.t, [(number, 1)], self.clock.now())


@pytest.fixture
async def graveyard(migrated_url: str) -> AsyncIterator[Graveyard]:
    """A migrated database of this test's own."""
    t = tables()
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=4, tx_pool_max=1))
    try:
        async with database.transaction() as conn:
            handlers = await register_handlers(conn, t, "billing", ["revenue", "invoices"])
        yield Graveyard(database, t, handlers)
    finally:
        await database.close()
