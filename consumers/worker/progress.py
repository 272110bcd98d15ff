"""What the completer asks of the engine and tells it, as its port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from ...inbox.event import Partition
from ...inbox.outbox import NewOutgoing
from ..engine.signals import Finished
from .worker import Worker

WakeRelay = Callable[[Sequence[NewOutgoing]], None]
"""With letters that were just written, where there is nothing else."""


@final
class EngineProgress:
    """The engine behind the worker, as the completer sees it."""

    def __init__(self, worker: Worker, wake_relay: WakeRelay, wake_slow_way: Callable[[], None]) -> None:
        self._worker = worker
        self._wake_relay = wake_relay
        self._wake_slow_way = wake_slow_way

    def prospect(self, track: str, partition: Partition, epoch: int, offsets: Sequence[int]) -> int | None:
        """The commit point of the track if these offsets were finished; None for a stale epoch."""
        return self._worker.engine.prospect(track, partition, epoch, offsets)

    def running(self) -> int:
        """Handlers that are under way."""
        return self._worker.engine.running()

    def finished(self, signals: Sequence[Finished]) -> None:
        """These are durable."""
        for signal in signals:
            self._worker.signal(signal)

    def wrote_outbox(self, new: Sequence[NewOutgoing]) -> None:
        """There may be something to relay; or these letters alone, which stand there as they are here."""
        self._wake_relay(new)

    def queued(self) -> None:
        """The slow way may have something to take up."""
        self._wake_slow_way()

    def lost(self, partition: Partition, epoch: int) -> None:
        """The fence did not come back."""
        self._worker.fenced(partition, epoch)
