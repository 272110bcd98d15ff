"""Assembles one consumer's worker out of its parts, runs it until it is asked to stop, and takes it apart again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, final

import structlog

from ...dlq.burial import Burial, SchemaIdOf
from ...inbox import fence
from ...inbox.clock import SteadyClock
from ...inbox.database import Database
from ...inbox.errors import RecordError, TransientError
from ...inbox.event import Record
from ...inbox.holding import Holdings
from ...inbox.homes import Homes
from ...inbox.ledger import Ledger
from ...inbox.points import Writes
from ...inbox.provider_breakers import is_provider
from ...inbox.store import STORE_ERRORS, Store
from ...inbox.tables import tables
from ...projections.apply import Applier
from ...projections.batch import BoundProjection
from .. import letter_topics
from ..app import App, Consumer
from ..client.admin import Admin
from ..client.config import admin_config
from ..client.ports import CommitAnswer, KafkaPort, ProducerPort, ReaderPort
from ..client.producer import KafkaProducer
from ..client.reader import KafkaReader
from ..client.thread import KafkaThread
from ..codecs import framing
from ..codecs.avro import Avro
from ..codecs.codec import Codec
from ..engine.engine import Engine
from ..health import HealthBoard
from ..intake import EventIntake
from ..metrics import Metrics
from ..routing import Router, stream_name, tracks_of
from ..settings import Settings
from .attempts import Attempts
from .binding import bind
from .brakes import Brakes
from .commands import BoundCommand, CommandRunner
from .committing import Committer, Raiser
from .completing import Completer
from .completion import COMMAND_VERSION
from .conflicts import Conflicts
from .dependencies import Dependencies
from .effects import Effects, asker, named_effects
from .failed_rows import FailedRows
from .handling import Mediator
from .housekeeping import Housekeeping
from .killed import Judge
from .learning import Learning
from .ownership import Binding, Ownership
from .parked_keys import ParkedKeys
from .progress import EngineProgress
from .publishing import RECORD_BYTES_MAX, Encoder
from .receiving import Receiver
from .reconciling import Reconciler
from .registering import Registered, refuse_missing, register
from .relaying import Relay
from .sealing import Sealer
from .slow_way import SlowWay
from .solo import Solo
from .suspects import Suspects
from .threads import Threads
from .topics import TopicWatch
from .watching import LoopWatch, Running
from .worker import POSTGRESQL, Parts, Worker

log = structlog.get_logger(__name__)

EXIT_OK: Final = 0

MESSAGE_BYTES_MAX: Final = "message.max.bytes"
"""librdkafka's name for the largest record that a producer sends."""


async def run_consumer(
    app: App, consumer_name: str, settings: Settings, board: HealthBoard, metrics: Metrics, stop: asyncio.Event
) -> int:
    """Run until `stop` is set; the process's exit code. Raises ConfigurationError and FatalError."""
    consumer = app.consumers[consumer_name]
    async with AsyncExitStack() as stack:
        store = Store(
            Database(
                settings.database.dsn(), member=f"{os.getpid()} {consumer_name}", settings=settings.database.pools()
            ),
            tables(settings.database.schema_name),
        )
        stack.push_async_callback(store.database.close)
        registered = await register(store, app, consumer)
        learning = Learning(store, registered.handler_ids.values())
        stack.push_async_callback(learning.close)
        resources = await stack.enter_async_context(app.open_resources())
        threads = Threads(settings.worker.handler_threads_max)
        stack.callback(threads.close)
        mediator = Mediator(app, resources, threads)
        refuse_missing(app, consumer, mediator)
        letters = await asyncio.to_thread(letter_limits, settings, consumer)
        assembly = Assembly(app, consumer, settings, store, registered, learning, mediator, board, metrics, letters)
        return await assembly.run(stop)


@final
class Assembly:
    """The worker and everything it is made of; one for each run."""

    def __init__(
        self,
        app: App,
        consumer: Consumer,
        settings: Settings,
        store: Store,
        registered: Registered,
        learning: Learning,
        mediator: Mediator,
        board: HealthBoard,
        metrics: Metrics,
        letter_bytes_max: Mapping[str, int],
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._store = store
        self._registered = registered
        self._learning = learning
        self._mediator = mediator
        self._board = board
        self._metrics = metrics
        self._clock = SteadyClock()
        self._clock.sync(registered.now)
        self._holdings = Holdings()
        self._homes = Homes(self._holdings, consumer.topics)
        self._burial = Burial(consumer.name, self._clock, letter_bytes_max, schema_id_of(consumer))
        codec = open_codec(consumer, settings)
        record_bytes_max = int(settings.kafka.client.get(MESSAGE_BYTES_MAX, RECORD_BYTES_MAX))
        self._encoder = Encoder(codec, consumer.name, record_bytes_max)
        router = Router(tuple(consumer.projections.values()), tuple(consumer.commands.values()))
        engine = Engine(tracks_of(consumer), settings.engine_policy())
        self.worker = Worker(engine, self._holdings, self._clock, board, metrics)
        self._dependencies = Dependencies({POSTGRESQL: self._database_answers}, self._away, self._back)
        options = settings.client_options(consumer.name, consumer.topics)
        self._running = Running()
        self._watch = LoopWatch(board, self._running)
        self._incarnations: dict[str, int] = {}
        self._brakes = Brakes(
            store, consumer, registered.handler_ids, self._clock, board, metrics, settings.provider_policy(),
            self.worker.away, self.worker.back,
        )  # fmt: skip
        intake = EventIntake(consumer, codec, router, self._incarnations, self._unmatched)
        self._kafka: KafkaPort = KafkaThread(
            options, intake, self.worker, clock=self._clock, revoke_budget_s=settings.worker.drain_budget_s
        )
        self._producer: ProducerPort = KafkaProducer(options, max(letter_bytes_max.values(), default=None))
        self._reader: ReaderPort = KafkaReader(options)
        board.polled_at = self._kafka.polled_at
        metrics.set("handlers_gone", len(registered.gone))
        metrics.set("consumers_gone", registered.gone_consumers)
        ledger = Ledger(store, ask=asker(mediator), gate=self._brakes.gate, clock=self._clock)
        self._effects = Effects(ledger, app.effects, consumer.name, named_effects(consumer))
        self._reconciler = self._reconcile(ledger, app)
        self._sealer = Sealer(store, self._clock, f"{os.getpid()} {self._clock.new_id()[:8]}")
        self._assemble(intake)

    # ----------------------------------------------------------------------------------------------------- assembly

    def _assemble(self, intake: EventIntake) -> None:
        consumer, store, name, wait = self._consumer, self._store, self._consumer.name, self._dependencies.wait
        ids = self._registered.handler_ids
        self._relay = Relay(store, name, self._homes, self._producer, self._clock, wait, self._blocked, self._published)
        self._topics = TopicWatch(store, consumer, self._kafka, self._incarnations)
        commands = {c.name: BoundCommand(c, ids[c.name]) for c in consumer.commands.values()}
        projections = [
            bind(projection, ids[projection.name], self._mediator, self._encoder, self._running)
            for projection in consumer.projections.values()
        ]
        appliers = self._appliers(projections)
        self._runner, attempts, parked = self._commands_way()
        runner = self._runner
        raisers = self._raisers(appliers, commands)
        self._slow_way = SlowWay(
            store, name, self._holdings, self._homes, intake, ids, commands,
            {bound.handler_id: bound for bound in projections},
            runner, attempts, self._burial, self._dependencies, self._brakes.meter, self._clock, self._relay.wake,
        )  # fmt: skip
        ownership, suspects = self._owners(intake, raisers)
        self._slow_way.assemble(suspects.row_alone, self.worker.turn)
        committer = Committer(
            store, name, raisers, self._kafka, self._holdings, self.worker.fenced, self.worker.not_committed,
            self._committed,
        )  # fmt: skip
        self.worker.assemble(
            Parts(
                self._kafka, self._receiver, ownership, committer, appliers, runner, commands, self._dependencies,
                parked, suspects.examine,
            )
        )  # fmt: skip
        self._housekeeping = Housekeeping(
            store, name, self.worker, self._kafka, self._holdings, self._homes, list(ids.values()), self._topics,
            self._board, self._metrics, self._clock, self._settings.dlq, self._brakes.look,
        )  # fmt: skip

    def _commands_way(self) -> tuple[CommandRunner, Attempts, ParkedKeys]:
        """From the intake's look into the inbox to the group that completes."""
        consumer, store, worker, wait = self._consumer, self._store, self.worker, self._dependencies.wait
        ids, name = self._registered.handler_ids, consumer.name
        tracks = {ids[command]: command for command in consumer.commands}
        parked = ParkedKeys(lambda handler, partition: worker.engine.point(tracks[handler], partition))
        rows = FailedRows(self._burial, self._metrics, self._clock)
        progress = EngineProgress(worker, self._relay.wake, lambda: self._slow_way.wake())
        self._completer = Completer(
            store, name, self._holdings, rows, progress, self._metrics, wait, parked, self._brakes.limits
        )
        self._brakes.assemble(self._completer.again)
        conflicts = Conflicts(self._brakes.dead, worker.spawn, self._completer.add, self._completer.drop)
        self._completer.assemble(conflicts.admitted, self._brakes.dead.admits_if_closed)
        attempts = Attempts(self._dependencies, self._metrics, self._clock)
        runner = CommandRunner(
            store, name, self._holdings, self._mediator, self._encoder, self._completer, self._dependencies,
            self._metrics, self._clock, attempts, self._effects, self._brakes.dead, parked, worker.returned,
            lambda item: worker.fenced(item.partition, item.epoch), worker.fail, self._running,
        )  # fmt: skip
        self._receiver = Receiver(
            store, name, consumer.scope, ids, self._holdings, self._burial, self._metrics, wait, worker.hand_on,
            worker.fenced, self._relay.wake, runner.in_flight.suspect, parked,
            [command.name for command in consumer.commands.values() if command.policy.on_failure == "block"],
            self._brakes.dead,
        )  # fmt: skip
        return runner, attempts, parked

    def _owners(self, intake: EventIntake, raisers: dict[str, Raiser]) -> tuple[Ownership, Suspects]:
        """Who takes partitions over, and what is done where the last owner was killed."""
        consumer, store, name, wait = self._consumer, self._store, self._consumer.name, self._dependencies.wait
        judge = Judge(
            store, name, consumer.scope, self._registered.handler_ids, [binding.key for binding in self._bindings()],
            self._burial, self._reader, self._metrics, self._slow_way.give_up, self._relay.wake,
        )  # fmt: skip
        ownership = Ownership(
            store, consumer, self._bindings(), self._kafka, self._holdings, self._topics, self._clock, wait,
            lambda p, lost: self._metrics.count("gap_records", p.topic, str(p.number), by=lost), judge,
            self.worker.engine.is_given, known=self._registered.known,
        )  # fmt: skip
        suspects = Suspects(
            store, name, self._holdings, self.worker, intake, self._reader, self._receiver, raisers,
            Solo(self.worker, self._kafka, self._receiver, self._slow_way), wait, self._clock,
            self._settings.worker.window_records_max,
        )  # fmt: skip
        return ownership, suspects

    def _reconcile(self, ledger: Ledger, app: App) -> Reconciler:
        ids = self._registered.handler_ids
        return Reconciler(
            self._store, self._consumer.name, list(ids.values()), ledger, app.effects, self._clock,
            f"{os.getpid()} {self._clock.new_id()[:8]}",
            every_s=self._settings.effects.probe_every_s, alert_age_s=self._settings.effects.alert_age_s,
            told=self._brakes.tell, probed=self._brakes.probed, woke=lambda: self._slow_way.wake(),
        )  # fmt: skip

    def _bindings(self) -> list[Binding]:
        ids = self._registered.handler_ids
        bindings = [
            Binding(p.name, ids[p.name], p.version, stream_name(p)) for p in self._consumer.projections.values()
        ]
        return bindings + [Binding(name, ids[name], COMMAND_VERSION, name) for name in self._consumer.commands]

    def _appliers(self, projections: Sequence[BoundProjection]) -> dict[str, Applier]:
        tracks: dict[str, list[BoundProjection]] = {}
        for bound in projections:
            tracks.setdefault(stream_name(bound.projection), []).append(bound)
        return {
            track: Applier(
                self._store, self._consumer.name, members, self._holdings, self._burial, self._metrics, self._clock,
                self._dependencies.answers, self._relay.wake, self._brakes.dead, self._brakes.limits,
            )
            for track, members in tracks.items()
        }  # fmt: skip

    def _raisers(self, appliers: dict[str, Applier], commands: dict[str, BoundCommand]) -> dict[str, Raiser]:
        raisers: dict[str, Raiser] = {track: applier.raise_to for track, applier in appliers.items()}
        for track, bound in commands.items():
            raisers[track] = _lane_raiser(self._completer, track, bound.handler_id)
        return raisers

    # ------------------------------------------------------------------------------------------------------ running

    async def run(self, stop: asyncio.Event) -> int:
        """Run until asked to stop or unable to go on. Raises FatalError."""
        worker = self.worker
        background = (self._completer, self._relay, self._slow_way, self._housekeeping)
        for part in (*background, self._reconciler, self._sealer):
            worker.spawn(part.run())
        if self._consumer.commands and self._effects.declared:
            worker.spawn(self._effects.ledger.ready())
            worker.spawn(self._brakes.gate.look(self._effects.declared.values()))
        worker.spawn(self._learning.run())
        worker.spawn(self._learning.before(self._receiver.run))
        self._watch.start()
        self._kafka.start()
        log.info("started", consumer=self._consumer.name, topics=self._consumer.topics)
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((stopped, worker.failed), return_when=asyncio.FIRST_COMPLETED)
            if not worker.failed.done():
                await self._drain()
        finally:
            stopped.cancel()
            await self._take_apart()
            self._watch.stop()
        if worker.failed.done():
            raise worker.failed.result()
        log.info("stopped", consumer=self._consumer.name)
        return EXIT_OK

    async def _drain(self) -> None:
        """Quiet first, then what is in flight, then what is in the outbox: the budget is for all of it."""
        log.info("stopping", budget_s=self._settings.worker.drain_budget_s)
        self._board.stopping = True
        self.worker.quiet()
        self._slow_way.quiet()
        self._brakes.quiet()
        self._completer.quiet()
        self._effects.quiet(self._settings.worker.drain_budget_s)
        try:
            async with asyncio.timeout(self._settings.worker.drain_budget_s):
                await self.worker.drained.wait()
                await self._slow_way.drained()
                await self.worker.settled()
                await self._relay.drain(RELAY_DRAIN_S)
        except TimeoutError:
            log.warning("drain_cut_short", budget_s=self._settings.worker.drain_budget_s)

    async def _take_apart(self) -> None:
        """Leave the group while the loop still answers revocations, then end the tasks, then let the fences go."""
        last_turn_s = self._kafka.polled_at()
        self._board.polled_at = lambda: last_turn_s  # a client that was stopped does not answer, and probes go on
        await self._kafka.stop(self._settings.worker.close_budget_s)
        fences = self._holdings.fences([holding.partition for holding in self._holdings])
        await asyncio.gather(self._runner.call_off(), self.worker.cancel_all())
        await self._effects.ledger.close()
        await self._reconciler.give_up()
        await self._sealer.give_up()
        await self._producer.stop(RELAY_DRAIN_S)
        await self._reader.stop()
        if fences:  # also after an error: who leaves by itself was killed by no record
            try:
                async with asyncio.timeout(RELEASE_MAX_S), self._store.transaction(Writes.RELEASE) as conn:
                    await fence.release(conn, self._store.tables, self._consumer.name, fences)
            except STORE_ERRORS as error:
                log.warning("fences_not_released", error=type(error).__name__)

    # ------------------------------------------------------------------------------------------------------- telling

    async def _database_answers(self) -> bool:
        try:
            await self._store.database.ping()
        except STORE_ERRORS:
            return False
        return True

    def _away(self, name: str) -> None:
        log.warning("dependency_away", dependency=name)
        if is_provider(name):  # its calls wait where they are, and its breaker is told by itself
            return
        self._board.away(name)
        self._metrics.set("dependency_away", 1, name)
        self.worker.away(name)

    def _back(self, name: str) -> None:
        log.info("dependency_back", dependency=name)
        if is_provider(name):
            return
        self._board.back(name)
        self._metrics.set("dependency_away", 0, name)
        self.worker.back(name)

    def _unmatched(self, topic: str, type_name: str) -> None:
        self._metrics.count("unmatched", topic, self._metrics.type_label(type_name))

    def _committed(self, answer: CommitAnswer) -> None:
        self._metrics.count("commits", answer.value)

    def _published(self, sent: int, failed: int) -> None:
        self._metrics.count("outbox_published", "delivered", by=sent)
        self._metrics.count("outbox_published", "failed", by=failed)

    def _blocked(self, topic: str, why: str) -> None:
        log.error("outbox_topic_blocked", topic=topic, why=why)


RELEASE_MAX_S: Final = 5.0
"""A database that is away holds up no process that wants to leave: the next owner counts an unclean end, no more."""

RELAY_DRAIN_S: Final = 2.0
"""What does not go out within two seconds of a stop goes out by the next owner: the rows are safe."""


def letter_limits(settings: Settings, consumer: Consumer) -> dict[str, int]:
    """How large a letter each dead-letter topic takes; nothing where nobody answers: then the topic says so itself."""
    admin = Admin(admin_config(settings.client_options(consumer.name, consumer.topics)))
    produced = settings.kafka.client.get(MESSAGE_BYTES_MAX)
    try:
        topics = letter_topics.look(admin, consumer.name, consumer.topics)
    except TransientError as error:
        log.warning("letter_topics_not_known", error=str(error))
        return {}
    return letter_topics.letter_bytes_max(topics, None if produced is None else int(produced))


def schema_id_of(consumer: Consumer) -> SchemaIdOf:
    """How a letter learns the schema id of a value: from its framing, where the codec frames."""
    return _framed_schema_id if isinstance(consumer.codec, Avro) else lambda _: None


def _framed_schema_id(record: Record) -> int | None:
    try:
        return framing.schema_id(record)
    except RecordError:
        return None


def _lane_raiser(completer: Completer, track: str, handler_id: int) -> Raiser:
    return lambda points: completer.raise_to(track, handler_id, points)


def open_codec(consumer: Consumer, settings: Settings) -> Codec:
    """The consumer's codec, ready for use, with the payload types that its handlers take."""
    codec = consumer.codec.open(settings.codec_settings())
    codec.types(consumer.payload_types())
    return codec
