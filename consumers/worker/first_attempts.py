"""Attempts of commands that are under way: one task for each, one timer for all of a command.

Nearly every command ends at its first attempt, with its handler coming back and nothing else to be said. For that the
handler's own task is all that is needed: who waits for it is a function, not another task. Whatever does not end so
goes on as a task (`commands`), with what came out of this attempt in hand.

Owned by the event loop. What if a handler is past its deadline, or the worker stops? Then it is given up from here, and
its coming back means nothing any more: whoever gave it up waits for it (`guard`), because a call may be open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, final

from ...dlq.guard import call_off
from ...dlq.retry import RetryState
from .attempt import Attempt
from .repeats import Flight

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
"""Runs a coroutine as a task whose error ends the worker."""


@final
class FirstAttempt:
    """`task` runs the handler; `began_s` is of `time.perf_counter`. `given_up`: somebody else waits for it.

    Where it is not the event's first one after all, `state` tells of those before it, which began at `started_s`.
    """

    __slots__ = ("attempt", "began_s", "flight", "given_up", "running", "started_s", "state", "task")

    def __init__(
        self,
        attempt: Attempt,
        flight: Flight,
        task: asyncio.Task[Any],
        began_s: float,
        running: int,
        started_s: float | None = None,
        state: RetryState | None = None,
    ) -> None:
        self.attempt = attempt
        self.flight = flight
        self.task = task
        self.began_s = began_s
        self.running = running
        self.given_up = False
        self.started_s = began_s if started_s is None else started_s
        self.state = state


@final
class FirstAttempts:
    """Those of one command, in the order in which they began, which is that of their deadlines.

    `overdue` gets each that is past `deadline_s`.
    """

    def __init__(self, deadline_s: float, overdue: Callable[[FirstAttempt], object]) -> None:
        self._deadline_s = deadline_s
        self._overdue = overdue
        self._under_way: dict[FirstAttempt, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, first: FirstAttempt) -> None:
        """It began."""
        self._under_way[first] = None
        if self._timer is None:
            self._look_at(first.began_s + self._deadline_s)

    def remove(self, first: FirstAttempt) -> bool:
        """It came back. False: it was given up before."""
        if first.given_up:
            return False
        del self._under_way[first]
        return True

    async def call_off(self) -> None:
        """The worker stops: cancel them all; calls that are open come to their end first."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left, self._under_way = self._under_way, {}
        for first in left:
            first.given_up = True
        await asyncio.gather(*(call_off(first.task, first.attempt) for first in left))

    def _look_at(self, at_s: float) -> None:
        wait_s = max(0.0, at_s - time.perf_counter())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = time.perf_counter()
        while self._under_way:
            first = next(iter(self._under_way))
            if (due_s := first.began_s + self._deadline_s) > now_s:
                self._look_at(due_s)
                return
            del self._under_way[first]
            first.given_up = True
            self._overdue(first)
