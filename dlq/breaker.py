"""The breaker on dead letters: when the dead are too many to be the events' own fault. No IO; time is an argument.

It is asked before the letters of an event, or of a batch, are written: what was acknowledged as dead cannot be taken
back. While it is closed it looks at two figures, the dead in a row and the share of the dead in a window of the last
events. Open, it admits nobody; after `retry_after_s` it lets one be tried (`half_open`): whether that one goes well
closes it, with nothing remembered, or opens it for as long again. One that never says how it ended (its partition went
away) is followed by another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple, final

from ..inbox.breaker_phase import Phase
from .policy import BreakerPolicy


class Run(NamedTuple):
    """So many events in a row that ended alike."""

    dead: bool
    events: int


def runs_of(outcomes: Iterable[bool]) -> tuple[Run, ...]:
    """Outcomes in their order (True: dead), as runs.

    >>> runs_of([True, True, False])
    (Run(dead=True, events=2), Run(dead=False, events=1))
    """
    return tuple(Run(dead, sum(1 for _ in same)) for dead, same in groupby(outcomes))


@final
class BreakerState:
    """What the breaker of one handler has seen. Owned by whoever asks it; never asked from two threads."""

    __slots__ = ("_fine", "_policy", "_seen", "_tried_s", "opened_s", "phase", "why")

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._seen = _Window(policy.window)
        self._fine = 0
        """Good ends behind what the window has seen: said for each event, they are looked at with the next dead one."""
        self._tried_s = 0.0
        self.phase = Phase.CLOSED
        self.opened_s = 0.0
        self.why = ""

    def fine(self, events: int) -> None:
        """So many events came to a good end. Of one that was let in for a try this closes the breaker."""
        if self.phase is Phase.HALF_OPEN:
            self.close()
        elif self.phase is Phase.CLOSED:
            self._fine += events

    def not_fine(self) -> None:
        """One that was said to be fine is not: it turned out to be a conflict when it was claimed."""
        self._fine = max(0, self._fine - 1)

    def admit(self, runs: Iterable[Run], now_s: float) -> bool:
        """Whether the dead among these events may be written; then all of them count as seen.

        If not, none of them counts: they are to be tried again once `may_try` says so, or the breaker is closed.
        """
        runs = tuple(runs)
        if self.phase is Phase.CLOSED:
            return self._admit_closed(runs, now_s)
        if self.phase is Phase.HALF_OPEN:
            if self._is_good(runs):
                self.close()
                return True
            self._open(self.why, now_s)
        return False

    def may_try(self, now_s: float) -> bool:
        """Whether the one who asks may be tried now; says yes to one of them each `retry_after_s`."""
        if self.phase is Phase.CLOSED or self.wait_s(now_s) > 0:
            return False
        self.phase, self._tried_s = Phase.HALF_OPEN, now_s
        return True

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next one may be tried; a clock that went back makes nobody wait longer."""
        since_s = self._tried_s if self.phase is Phase.HALF_OPEN else self.opened_s
        return max(0.0, self._policy.retry_after_s - max(0.0, now_s - since_s))

    def close(self) -> None:
        """As new: a try went well, or a person has looked."""
        self.phase, self.why = Phase.CLOSED, ""
        self._seen, self._fine = _Window(self._policy.window), 0

    def _admit_closed(self, runs: tuple[Run, ...], now_s: float) -> bool:
        if self._fine:
            self._seen.add(Run(False, self._fine))
            self._fine = 0
        for run in runs:
            self._seen.add(run)
            if run.dead and (why := self._too_much(self._seen)):
                self._open(why, now_s)  # what was seen is forgotten when it closes: it need not be as it was
                return False
        return True

    def _too_much(self, seen: _Window) -> str:
        policy = self._policy
        if seen.row > policy.row_max:
            return f"{seen.row} events in a row would be dead, {policy.row_max} may be"
        if seen.events >= policy.seen_min and seen.dead > policy.share_max * seen.events:
            return f"{seen.dead} of the last {seen.events} events would be dead, {policy.share_max:.0%} may be"
        return ""

    def _is_good(self, runs: tuple[Run, ...]) -> bool:
        """A batch that is tried may hold some that are dead of their own fault; one event is dead or it is not."""
        events, dead = sum(run.events for run in runs), sum(run.events for run in runs if run.dead)
        return dead <= self._policy.share_max * events and dead < events

    def _open(self, why: str, now_s: float) -> None:
        self.phase, self.why, self.opened_s = Phase.OPEN, why, now_s


@final
class _Window:
    """The last `size` outcomes as runs: as many entries as there were changes, however large the window is."""

    __slots__ = ("_runs", "_size", "dead", "events", "row")

    def __init__(self, size: int) -> None:
        self._size = size
        self._runs: deque[Run] = deque()
        self.events = 0
        self.dead = 0
        self.row = 0

    def add(self, run: Run) -> None:
        self.row = self.row + run.events if run.dead else 0
        if self._runs and self._runs[-1].dead == run.dead:
            self._runs[-1] = Run(run.dead, self._runs[-1].events + run.events)
        else:
            self._runs.append(run)
        self.events += run.events
        self.dead += run.events * run.dead
        self._forget(self.events - self._size)

    def _forget(self, events: int) -> None:
        while events > 0:
            oldest = self._runs[0]
            gone = min(events, oldest.events)
            self.events -= gone
            self.dead -= gone * oldest.dead
            events -= gone
            if gone == oldest.events:
                self._runs.popleft()
            else:
                self._runs[0] = Run(oldest.dead, oldest.events - gone)
