"""The two ways in which a backfill handles a chunk's events: as a projection's batch, and as commands.

Both are the ways of the worker, with its attempts, rules, claims and rows; they stand under the run's own fence.
Nothing here moves a checkpoint: how far the run is stands in its journal.

What if the live worker handles the same event at this moment? Both may run the handler; of a command one claim comes
back, and the other transaction is undone (what it did through `ctx.tx` and `ctx.publish` with it, and of its calls the
ledger knows). A projection's run has claims of its own, and its writes are guarded by the row that they go to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Protocol, final

import structlog

from ...inbox import lanes
from ...inbox.checkpoint import Mismatch
from ...inbox.errors import DependencyError, OwnershipLost
from ...inbox.event import Event, Partition
from ...inbox.faults import Fault, classify
from ...inbox.identity import key_hash16
from ...inbox.outbox import NewOutgoing
from ...inbox.store import STORE_ERRORS, Store
from ...projections.apply import Applier
from ...projections.batch import Batch, Stretch
from ..engine.signals import Finished, LaneItem
from ..worker.commands import BoundCommand, CommandRunner
from ..worker.completing import Completer
from ..worker.handling import NothingToDo
from ..worker.parked_keys import Lane, ParkedKeys
from ..worker.worker import POSTGRESQL
from .reading import EPOCH

log = structlog.get_logger(__name__)

Wait = Callable[[str], Awaitable[None]]


class Way(Protocol):
    """Handles events, in their order."""

    async def handle(self, partition: Partition, events: Sequence[Event[Any]], next_offset: int) -> None:
        """Return once each has come to a durable end: claimed, or a row. Raises OwnershipLost and FatalError."""
        ...


async def moves_none(*_: object) -> list[Mismatch]:
    """In the place of `checkpoint.move`: a run has no checkpoints."""
    return []


@final
class ProjectionWay:
    """One batch a chunk."""

    def __init__(self, applier: Applier, wait_for: Wait) -> None:
        self._applier = applier
        self._wait_for = wait_for

    async def handle(self, partition: Partition, events: Sequence[Event[Any]], next_offset: int) -> None:
        """See `Way`."""
        batch = Batch([Stretch(partition, EPOCH, tuple(events), next_offset)])
        while True:
            try:
                if await self._applier.apply(batch):
                    raise OwnershipLost(f"{partition} of this backfill was taken by another process")
                return
            except DependencyError as error:
                await self._wait_for(error.dependency)
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                log.warning("batch_again", error=type(error).__name__)
                await self._wait_for(POSTGRESQL)


@final
class Landings:
    """What the completer reports to: who waits for an offset's end learns of it. A `Progress` without an engine."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[Partition, int], asyncio.Future[None]] = {}
        self.position = 0
        """Below it everything of the partition that is read now is done."""

    def expect(self, partition: Partition, offset: int) -> asyncio.Future[None]:
        """Done once the event at this offset is durable."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[(partition, offset)] = waiting
        return waiting

    def fail(self, error: BaseException) -> None:
        """Nobody will hear of it any more."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(error)

    def prospect(self, track: str, partition: Partition, epoch: int, offsets: Sequence[int]) -> int | None:
        """No checkpoint is moved."""
        return None

    def running(self) -> int:
        """Nobody is waited for."""
        return 0

    def finished(self, signals: Sequence[Finished]) -> None:
        """These are durable."""
        for signal in signals:
            for offset in signal.offsets:
                waiting = self._waiting.pop((signal.partition, offset), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)

    def wrote_outbox(self, new: Sequence[NewOutgoing]) -> None:
        """The live worker relays it: its home is there."""

    def queued(self) -> None:
        """The live worker takes it up."""

    def lost(self, partition: Partition, epoch: int) -> None:
        """The fence did not come back."""
        self.fail(OwnershipLost(f"{partition} of this backfill was taken by another process"))


@final
class CommandWay:
    """Side by side across keys, one after the other within one; behind a key that is parked events queue up."""

    def __init__(
        self, store: Store, bound: BoundCommand, runner: CommandRunner, completer: Completer, landings: Landings,
        parked: ParkedKeys, wait_for: Wait,
    ) -> None:  # fmt: skip
        self._store = store
        self._bound = bound
        self._runner = runner
        self._landings = landings
        self._parked = parked
        self._wait_for = wait_for
        self._flushing = asyncio.ensure_future(completer.run())
        self._flushing.add_done_callback(self._ended)

    async def close(self) -> None:
        """Nothing is handled any more."""
        self._flushing.cancel()
        await asyncio.wait((self._flushing,))

    def _ended(self, flushing: asyncio.Future[None]) -> None:
        """What the completer cannot write, nobody waits for in vain."""
        if not flushing.cancelled() and (error := flushing.exception()) is not None:
            self._landings.fail(error)

    async def handle(self, partition: Partition, events: Sequence[Event[Any]], next_offset: int) -> None:
        """See `Way`."""
        self._landings.position = events[0].offset
        if self._bound.command.policy.on_failure == "block":
            await self._look_for_parked(partition, events, next_offset)
        streams: dict[bytes | int, list[Event[Any]]] = {}
        alone = count()
        for event in events:
            key = event.record.key
            streams.setdefault(next(alone) if key is None else key, []).append(event)
        ended = await asyncio.gather(
            *(self._in_order(partition, stream) for stream in streams.values()), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error

    async def _in_order(self, partition: Partition, events: Sequence[Event[Any]]) -> None:
        for event in events:
            item = LaneItem(partition, EPOCH, event.offset, event)
            landed = self._landings.expect(partition, event.offset)
            made = self._runner.make(self._bound, item)
            if not isinstance(made, NothingToDo):
                await self._runner.run(self._bound, item, made)
            await landed

    async def _look_for_parked(self, partition: Partition, events: Sequence[Event[Any]], next_offset: int) -> None:
        """Asked until it is answered: a key that is parked must not be missed."""
        handler_id = self._bound.handler_id
        asked = {
            (handler_id, event.topic, key_hash16(key)): Lane(handler_id, event.topic, key)
            for event in events
            if (key := event.record.key) is not None
        }
        while True:
            self._parked.looking_up(partition, next_offset)
            try:
                async with self._store.look() as conn:
                    found = await lanes.parked(conn, self._store.tables, asked.keys())
                break
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                await self._wait_for(POSTGRESQL)
        for lane in found:
            self._parked.found(asked[lane], partition, next_offset)
