"""What is looked at now and then: that the loop turns, what topics' names stand for, lag, outbox, window,
holds, whose rows are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, final

import sqlalchemy as sa
import structlog

from ...inbox import outbox
from ...inbox.clock import SteadyClock
from ...inbox.errors import OwnershipLost, TransientError
from ...inbox.event import Partition
from ...inbox.holding import Holdings
from ...inbox.homes import Homes, topics_with_rows
from ...inbox.store import STORE_ERRORS, Store
from ..client.ports import KafkaPort
from ..engine.engine import Progress
from ..engine.signals import Fenced, PauseCause
from ..health import HealthBoard
from ..metrics import Metrics
from ..settings import Dlq
from .held import HELD_S, HeldVersions
from .topics import TopicWatch
from .worker import Worker

OUTBOX: Final = "outbox"
"""The name under which health shows that the outbox does not empty."""

Look = Callable[[], Awaitable[None]]

log = structlog.get_logger(__name__)

BEAT_S: Final = 0.25
"""How exactly a stall of the event loop is told."""

FIGURES_S: Final = 5.0
"""Scrapers come every 15 s or so."""

TOPICS_S: Final = 15.0
"""A topic that was made anew under a running consumer is noticed within this time, if no offset error tells earlier."""


HOMES_S: Final = 15.0
"""How soon rows get another owner whose partition is gone: nobody waits for them but after a change of topics."""


@final
class Housekeeping:
    """Owned by the event loop; `run` until cancelled."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        worker: Worker,
        kafka: KafkaPort,
        holdings: Holdings,
        homes: Homes,
        handlers: Collection[int],
        topics: TopicWatch,
        board: HealthBoard,
        metrics: Metrics,
        clock: SteadyClock,
        limits: Dlq,
        brakes: Look,
    ) -> None:
        self._limits = limits
        self._brakes = brakes
        self._store = store
        self._consumer = consumer
        self._worker = worker
        self._kafka = kafka
        self._homes = homes
        self._handlers = handlers
        self._topics = topics
        self._board = board
        self._metrics = metrics
        self._clock = clock
        self._pressed = False
        self._held = HeldVersions(store, holdings, lambda partition, epoch: worker.signal(Fenced(partition, epoch)))
        self._moved: dict[Partition, tuple[int | None, float]] = {}

    async def run(self) -> None:
        """All rounds, side by side."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._every(FIGURES_S, self._figures))
            group.create_task(self._every(FIGURES_S, self._brakes))
            group.create_task(self._every(HELD_S, self._held.look))
            group.create_task(self._every(TOPICS_S, self._look_at_topics))
            group.create_task(self._every(HOMES_S, self._look_at_homes, at_once=True))

    async def _beat(self) -> None:
        while True:
            self._board.beat()
            self._board.assigned = len(self._worker.engine.progress()) if self._board.assigned is not None else None
            await asyncio.sleep(BEAT_S)

    async def _every(self, period_s: float, look: Look, *, at_once: bool = False) -> None:
        """A look that meets an outage is left out: what needs the dependency reports it."""
        if not at_once:
            await asyncio.sleep(period_s)
        while True:
            try:
                await look()
            except (TransientError, OwnershipLost, *STORE_ERRORS) as error:
                log.debug("look_left_out", error=type(error).__name__)
            await asyncio.sleep(period_s)

    async def _figures(self) -> None:
        engine, metrics = self._worker.engine, self._metrics
        records, size_bytes = engine.window()
        metrics.set("window_records", records)
        metrics.set("window_bytes", size_bytes)
        progress = engine.progress()
        metrics.set("partitions_assigned", len(progress))
        self._stalls(progress)
        causes = engine.causes()
        for cause in PauseCause:
            metrics.set("partitions_paused", len(progress) if cause in causes else 0, cause.value)
        if progress:
            for partition, (_, high) in (await self._kafka.watermarks(tuple(progress))).items():
                done = progress[partition].committable
                if done is not None:
                    metrics.set("lag_records", max(0, high - done), partition.topic, str(partition.number))
            await self._outbox()

    def _stalls(self, progress: Mapping[Partition, Progress]) -> None:
        """How long each partition's commit point has stood still with work in it; those that left are forgotten."""
        now_s = self._clock.monotonic_s()
        for partition in self._moved.keys() - progress.keys():
            self._metrics.forget(partition)
            del self._moved[partition]
        for partition, facts in progress.items():
            point, since_s = self._moved.get(partition, (None, now_s))
            if facts.committable != point or not facts.records:
                point, since_s = facts.committable, now_s
            self._moved[partition] = (point, since_s)
            self._metrics.set("stalled_seconds", now_s - since_s, partition.topic, str(partition.number))

    async def _outbox(self) -> None:
        async with self._store.look() as conn:
            self._clock.sync((await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one())
            pending = await outbox.pending(conn, self._store.tables, self._consumer)
        self._metrics.set("outbox_pending", pending.count)
        self._metrics.set("outbox_oldest_seconds", pending.oldest_age_s)
        self._press(pending)

    def _press(self, pending: outbox.Pending) -> None:
        """Letters and records that do not go out hold consumption up before they fill the database."""
        too_much = pending.count > self._limits.waiting_max or pending.oldest_age_s > self._limits.waiting_age_max_s
        if too_much and not self._pressed:
            log.error("outbox_too_full", waiting=pending.count, oldest_s=round(pending.oldest_age_s))
            self._board.away(OUTBOX)
            self._worker.away(OUTBOX)
        if self._pressed and not too_much:
            self._board.back(OUTBOX)
            self._worker.back(OUTBOX)
        self._pressed = too_much

    async def _look_at_homes(self) -> None:
        counts = await self._kafka.partition_counts(self._homes.topics)
        async with self._store.look() as conn:
            with_rows = await topics_with_rows(conn, self._store.tables, self._consumer, self._handlers)
        for topic in self._homes.learn(counts, with_rows):
            log.warning(
                "rows_of_a_topic_not_read", topic=topic, worked_under=str(self._homes.owner(Partition(topic, 0)))
            )

    async def _look_at_topics(self) -> None:
        await self._topics.look(self._changed)

    def _changed(self, topic: str) -> None:
        """Another topic under the old name: its partitions start anew, under the incarnation that was just raised."""
        for partition, progress in self._worker.engine.progress().items():
            if partition.topic == topic:
                self._worker.fenced(partition, progress.epoch)
