"""Signals: the first asks for a clean stop, the second leaves at once, and a clean stop that hangs is ended."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, final

from ...inbox.errors import EXIT_FATAL

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@final
class Stopping:
    """Turns signals into one `asyncio.Event`.

    Python's own handlers are used, not the loop's: a handler function that blocks the loop in `time.sleep` would keep
    the loop from ever seeing the second signal. They run in the main thread between two instructions, so they only do
    what is safe there: set a flag, wake the loop, put into a reentrant queue.
    """

    def __init__(self, told: Callable[[], None], deadline_s: float, leave: Callable[[int], None] = os._exit) -> None:
        """`told` is called at the first signal. `deadline_s` is what a stop may take before the process is ended."""
        self._told = told
        self._deadline_s = deadline_s
        self._leave = leave
        self._asked = False
        self._armed: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wake: Callable[[], None] | None = None

    def listen(self) -> None:
        """From now on signals are ours. Called once, in the main thread."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._watch, name="tidegate-stopping", daemon=True).start()

    def event(self) -> asyncio.Event:
        """The event that the first signal sets; called in the loop. A signal that came before counts."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: _soon(loop, stop)
        if self._asked:
            stop.set()
        return stop

    def arm(self) -> None:
        """Whatever happens from here on, the process ends within the deadline."""
        self._armed.put(None)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            os.write(2, b"stopped at once: what was in flight is rolled back and will be handled again\n")
            self._leave(128 + number)
            return
        self._asked = True
        self._told()
        self.arm()
        if self._wake is not None:
            self._wake()

    def _watch(self) -> None:
        self._armed.get()
        ended = threading.Event()
        ended.wait(self._deadline_s)
        sys.stderr.write(f"the stop took longer than {self._deadline_s:.0f} s; where every thread stood:\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(sys.stderr)
        self._leave(EXIT_FATAL)


def _soon(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.set)
