"""Puts together what a backfill reads and handles with: the worker's own parts, without its group, engine and relay.

Letters and published records go into the outbox under their homes; the live worker, whose homes they are, sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, final

import sqlalchemy as sa
import structlog

from ...dlq.breakers import DeadBreakers
from ...dlq.burial import Burial
from ...dlq.policy import BreakerPolicy, FailurePolicy
from ...inbox.breaker_phase import Phase
from ...inbox.clock import SteadyClock
from ...inbox.handlers import RESERVED
from ...inbox.holding import Holdings
from ...inbox.ledger import Ledger
from ...inbox.meter import NoMeter
from ...inbox.provider_breakers import BreakerGate, ProviderBreakers, dependency_of
from ...inbox.store import STORE_ERRORS, Store
from ...projections.apply import Applier
from ...projections.projection import Projection
from ..app import App, Consumer
from ..client.admin import Admin
from ..client.reader import KafkaReader
from ..command import Command
from ..intake import EventIntake
from ..routing import Router
from ..settings import Settings
from ..worker.attempts import Attempts
from ..worker.binding import bind
from ..worker.commands import BoundCommand, CommandRunner
from ..worker.completing import Completer
from ..worker.dependencies import Dependencies
from ..worker.effects import Effects, asker, named_effects
from ..worker.failed_rows import FailedRows
from ..worker.handling import Mediator
from ..worker.parked_keys import ParkedKeys
from ..worker.publishing import RECORD_BYTES_MAX, Encoder
from ..worker.registering import refuse_missing
from ..worker.rejects import RejectRows
from ..worker.run import MESSAGE_BYTES_MAX, letter_limits, open_codec, schema_id_of
from ..worker.threads import Threads
from ..worker.watching import Running as Handling
from ..worker.worker import POSTGRESQL
from .reading import WindowReader
from .sifting import Target
from .ways import CommandWay, Landings, ProjectionWay, Way, moves_none

log = structlog.get_logger(__name__)

Waits = Callable[[str], None]
"""Hears why nothing goes on for a while."""


@final
class Ground:
    """What everything stands on: one for each backfill that is looked at or run."""

    def __init__(
        self, app: App, consumer: Consumer, settings: Settings, store: Store, admin: Admin,
        incarnations: dict[str, int], waits: Waits,
    ) -> None:  # fmt: skip
        self.app = app
        self.consumer = consumer
        self.settings = settings
        self.store = store
        self.admin = admin
        self.incarnations = incarnations
        self.codec = open_codec(consumer, settings)
        self.dependencies = Dependencies(
            {POSTGRESQL: self._database_answers}, lambda name: waits(f"{name} is away"), lambda _: None
        )
        self.waits = waits

    @asynccontextmanager
    async def reader(self, group: str) -> AsyncGenerator[WindowReader]:
        """Reads by manual assignment under a group name that nobody joins."""
        consumer = self.consumer
        router = Router(tuple(consumer.projections.values()), tuple(consumer.commands.values()))
        intake = EventIntake(consumer, self.codec, router, self.incarnations, _nobody)
        reader = KafkaReader(self.settings.client_options(group, consumer.topics))
        try:
            yield WindowReader(reader, intake, self.admin, self.dependencies.wait)
        finally:
            await reader.stop()

    async def _database_answers(self) -> bool:
        try:
            await self.store.database.ping()
        except STORE_ERRORS:
            return False
        return True


@final
@dataclass(frozen=True, slots=True)
class Hands:
    """What handles: a way for each target, the rows of records that no handler can be given, and the breaker that may
    hold it back.
    """

    way: Callable[[Target], Way]
    rejects: RejectRows
    holdings: Holdings
    clock: SteadyClock
    quiet: Callable[[], None]


@asynccontextmanager
async def hands(
    ground: Ground, group: str, targets: Sequence[Target], handler_ids: dict[str, int], *, held: bool
) -> AsyncGenerator[Hands]:
    """Ready to handle for each of the targets, which are of one handler; `group` is the name that its fences stand
    under, `held`: the live version is.
    """
    target = targets[0]
    limits = await asyncio.to_thread(letter_limits, ground.settings, ground.consumer)
    making = _Making(ground, group, target, limits)
    async with AsyncExitStack() as stack:
        await making.sync()
        resources = await stack.enter_async_context(ground.app.open_resources())
        threads = Threads(ground.settings.worker.handler_threads_max)
        stack.callback(threads.close)
        mediator = Mediator(ground.app, resources, threads)
        refuse_missing(ground.app, ground.consumer, mediator)
        if target.projection is not None:
            made: list[Way] = [making.projection_way(target.projection, one.version, mediator, held) for one in targets]
        else:
            made = [making.command_way(ground.consumer.commands[target.name], mediator, stack)]
        ways = {one.key: way for one, way in zip(targets, made, strict=True)}
        rejects = RejectRows(making.burial, ground.consumer.scope, handler_ids, METER)
        yield Hands(lambda one: ways[one.key], rejects, making.holdings, making.clock, making.breakers.quiet)


METER: Final = NoMeter()
"""The journal counts; metrics are the live worker's."""


@final
class _Making:
    """The parts that both ways share."""

    def __init__(self, ground: Ground, group: str, target: Target, limits: Mapping[str, int]) -> None:
        consumer = ground.consumer
        self._ground = ground
        self._group = group
        self._target = target
        self.clock = SteadyClock()
        self.holdings = Holdings()
        self.burial = Burial(consumer.name, self.clock, limits, schema_id_of(consumer))
        bytes_max = int(ground.settings.kafka.client.get(MESSAGE_BYTES_MAX, RECORD_BYTES_MAX))
        self._encoder = Encoder(ground.codec, consumer.name, bytes_max)
        policy: FailurePolicy = consumer.policies()[target.name]
        self.breakers = DeadBreakers({RESERVED: BreakerPolicy(), target.name: policy.breaker}, self.clock, self._held)

    async def sync(self) -> None:
        """All due times are by the database's clock."""
        async with self._ground.store.look() as conn:
            self.clock.sync((await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one())

    def projection_way(self, projection: Projection, version: int, mediator: Mediator, held: bool) -> ProjectionWay:
        """Its version is in its claims and rows. Beside the live version its rows hold no key, which would be a key of
        that one's; where that is held, keys wait as declared, and the live version waits behind them.
        """
        aside = replace(projection.policy, on_failure="continue", after_dead="release")
        mine = replace(projection, version=version, policy=projection.policy if held else aside)
        bound = bind(mine, self._target.handler_id, mediator, self._encoder, Handling())
        applier = Applier(
            self._ground.store, self._group, [bound], self.holdings, self.burial, METER, self.clock,
            self._ground.dependencies.answers, _nobody, self.breakers, move=moves_none,
        )  # fmt: skip
        return ProjectionWay(applier, self._ground.dependencies.wait)

    def command_way(self, command: Command, mediator: Mediator, stack: AsyncExitStack) -> CommandWay:
        """The live version's claims, ledger and lanes: what was handled is not handled again."""
        ground, store, wait = self._ground, self._ground.store, self._ground.dependencies.wait
        landings = Landings()
        parked = ParkedKeys(lambda _handler, _partition: landings.position)
        rows = FailedRows(self.burial, METER, self.clock)
        completer = Completer(store, self._group, self.holdings, rows, landings, METER, wait, parked)
        gate = BreakerGate(ProviderBreakers(store, self.clock, ground.settings.provider_policy(), self._provider_moved))
        ledger = Ledger(store, ask=asker(mediator), gate=gate, clock=self.clock)
        effects = Effects(
            ledger, ground.app.effects, ground.consumer.name, named_effects(ground.consumer), fenced=False
        )
        runner = CommandRunner(
            store, self._group, self.holdings, mediator, self._encoder, completer, ground.dependencies, METER,
            self.clock, Attempts(ground.dependencies, METER, self.clock), effects, self.breakers, parked, _nobody,
            lambda item: landings.lost(item.partition, item.epoch), landings.fail, Handling(),
        )  # fmt: skip
        stack.push_async_callback(ledger.close)
        bound = BoundCommand(command, self._target.handler_id)
        way = CommandWay(store, bound, runner, completer, landings, parked, wait)
        stack.push_async_callback(way.close)
        return way

    def _held(self, handler: str, phase: Phase, why: str) -> None:
        if phase is not Phase.CLOSED:
            self._ground.waits(f"held back, nothing is given up: {why}")

    def _provider_moved(self, provider: str, phase: Phase, why: str) -> None:
        if phase is not Phase.CLOSED:
            self._ground.waits(f"{dependency_of(provider)}: {why}")


def _nobody(*_: object) -> None:
    """Nobody waits for it here."""
