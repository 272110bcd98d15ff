"""Batches applied to projections without Kafka: real tables, a real fence, and events made here.

A handler's table shows what landed and in which order: `public.effect (seq, handler, id, key, n)`, in which nothing
refuses a second effect.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.dlq.burial import Burial
from tidegate.dlq.parked_limits import ParkedLimits
from tidegate.dlq.policy import FailurePolicy
from tidegate.inbox import checkpoint, fence
from tidegate.inbox.clock import Clock, ManualClock
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.errors import EffectUnknown, TransientError
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.holding import Holding, Holdings
from tidegate.inbox.identity import digest16, payload_hash8
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables
from tidegate.projections.apply import Applier
from tidegate.projections.batch import Batch, BoundProjection, Ran, Stretch
from tidegate.projections.projection import Projection
from tidegate.projections.settling import Breakers

CONSUMER: Final = "billing"
TOPIC: Final = "shop.orders"


class Counts(Counter[tuple[str, ...]]):
    """A meter: (what, handler, ...) -> how many."""

    def handled(self, handler: str, n: int, seconds: float) -> None:
        self["handled", handler] += n

    def handled_each(self, handler: str, seconds: Sequence[float]) -> None:
        self["handled", handler] += len(seconds)

    def skipped(self, handler: str, n: int) -> None:
        self["skipped", handler] += n

    def duplicates(self, handler: str, n: int) -> None:
        self["duplicates", handler] += n

    def dead(self, handler: str, reason: str, n: int) -> None:
        self["dead", handler, reason] += n

    def unknown(self, handler: str, n: int) -> None:
        self["unknown", handler] += n

    def parked(self, handler: str, n: int) -> None:
        self["parked", handler] += n

    def stale(self, handler: str, n: int) -> None:
        self["stale", handler] += n

    def retried(self, handler: str, n: int) -> None:
        self["retried", handler] += n

    def lost(self, n: int) -> None:
        self["lost",] += n


class RefusedError(Exception):
    """What a handler raises that no try helps."""


@dataclass
class Trouble:
    """What a handler does for each event before it writes, by what the event's value says.

    * `permanent`: it always fails; `unknown`: nobody knows whether its call was made;
    * `transient`: it fails so often, then goes well;
    * `never_with`: it fails in one run with the event of this id, and goes well apart from it.
    """

    calls: Counter[str] = field(default_factory=Counter[str])
    runs: list[list[str]] = field(default_factory=list[list[str]])

    async def __call__(self, events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
        ids = [event.id_text for event in events]
        self.runs.append(ids)
        for event in events:
            self._meet(event, ids)
        return Ran(())

    def _meet(self, event: Event[Any], ids: list[str]) -> None:
        self.calls[event.id_text] += 1
        if event.value.get("permanent"):
            raise RefusedError("refused")
        if event.value.get("unknown"):
            raise EffectUnknown(1, "nobody knows")
        if event.value.get("never_with") in ids:
            raise RefusedError("not with that one")
        if self.calls[event.id_text] <= event.value.get("transient", 0):
            raise TransientError("not now")


Function = Callable[[Sequence[Event[Any]], AsyncConnection], Awaitable[Ran]]


def of(
    offset: int,
    key: str | None = "k",
    *,
    id: str | None = None,
    partition: int = 0,
    **value: Any,
) -> Event[Any]:
    """An event of shop.orders, known as `e<offset>` (with its partition, if that is not 0) unless `id` is given."""
    id_text = id or (f"e{offset}" if not partition else f"e{partition}-{offset}")
    payload = json.dumps(value).encode()
    record = Record(TOPIC, partition, offset, None if key is None else key.encode(), payload)
    return Event(
        value, record, type="Thing", id_text=id_text, event_id=digest16(b"test", id_text.encode()),
        payload_hash=payload_hash8(payload),
    )  # fmt: skip


async def answers(_: str) -> bool:
    """A dependency that is there."""
    return True


class BatchDesk:
    """A database, the fence of `partitions` partitions, and projections that write to `public.effect`."""

    def __init__(self, store: Store, partitions: int, clock: Clock | None = None) -> None:
        self.store = store
        self.clock = clock or ManualClock(start_s=1_700_000_000.0)
        self.counts = Counts()
        self.holdings = Holdings()
        self.partitions = [Partition(TOPIC, number) for number in range(partitions)]
        self.ids: dict[str, int] = {}

    async def declare(
        self,
        name: str,
        policy: FailurePolicy,
        function: Function,
        *,
        writes: bool = True,
        deadline_s: float = 10.0,
        version: int = 1,
    ) -> BoundProjection:
        """Register a projection, with its checkpoints at 0. It writes a row for each event, once `function` let it."""
        async with self.store.transaction() as conn:
            self.ids = await register_handlers(conn, self.store.tables, CONSUMER, [*self.ids, name])
            for partition in self.partitions:
                handler = (self.ids[name], version)
                await checkpoint.create(conn, self.store.tables, [handler], partition, 0, 0)
        for partition in self.partitions:
            holding = self.holdings.current(partition)
            if holding is None:
                db, t = self.store.database, self.store.tables
                epoch = await fence.take_over(db, t, CONSUMER, partition, "desk", 5)
                holding = Holding(partition, 1, epoch, 0)
                self.holdings.put(holding)
            holding.checkpoints[(self.ids[name], version)] = 0

        async def project(events: Sequence[Event[Any]], conn: AsyncConnection) -> Ran:
            ran = await function(events, conn)
            if writes:
                await note(events, conn, name)
            return ran

        projection = Projection(name, version, function, deadline_s=deadline_s, policy=policy)
        return BoundProjection(projection, self.ids[name], project)

    def applier(
        self, *bound: BoundProjection, breakers: Breakers | None = None, limits: ParkedLimits | None = None
    ) -> Applier:
        """They share their batches."""
        return Applier(
            self.store, CONSUMER, bound, self.holdings, Burial(CONSUMER, self.clock), self.counts, self.clock,
            answers, lambda: None, breakers, limits,
        )  # fmt: skip

    async def rows(self, query: str, **parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        async with self.store.look() as conn:
            return [tuple(row) for row in await conn.execute(text(query), parameters)]

    async def execute(self, *statements: str) -> None:
        """Run SQL."""
        async with self.store.transaction() as conn:
            for statement in statements:
                await conn.execute(text(statement))

    async def applied(self, handler: str = "revenue") -> list[str]:
        """The ids of the events that landed, in the order in which they did."""
        rows = await self.rows("SELECT id FROM public.effect WHERE handler = :handler ORDER BY seq", handler=handler)
        return [row[0] for row in rows]

    async def failures(self, handler: str = "revenue") -> dict[str, tuple[str, str, bool]]:
        """Event id -> (state, reason, alone) of the failure rows, in their positions' order."""
        rows = await self.rows(
            "SELECT id_text, state, reason, alone FROM tidegate.failure WHERE handler = :handler"
            " ORDER BY partition, record_offset",
            handler=self.ids[handler],
        )
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    async def lane(self, key: str = "k", handler: str = "revenue") -> list[str]:
        """The events that stand in a key's lane and hold it, in their order."""
        rows = await self.rows(
            "SELECT id_text FROM tidegate.failure WHERE handler = :handler AND key = :key AND NOT alone"
            " AND (state IN ('queued', 'unknown') OR holds) ORDER BY seq",
            handler=self.ids[handler], key=key.encode(),
        )  # fmt: skip
        return [row[0] for row in rows]

    async def checkpoints(self, handler: str = "revenue") -> dict[int, int]:
        """Partition -> next offset."""
        rows = await self.rows(
            "SELECT partition, next_offset FROM tidegate.checkpoint WHERE handler = :handler", handler=self.ids[handler]
        )
        return {row[0]: row[1] for row in rows}


def batch(*events: Event[Any]) -> Batch:
    """The events, as one stretch of each partition."""
    stretches: dict[int, list[Event[Any]]] = {}
    for event in events:
        stretches.setdefault(event.partition, []).append(event)
    return Batch(
        [Stretch(Partition(TOPIC, n), 1, tuple(found), found[-1].offset + 1) for n, found in stretches.items()]
    )


async def note(events: Sequence[Event[Any]], conn: AsyncConnection, handler: str) -> None:
    """One row of `public.effect` for each event."""
    await conn.execute(
        text("INSERT INTO public.effect (handler, id, key, n) VALUES (:handler, :id, :key, :n)"),
        [
            {"handler": handler, "id": e.id_text, "key": (e.key or b"").decode(), "n": e.value.get("n", 0)}
            for e in events
        ],
    )


@asynccontextmanager
async def desk(url: str, partitions: int = 1) -> AsyncGenerator[BatchDesk]:
    """A desk on a migrated database."""
    database = Database(url, member="desk", settings=DatabaseSettings(pool_max=4, tx_pool_max=1))
    try:
        built = BatchDesk(Store(database, tables()), partitions)
        await built.execute(
            "CREATE TABLE IF NOT EXISTS public.effect (seq bigserial, handler text, id text, key text, n int)"
        )
        yield built
    finally:
        await database.close()
