"""Backfills as operators run them: planned, started, gone on with after an interruption.

```python
backfiller = Backfiller(app, settings, store)
planned = await backfiller.plan(order)             # what would be done, and what would not and why; nothing is written
run = await backfiller.start(order)                # it stands in the journal; nothing is handled yet
run = await backfiller.go_on(run.id, actor=..., reason=..., stop=asyncio.Event())
```

Permission is asked here, where the act happens, and each act has its line in the audit: `start` and the end of a
backfill in their own transactions, a denial before its error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.permission import Act, Gate, Permit, Place, ask
from ...dlq.reach import SEVERAL
from ...dlq.verbs import Verb
from ...inbox import audit, backfills, births, claim, fence, holds, restored, topics, versions
from ...inbox.backfills import Part, Run
from ...inbox.errors import ConfigurationError, FatalError, OwnershipLost
from ...inbox.event import Partition
from ...inbox.handlers import RESERVED, kind_problems, known_handlers
from ...inbox.migrate import check_schema
from ...inbox.safe_text import Scalar
from ...inbox.store import Store
from ...inbox.topics import TopicChange
from ...projections.projection import Projection
from ..app import App, Consumer
from ..client.admin import Admin
from ..client.config import admin_config
from ..intake import scope_of
from ..settings import Settings
from ..worker.completion import COMMAND_VERSION
from . import held
from .assembly import Ground, Waits, hands
from .order import Bounds, Frame, Order, milliseconds, part_of, problems_of, refused_at
from .oversight import figures, find, place_of
from .running import CHUNK_MAX, Running, Sight, count
from .sifting import Tally, Target, outcome, plan

VERB: Final = Verb.BACKFILL

HOLD_MARGIN_S: Final = 5.0
"""Behind the deadline of a batch of the live version's, which has moved its checkpoint and is about to commit."""

_PATIENCE: Final = sa.text(
    "SELECT set_config('lock_timeout', :timeout, true), set_config('statement_timeout', '0', true)"
)

Told = Callable[[Part, Tally], None]
"""Hears of each chunk that is done, with the part as it stood before it."""


def nobody(*_: object) -> None:
    """Nobody wants to know."""


@final
@dataclass(slots=True)
class Planned:
    """What a backfill would do, by partition."""

    cluster_id: str
    parts: list[Part]
    open_ended: frozenset[Partition] = frozenset()
    """Where the window reaches to the log's end."""
    tallies: dict[Partition, Tally] = field(default_factory=dict[Partition, Tally])


@final
class Backfiller:
    """The service that the command line and whoever else calls. `permit` says who may."""

    def __init__(self, app: App, settings: Settings, store: Store, permit: Permit) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self._permit = permit
        self._admin = Admin(admin_config(settings.client_options("", ("-",))))

    async def plan(self, order: Order, told: Told = nobody, waits: Waits = nobody) -> Planned:
        """A dry run: reads the window and asks the inbox. Raises ConfigurationError, FatalError and NotPermitted."""
        consumer, planned = await self._judged(order)
        async with AsyncExitStack() as stack:
            ids = await self._handler_ids(consumer, order.handler)
            ground, group = self._ground(consumer, planned.parts, waits), f"{consumer.name}.backfill"
            sight = await self._sight(stack, ground, order.wanted(), order.handler, 0, ids, planned.parts, group)
            for part in planned.parts:
                planned.tallies[part.partition] = await _look_through(sight, part, told)
        return planned

    async def start(self, order: Order) -> Run:
        """Write a backfill down, with its window as offsets. Raises as `plan` does."""
        consumer, planned = await self._judged(order)
        tables = self._store.tables
        async with self._store.transaction() as conn:
            if order.hold:
                await claim.lock_generations(conn, tables)
            number = await backfills.begin(
                conn, tables,
                consumer=order.consumer, handler=order.handler, kind=consumer.kinds[order.handler], actor=order.actor,
                why=order.reason, wanted=order.wanted(), cluster_id=planned.cluster_id,
            )  # fmt: skip
            await audit.write(conn, tables, _act(order, number).line(_place(order)))
            parts = await self._hold(conn, consumer, order, number, planned) if order.hold else planned.parts
            await backfills.add_parts(conn, tables, number, parts)
        return await self.find(number)

    async def find(self, number: int) -> Run:
        """A backfill as it stands. Raises ConfigurationError where there is none of this number."""
        return await find(Gate(self._store, self._permit), number)

    async def _hold(
        self, conn: AsyncConnection, consumer: Consumer, order: Order, number: int, planned: Planned
    ) -> Sequence[Part]:
        """Lock order 8, behind the generation lock: the live version writes nothing from this commit on."""
        tables, projection = self._store.tables, consumer.projections[order.handler]
        ids = await known_handlers(conn, tables, order.consumer)
        key = (ids[order.handler], projection.version)
        await conn.execute(_PATIENCE, {"timeout": f"{round(1000 * (projection.deadline_s + HOLD_MARGIN_S))}"})
        starts = {part.partition: (part.incarnation, part.start_offset) for part in planned.parts}
        standing = await holds.standing(conn, tables, key)
        taken = await holds.take(conn, tables, key, number, starts)
        stands = {p: (starts[p][0], offset, None) for p, offset in taken.items()}
        parts = held.parts_of(planned.parts, {**standing, **stands}, planned.open_ended)
        if missing := sorted(starts.keys() - taken.keys()):
            what = f"another backfill has just begun to hold the handler in {missing[0]}"
            raise ConfigurationError.of("--hold", what, "see: tidegate backfill list")
        for partition in starts.keys() - standing.keys():
            await births.note(conn, tables, [key], partition, *starts[partition])
        return parts

    async def go_on(
        self,
        number: int,
        *,
        actor: str,
        reason: str,
        stop: asyncio.Event,
        rate: float | None = None,
        told: Told = nobody,
        waits: Waits = nobody,
    ) -> Run:
        """Work until it is done, or `stop` is set; at the rate that was ordered, or another. One that has ended does
        nothing.

        Raises:
            OwnershipLost: another process works on it now.
            FatalError: it cannot go on and a person has to look.
        """
        run = await self.find(number)
        act = Act(VERB, actor, reason, {"backfill": number})
        place = place_of(run)
        await ask(self._store, self._permit, act, place)
        if run.abandoned_at is not None:
            raise ConfigurationError.of("BACKFILL", f"backfill {number} was abandoned", "start another one")
        if run.ended_at is not None:
            return run
        consumer = self._consumer(run.consumer)
        await self._check_group(run.group)
        await self._check_place(run, consumer)
        async with AsyncExitStack() as stack:
            if await self._work(stack, run, consumer, rate or run.wanted["rate"], stop, told, waits):
                await self._end(run, act, place)
        return await self.find(number)

    # ------------------------------------------------------------------------------------------------------- working

    async def _work(
        self, stack: AsyncExitStack, run: Run, consumer: Consumer, rate: float, stop: asyncio.Event, told: Told,
        waits: Waits,
    ) -> bool:  # fmt: skip
        ids = await self._handler_ids(consumer, run.handler)
        ground = self._ground(consumer, run.parts, waits)
        sight = await self._sight(stack, ground, run.wanted, run.handler, run.id, ids, run.parts, run.group)
        targets = [sight.target, *([sight.again] if sight.again is not None else [])]
        making = hands(ground, run.group, targets, ids, held=run.holds)
        ready = await stack.enter_async_context(making)
        command = consumer.commands.get(run.handler)
        rates = [rate, *([command.rate_per_s] if command and command.rate_per_s else [])]
        running = Running(
            run, sight, ready.way, ready.rejects, ready.holdings, ready.clock, ground.dependencies.wait,
            rate=min(rates), parked_max=consumer.policies()[run.handler].parked_max, stop=stop, told=told, waits=waits,
        )  # fmt: skip
        quieting = asyncio.ensure_future(_when(stop, ready.quiet))
        try:
            return await running.work()
        finally:
            quieting.cancel()

    async def _end(self, run: Run, act: Act, place: Place) -> None:
        """Its fences are not needed any more, what it held goes on, and what became of it stands in the audit."""
        tables = self._store.tables
        async with self._store.transaction() as conn:
            await fence.remove(conn, tables, run.group)
            done = await backfills.read(conn, tables, run.id)
            assert done is not None, "it was read before"
            line = Act(VERB, act.actor, act.reason, {**figures(done), "ended": True}).line(place)
            await audit.write(conn, tables, line)
            await holds.let_go(conn, tables, run.id, held.goes_on_at(done.parts, ended=True))
            if not await backfills.end(conn, tables, run.id):
                raise OwnershipLost(f"backfill {run.id} is over already: see tidegate backfill list")

    async def _sight(
        self, stack: AsyncExitStack, ground: Ground, wanted: Mapping[str, Any], handler: str, number: int,
        ids: Mapping[str, int], parts: Sequence[Part], group: str,
    ) -> Sight:  # fmt: skip
        reader = await stack.enter_async_context(ground.reader(group))
        consumer = ground.consumer
        projection = consumer.projections.get(handler)
        target, again = _targets(handler, ids[handler], number, projection, is_held=bool(wanted.get("hold")))
        bounds = await self._bounds(consumer, target, [part.partition for part in parts])
        scope = consumer.scope
        return Sight(
            self._store, reader, target, ids[RESERVED], Frame.of(wanted), bounds,
            lambda record: scope_of(record, scope)[0], ground.incarnations, again,
        )  # fmt: skip

    def _ground(self, consumer: Consumer, parts: Sequence[Part], waits: Waits) -> Ground:
        incarnations = {part.partition.topic: part.incarnation for part in parts}
        return Ground(self._app, consumer, self._settings, self._store, self._admin, incarnations, waits)

    # ------------------------------------------------------------------------------------------------------- judging

    async def _judged(self, order: Order) -> tuple[Consumer, Planned]:
        """The window as offsets, where all of the order fits. Asks for permission first."""
        await ask(self._store, self._permit, _act(order), _place(order))
        consumer = self._consumer(order.consumer)
        if problems := problems_of(order, consumer):
            raise ConfigurationError(problems)
        cluster_id = await asyncio.to_thread(self._admin.cluster_id)
        if order.cluster is not None and order.cluster != cluster_id:
            raise ConfigurationError.of(
                "--cluster", f"this is cluster {cluster_id or '(unnamed)'}, not {order.cluster}",
                "check kafka.bootstrap_servers",
            )  # fmt: skip
        ids = await self._handler_ids(consumer, order.handler)
        planned = await self._window(order, cluster_id, order.topics or consumer.topics)
        if order.hold:
            async with self._store.look() as conn:
                key = (ids[order.handler], consumer.projections[order.handler].version)
                standing = await holds.standing(conn, self._store.tables, key)
            planned.parts = held.parts_of(planned.parts, standing, planned.open_ended)
        return consumer, planned

    async def _window(self, order: Order, cluster_id: str, names: tuple[str, ...]) -> Planned:
        incarnations = await self._incarnations(names)
        found = await asyncio.to_thread(self._admin.describe, names)
        partitions = [Partition(name, number) for name in sorted(found) for number in range(found[name].partitions)]
        ends = await asyncio.to_thread(self._admin.watermarks, partitions)
        since = await asyncio.to_thread(self._admin.offsets_at, partitions, milliseconds(order.since))
        until = await asyncio.to_thread(self._admin.offsets_at, partitions, milliseconds(order.until))
        parts = [part_of(p, incarnations[p.topic], ends[p], since[p], until[p]) for p in partitions]
        return Planned(cluster_id, parts, frozenset(p for p in partitions if until[p] is None))

    async def _incarnations(self, names: tuple[str, ...]) -> dict[str, int]:
        """Raises FatalError for a topic that is not there, or is another one than the inbox knows."""
        found = await asyncio.to_thread(self._admin.describe, names)
        for name, facts in found.items():
            if facts.error is not None:
                raise FatalError(f"topic {name!r}: {facts.error}", fix="check the cluster and the principal's rights")
        async with self._store.look() as conn:
            known = await topics.known_topics(
                conn, self._store.tables, {name: facts.topic_id for name, facts in found.items()}
            )
        for name, identity in known.items():
            if identity.change is TopicChange.RECREATED:
                raise FatalError(
                    f"topic {name!r} was deleted and made anew: its offsets mean other records",
                    fix=f"let the consumer notice it first, or: tidegate topic reset {name}",
                )
        return {name: identity.incarnation for name, identity in known.items()}

    async def _handler_ids(self, consumer: Consumer, handler: str) -> dict[str, int]:
        """Those of a consumer that ran before, with this very app."""
        tables = self._store.tables
        async with self._store.look() as conn:
            await check_schema(conn, tables)
            ids = await known_handlers(conn, tables, consumer.name)
            problems = await kind_problems(conn, tables, consumer.name, {handler: consumer.kinds[handler]})
            projection = consumer.projections.get(handler)
            declared = {} if projection is None or handler not in ids else {ids[handler]: (handler, projection.version)}
            changed = await versions.changed(conn, tables, declared) if declared else []
        if problems:
            raise ConfigurationError(problems)
        if handler not in ids:
            raise ConfigurationError.of(
                "--handler", f"the database knows no {handler!r} of {consumer.name!r}: it never ran", "run it first"
            )
        if changed:
            raise ConfigurationError.of(
                "--app", f"its {handler!r} is version {changed[0].declared}, and version {changed[0].live} is live",
                "use the app that runs",
            )  # fmt: skip
        return ids

    async def _bounds(self, consumer: Consumer, target: Target, partitions: list[Partition]) -> Bounds:
        """For a projection's run there are none: its claims begin with it."""
        if target.projection is not None or not partitions:
            return Bounds()
        async with self._store.look() as conn:
            tables = self._store.tables
            began = await births.read(conn, tables, *target.key)
            return Bounds(began, await restored.read(conn, tables, consumer.name, partitions))

    async def _check_group(self, group: str) -> None:
        members = await asyncio.to_thread(self._admin.members, group)
        if members:
            raise FatalError(
                f"the Kafka group {group!r} has {members} live members: somebody consumes under this backfill's name",
                fix="find out who, and stop them; then: tidegate backfill resume",
            )

    async def _check_place(self, run: Run, consumer: Consumer) -> None:
        cluster_id = await asyncio.to_thread(self._admin.cluster_id)
        if (refused := refused_at(run, consumer, cluster_id)) is not None:
            raise refused
        now = await self._incarnations(tuple(sorted({part.partition.topic for part in run.parts})))
        for part in run.parts:
            if now[part.partition.topic] != part.incarnation:
                raise FatalError(
                    f"topic {part.partition.topic!r} is another one than at the start of backfill {run.id}",
                    fix="start another backfill",
                )

    def _consumer(self, name: str) -> Consumer:
        found = self._app.consumers.get(name)
        if found is None:
            known = ", ".join(self._app.consumers) or "none"
            what = f"the app {self._app.name!r} has no consumer {name!r}"
            raise ConfigurationError.of("CONSUMER", what, f"name one of: {known}")
        return found


def _targets(
    handler: str, handler_id: int, number: int, projection: Projection | None, *, is_held: bool
) -> tuple[Target, Target | None]:
    """Who handles what comes for the first time, and who what the held live version had before (see `held`)."""
    if projection is None:
        return Target(handler, handler_id, COMMAND_VERSION, None), None
    live = Target(handler, handler_id, projection.version, projection)
    run = replace(live, version=versions.run_version(number), live=live.key)
    return (live, run) if is_held else (run, None)


async def _look_through(sight: Sight, part: Part, told: Told) -> Tally:
    """What a run would do with the part: fresh events count as handled."""
    total = Tally()
    whole = sight
    while part.next_offset < part.end_offset:
        sight = whole.at(part)
        chunk = await sight.chunk(part, CHUNK_MAX)
        sifted = sight.sift(chunk)
        known = await sight.known(sifted)
        made = plan(sifted.events, known, sight.bounds, force=sight.frame.force)
        async with sight.store.look() as conn:
            tally, undone = outcome(made, await sight.ask(conn, sifted), sight.target)
        tally.handled += len(undone)
        told(part, count(chunk, sifted, tally, known))
        total.handled += tally.handled
        total.causes.update(tally.causes)
        part = part.behind(chunk.next_offset)
    return total


async def _when(stop: asyncio.Event, then: Callable[[], None]) -> None:
    await stop.wait()
    then()


def _act(order: Order, number: int | None = None) -> Act:
    details: dict[str, Scalar] = {**order.wanted(), "topics": ", ".join(order.topics), "rate": f"{order.rate:g}"}
    return Act(VERB, order.actor, order.reason, details if number is None else {**details, "backfill": number})


def _place(order: Order) -> Place:
    """It reads whole partitions: what is not of one tenant is of all, and brands are not told apart."""
    return Place(order.consumer, order.handler, order.tenant or SEVERAL, SEVERAL)
