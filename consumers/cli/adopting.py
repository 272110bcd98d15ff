"""`tidegate dlq replay --from-topic`: letters whose rows are gone come back into the inbox, out of their topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from ...dlq.adoptions import Adoptions
from ...dlq.permission import Gate
from ...dlq.reach import Caller, Whole
from ...dlq.replay_journal import Run
from ...dlq.replay_order import Order
from ...dlq.selection import Filter
from ...inbox.clock import SystemClock
from ...inbox.errors import ConfigurationError
from ..adoption import intake_of, partitions_of, parts_of, source_of, target_of
from ..client.admin import Admin
from ..client.config import admin_config
from ..client.reader import KafkaReader
from .access import Access, open_gate
from .options import ERR
from .preparing import choose, prepare
from .replaying import Manner, finish, queue, show_plan, versions_of

NEEDS: Final = ("database.url", "kafka.bootstrap_servers")


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """Out of which topic, by which app; `source` and `cluster` where they were said."""

    caller: Caller
    app: str | None
    config: Path | None
    letters: str
    consumer: str | None
    handler: str | None
    source: str | None
    cluster: str | None = None


async def adopt(origin: Origin, order: Order, manner: Manner) -> int:
    """Show the plan; with `yes` do it."""
    async with _opened(origin) as (gate, adoptions, admin):
        parts = await asyncio.to_thread(parts_of, admin, origin.letters)
        order = replace(order, versions=versions_of(origin.app))
        if not manner.yes:
            cluster = await asyncio.to_thread(admin.cluster_id)
            place = f"topic {origin.letters} of cluster {cluster or '(unnamed)'}, for {adoptions.target.source}"
            return show_plan(await adoptions.plan(order, parts), place, manner.as_json)
        run = await adoptions.start(order, parts)
        return await _go_on(gate, adoptions, run, manner)


async def resume(gate: Gate, run: Run, app: str | None, config: Path | None, manner: Manner) -> int:
    """Go on with one. It needs the app again."""
    wanted: dict[str, Any] = dict(run.wanted)
    origin = Origin(
        gate.caller,
        app,
        config,
        wanted["letters"],
        wanted["consumer"],
        wanted["handler"],
        wanted["source"],
        wanted["cluster"],
    )
    async with _opened(origin) as (gate, adoptions, _):
        return await _go_on(gate, adoptions, run, manner)


async def _go_on(gate: Gate, adoptions: Adoptions, run: Run, manner: Manner) -> int:
    left = sum([part.end_offset - part.next_offset for part in await adoptions.parts(run.id)])
    total = run.read + left if gate.caller.sees.covers_whole(Whole()) else None  # others' letters are not counted
    return await finish(gate, run, manner, lambda: queue(gate, adoptions.go_on, run, total, manner))


@asynccontextmanager
async def _opened(origin: Origin) -> AsyncGenerator[tuple[Gate, Adoptions, Admin]]:
    prepared = prepare(origin.app, origin.config, NEEDS)
    settings, consumer = prepared.settings, choose(prepared.app, origin.consumer)
    source = source_of(consumer, origin.letters, origin.source)
    options = settings.client_options(consumer.name, consumer.topics)
    admin = Admin(admin_config(options))
    cluster = await asyncio.to_thread(admin.cluster_id)
    if origin.cluster is not None and origin.cluster != cluster:
        what = f"this is cluster {cluster or '(unnamed)'}, not {origin.cluster}"
        raise ConfigurationError.of("--cluster", what, "look where kafka.bootstrap_servers points")
    ERR.print(f"cluster {cluster or '(unnamed)'}: letters of {source} for {consumer.name}, out of {origin.letters}")
    reader = KafkaReader(options)
    try:
        async with open_gate(Access(settings, origin.caller), "dlq replay") as gate:
            count = await asyncio.to_thread(partitions_of, admin, source)
            target = await target_of(gate.store, consumer, source, count, origin.handler)
            make = intake_of(consumer, settings, {source: target.incarnation})
            told = {"letters": origin.letters, "consumer": consumer.name, "handler": origin.handler}
            wanted = {**told, "source": source, "cluster": cluster}
            adoptions = Adoptions(
                gate.store, reader, target, make, SystemClock().now, permit=gate.caller, wanted=wanted
            )
            yield gate, adoptions, admin
    finally:
        await reader.stop()


def order_for(order: Order, chosen: Filter) -> Order:
    """Letters in a topic are not named, and have no state but to be there. Raises ConfigurationError."""
    if order.references:
        raise ConfigurationError.of("LETTER", "letters in a topic have no numbers", "filter them, or say --all")
    return replace(order, filter=replace(chosen, consumer=None, handler=None, topic=None, state=None))
