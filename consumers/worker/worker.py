"""The shell's one loop: signals go into the engine, its actions are carried out. All branching is in the engine.

Threads: the client thread calls the `Listener` methods, which only hop onto the event loop. Everything else here runs
on the loop. A task that ends with an error ends the worker; which errors a task may meet and live on is the task's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

import structlog

from ...dlq.failure_text import full_message
from ...inbox.clock import Clock
from ...inbox.errors import DependencyError, FatalError, OwnershipLost
from ...inbox.event import Partition
from ...inbox.exception_slots import members_of
from ...inbox.faults import Fault, classify
from ...inbox.finishing import cancelled
from ...inbox.holding import Holdings
from ...inbox.store import STORE_ERRORS
from ...projections.apply import Applier
from ...projections.batch import Batch, Stretch
from ..client.ports import Chunk, ClientStopped, KafkaPort
from ..engine.engine import Engine
from ..engine.signals import (
    Action,
    Applied,
    Apply,
    Assigned,
    Commit,
    Delivered,
    DependencyAway,
    DependencyBack,
    Drained,
    Examine,
    Fenced,
    LetGo,
    Lost,
    NotCommitted,
    Pause,
    PauseCause,
    Quiet,
    Reached,
    Resume,
    Returned,
    Revoking,
    Seek,
    Signal,
    Start,
    TakeOver,
    Tick,
)
from ..health import HealthBoard
from ..metrics import Metrics
from .attempt import BoundCommand
from .commands import CommandRunner
from .committing import Committer
from .dependencies import Dependencies
from .handling import NothingToDo
from .ownership import Ownership
from .parked_keys import ParkedKeys
from .receiving import Receiver

log = structlog.get_logger(__name__)

POSTGRESQL = "postgresql"
"""The dependency that everything needs."""

CHUNKS_WAITING_MAX = 4
"""Chunks on their way to the engine, which counts only what it has: each holds at most an eighth of the window, so that
a blocked loop or a slow look into the inbox adds half of it.
"""

TURN_LOOK_S = 0.5
"""How soon a stop is noticed by what waits for its turn."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the worker's actions are carried out by."""

    kafka: KafkaPort
    receiver: Receiver
    ownership: Ownership
    committer: Committer
    appliers: Mapping[str, Applier]
    runner: CommandRunner
    commands: Mapping[str, BoundCommand]
    dependencies: Dependencies
    parked: ParkedKeys
    examine: Callable[[Examine], Coroutine[Any, Any, None]]


@final
class Worker:
    """One consumer in this process."""

    def __init__(self, engine: Engine, holdings: Holdings, clock: Clock, board: HealthBoard, metrics: Metrics) -> None:
        self.engine = engine
        self.failed: asyncio.Future[FatalError] = asyncio.get_running_loop().create_future()
        self.drained = asyncio.Event()
        self._holdings = holdings
        self._clock = clock
        self._board = board
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s: float | None = None
        self._committing = asyncio.Lock()
        self._parts: Parts | None = None
        self._owned: set[Partition] = set()
        self._came_back: dict[str, int] = {}
        self._telling = False
        self._handed_over = 0
        self._received = 0
        self._crowded = False
        self._curious: list[asyncio.Future[None]] = []
        self._doers: Mapping[type, Callable[[Any], object]] = {
            TakeOver: lambda a: self.spawn(self._take_over(a)),
            Seek: lambda a: self.parts.kafka.seek(a.partition, a.epoch, a.offset),
            Examine: lambda a: self.spawn(self.parts.examine(a)),
            Pause: lambda a: self.parts.kafka.pause(a.partitions),
            Resume: lambda a: self.parts.kafka.resume(a.partitions),
            Apply: lambda a: self.spawn(self._apply(a)),
            Start: self._start,
            Commit: lambda a: self.spawn(self._commit(a)),
            LetGo: lambda a: self.spawn(self.parts.committer.let_go(a)),
            Drained: lambda _: self.drained.set(),
        }

    @property
    def parts(self) -> Parts:
        """What carries out the actions; set once, before the first signal."""
        assert self._parts is not None, "the worker was not assembled"
        return self._parts

    def assemble(self, parts: Parts) -> None:
        """Give the worker its parts: they know it, so they are made after it."""
        self._parts = parts

    # ------------------------------------------------------------------------------------------- signals and actions

    def signal(self, signal: Signal) -> None:
        """Tell the engine, and do what it says, in its order."""
        if self.failed.done():
            return
        self._carry_out(self.engine.receive(signal, self._clock.monotonic_s()))
        self._set_timer()
        if self._curious:
            curious, self._curious = self._curious, []
            for waiting in curious:
                if not waiting.done():
                    waiting.set_result(None)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once this holds of the engine: looked at after each signal."""
        while not holds():
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._curious.append(waiting)
            await waiting

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            with suppress(ClientStopped):  # a stop overtook it: what it would have had read is read by the next owner
                self._doers[type(action)](action)

    def _set_timer(self) -> None:
        at_s = self.engine.wake_at_s()
        if at_s == self._timer_at_s:
            return
        self._timer_at_s = at_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_s is not None:
            delay_s = max(0.0, at_s - self._clock.monotonic_s())
            self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at_s = None
        self.signal(Tick())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run beside everything else; an error that comes out of it ends the worker."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ClientStopped):
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The worker cannot go on. The first error counts."""
        if self.failed.done():
            return
        unexpected = FatalError(f"unexpected {type(error).__name__}", fix="this is a bug of tidegate: see the log")
        found = _fatal_in(error)
        fatal = unexpected if found is None else found
        self.failed.set_result(fatal)  # first of all: to tell of it may fail
        self._board.fatal = full_message(fatal)  # a handler may have raised it
        if found is None:
            log.error("unexpected", error=type(error).__name__, exc_info=error)

    async def cancel_all(self) -> None:
        """End every task; what was in flight is undone by the database and read again."""
        await cancelled(self._tasks)
        if self._timer is not None:
            self._timer.cancel()

    # ------------------------------------------------------------------------------------------------------ doing it

    async def _take_over(self, action: TakeOver) -> None:
        started_s = self._clock.monotonic_s()
        self.parts.parked.drop(action.partition)
        answer = await self.parts.ownership.take(action.partition, action.epoch)
        result = "refused" if type(answer).__name__ == "Refused" else "taken"
        self._metrics.count("fence_takeovers", result)
        self._metrics.observe("fence_takeover_seconds", self._clock.monotonic_s() - started_s)
        self.signal(answer)

    async def _apply(self, action: Apply) -> None:
        applier = self.parts.appliers[action.track]
        batch = Batch([Stretch(s.partition, s.epoch, s.events, s.next_offset) for s in action.slices])
        started_s = self._clock.monotonic_s()
        lost = await self._until_applied(applier, batch)
        self._metrics.observe("batch_seconds", self._clock.monotonic_s() - started_s, action.track)
        self._metrics.observe("batch_events", sum(len(s.events) for s in action.slices), action.track)
        self.signal(Applied(action.track, action.batch_id, lost))

    async def _until_applied(self, applier: Applier, batch: Batch) -> frozenset[Partition]:
        """However long the database is away: the batch stays in memory, and reading pauses."""
        while True:
            try:
                return await applier.apply(batch)
            except DependencyError as error:
                await self.parts.dependencies.wait(error.dependency)
            except OwnershipLost:
                return frozenset(batch.partitions)
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                log.warning("batch_again", error=type(error).__name__)
                await self.parts.dependencies.wait(POSTGRESQL)

    def _start(self, action: Start) -> None:
        bound, runner = self.parts.commands[action.track], self.parts.runner
        for item in action.items:
            made = runner.make(bound, item)
            if isinstance(made, NothingToDo):
                self.returned(action.track)
            elif not runner.take_off(bound, item, made, self.spawn):
                self.spawn(runner.run(bound, item, made))

    async def _commit(self, action: Commit) -> None:
        async with self._committing:
            await self.parts.committer.commit(action)

    def fenced(self, partition: Partition, epoch: int) -> None:
        """The fence row did not come back to a writer of this partition."""
        log.warning("fence_lost", partition=str(partition))
        self.signal(Fenced(partition, epoch))

    def not_committed(self, partitions: Mapping[Partition, int]) -> None:
        """These offsets did not reach Kafka: they are said again with the next commit."""
        self.signal(NotCommitted(partitions))

    def away(self, dependency: str) -> None:
        """Everybody needs it: read no more, start nothing new."""
        self.signal(DependencyAway(dependency))

    def back(self, dependency: str) -> None:
        """It answers again."""
        self.signal(DependencyBack(dependency))

    async def settled(self) -> None:
        """Return once no commit to Kafka is under way."""
        async with self._committing:
            return

    def returned(self, track: str, count: int = 1) -> None:
        """A command's handler came back; those that do so in one turn of the loop are told together.

        -1: one that was said to have come back, because it waited for its next attempt, goes on. That is told with the
        next that come back, itself perhaps: meanwhile one too many may be started, and waits for a place (`Places`).
        """
        self._came_back[track] = self._came_back.get(track, 0) + count
        if count > 0 and not self._telling:
            self._telling = True
            self._loop.call_soon(self._tell_returned)

    def _tell_returned(self) -> None:
        self._telling = False
        came_back, self._came_back = self._came_back, {}
        for track, count in came_back.items():
            if count > 0:
                self.signal(Returned(track, count))
            elif count < 0:
                self._came_back[track] = self._came_back.get(track, 0) + count

    async def turn(self, track: str, gives_way: Callable[[], bool]) -> None:
        """Return when one more of this handler may begin, by its rate: for rows, which do not come through the engine.

        Raises OwnershipLost once the worker takes no new work, or the row `gives_way`.
        """
        while (wait_s := self.engine.turn_in_s(track, self._clock.monotonic_s())) > 0:
            await asyncio.sleep(min(wait_s, TURN_LOOK_S))
            if gives_way() or PauseCause.QUIET in self.engine.causes():
                raise OwnershipLost("it is not its turn any more")

    def hand_on(self, signal: Delivered | Reached) -> None:
        """The receiver is done with this."""
        self.signal(signal)

    def quiet(self) -> None:
        """Take no new work."""
        self.signal(Quiet())

    # --------------------------------------------------------------------- the client's Listener, in its own thread

    def assigned(self, partitions: Mapping[Partition, int]) -> None:
        """These partitions are ours."""
        self._metrics.count("rebalances", "assigned")
        self._owned.update(partitions)
        self._hop(self._on_assigned, dict(partitions))

    def revoking(self, partitions: Mapping[Partition, int], budget_s: float) -> None:
        """Kafka waits for an answer."""
        self._metrics.count("rebalances", "revoked")
        self._owned.difference_update(partitions)
        self._hop(self.signal, Revoking(dict(partitions), budget_s))

    def lost(self, partitions: Mapping[Partition, int]) -> None:
        """Somebody else's already."""
        self._metrics.count("rebalances", "lost")
        self._owned.difference_update(partitions)
        self._hop(self._on_lost, dict(partitions))

    def delivered(self, chunk: Chunk) -> None:
        """Records came. Too many on their way, and the engine cannot know that it is full: then this thread pauses.

        1. This thread finds too many, and pauses. 2. The loop gets them through, before it can know of the pause.
        3. Nothing more is read, so nothing would come through and end it. Hence the last line.
        """
        self._handed_over += 1
        self._hop(self._on_delivered, chunk)
        if self._handed_over - self._received >= CHUNKS_WAITING_MAX:
            self.parts.kafka.pause(frozenset(self._owned))
            self._crowded = True
            self._hop(self._resume)

    def reached(self, partition: Partition, epoch: int, position: int) -> None:
        """The position moved over a gap."""
        self._hop(self._on_reached, Reached(partition, epoch, position))

    def stalled(self, partition: Partition, epoch: int, error: DependencyError) -> None:
        """The registry is away for this partition."""
        self._hop(self._board.away, error.dependency)
        log.warning("decoding_waits", partition=str(partition), why=str(error))

    def recovered(self, partition: Partition, epoch: int) -> None:
        """It answers again."""
        self._hop(self._on_recovered)

    def topic_error(self, topic: str, error: str | None) -> None:
        """A subscription does not work, or works again."""
        self._board.topic_error(topic, error)
        self._metrics.set("subscription_error", 0 if error is None else 1, topic)
        log.warning("subscription_error" if error else "subscription_works", topic=topic, error=error)

    def offset_reset(self, partition: Partition, epoch: int) -> None:
        """The position is out of the log's range."""
        self._hop(self.fenced, partition, epoch)

    def fatal(self, error: FatalError) -> None:
        """The client cannot go on."""
        self._hop(self.fail, error)

    def _hop(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("after_the_end", what=function.__name__)

    def _on_assigned(self, partitions: dict[Partition, int]) -> None:
        self.signal(Assigned(partitions))
        self._board.assigned = len(self.engine.progress())

    def _on_lost(self, partitions: dict[Partition, int]) -> None:
        held = [partition for partition, epoch in partitions.items() if self._holdings.current(partition, epoch)]
        fences = self._holdings.fences(held)
        for partition, epoch in partitions.items():
            self._holdings.drop(partition, epoch)
            self.parts.parked.drop(partition)
        self.signal(Lost(partitions))
        if fences:
            self.spawn(self.parts.ownership.live_on(fences))
        self._board.assigned = len(self.engine.progress())

    def _on_delivered(self, chunk: Chunk) -> None:
        for part in chunk.parts:
            taken = part.taken
            self._metrics.count(
                "records_consumed",
                part.partition.topic,
                str(part.partition.number),
                by=len(taken.events) + len(taken.rejects),
            )
        self.parts.receiver.put_through(chunk, self._is_through)

    def _is_through(self) -> None:
        """One chunk less is on its way to the engine."""
        self._received += 1
        self._resume()

    def _resume(self) -> None:
        if self._crowded and self._handed_over - self._received <= 1:
            self._crowded = False
            progress = self.engine.progress().items()
            self.parts.kafka.resume(frozenset(partition for partition, facts in progress if not facts.paused))

    def _on_reached(self, reached: Reached) -> None:
        self.parts.receiver.put_through(reached)

    def _on_recovered(self) -> None:
        self._board.back("schema-registry")


def _fatal_in(error: BaseException) -> FatalError | None:
    """The fatal error among those that a task group ended with, or the error itself."""
    if isinstance(error, FatalError):
        return error
    return next((fatal for member in members_of(error) if (fatal := _fatal_in(member)) is not None), None)
