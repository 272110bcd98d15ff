"""Watches the event loop from a thread of its own: when it stops turning, the log says which handler stands in its way.

A handler that blocks the loop cannot be interrupted; but Kafka is still polled, probes are still answered, and this
says where to look.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, final

import structlog

from ...dlq.guard import thread_stacks
from ...inbox.event import Event
from ..health import HealthBoard

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.5
BLOCKED_S: Final = 2.0
"""A loop that stands still for two seconds is blocked: our own longest step is a batch of some milliseconds."""


@final
class Running:
    """Which handlers run now, and on what. Written by the loop, read by the watching thread: each step is one dict
    operation, which is atomic.
    """

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, Event[Any]]] = {}
        self._number = 0

    def begin(self, handler: str, event: Event[Any]) -> int:
        """A handler runs on this event (or on a batch that begins with it). Gives back what to `end`."""
        self._number = number = self._number + 1
        self._running[number] = (handler, event)
        return number

    def end(self, number: int) -> None:
        """It came back."""
        del self._running[number]

    @contextmanager
    def handling(self, handler: str, event: Event[Any]) -> Generator[None]:
        """The same for a block."""
        number = self.begin(handler, event)
        try:
            yield
        finally:
            self.end(number)

    def describe(self) -> list[str]:
        """Each running handler with the place of its event."""
        running = tuple(self._running.values())
        return [f"{handler} at {event.topic}/{event.partition}@{event.offset}" for handler, event in running]


@final
class LoopWatch:
    """The thread. `start` and `stop` are called on the loop."""

    def __init__(self, board: HealthBoard, running: Running) -> None:
        self._board = board
        self._running = running
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tidegate-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()

    def _watch(self) -> None:
        told = False
        while not self._stopped.wait(LOOK_S):
            blocked = self._board.loop_stall_s() > BLOCKED_S
            if blocked and not told:
                log.warning(
                    "handler_blocks_the_loop",
                    stall_s=round(self._board.loop_stall_s(), 1),
                    running=self._running.describe(),
                    stacks=thread_stacks(),
                    fix="make it `def` (it gets a thread of its own), or await what it waits for",
                )
            told = blocked
