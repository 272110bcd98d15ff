"""Where events wait that a breaker on dead letters holds back: each handler of a consumer has one of its own.

Whoever is about to write an event's letter asks `admits` first, and what went well is told to `fine`. Held back, an
event is neither handled nor dead: it stays in memory, incomplete, so that no offset passes it; the places of its
handler fill up, then the window does, and reading pauses. What stands in the queue stays there (`admits_now`), and one
row of it is tried at a time. Nothing is written, so whatever ends the process meanwhile loses nothing.

What if the one that is tried goes away with its partition? It never says how it ended, and after `retry_after_s` more
another one is let in. What if the process is asked to stop? Those who wait leave as if their partition were gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, final

import structlog

from ..inbox.breaker_phase import Phase
from ..inbox.clock import Clock
from ..inbox.errors import OwnershipLost
from ..inbox.meter import Meter
from .breaker import BreakerState, Run, runs_of
from .policy import BreakerPolicy

ONE_DEAD: Final = (Run(True, 1),)
"""A single event that failed for good."""

Told = Callable[[str, Phase, str], None]
"""(handler, phase, why): a breaker went over into this phase."""

log = structlog.get_logger(__name__)


@final
class DeadBreakers:
    """Owned by the event loop. Handlers without a policy are never held back."""

    def __init__(self, policies: Mapping[str, BreakerPolicy | None], clock: Clock, told: Told) -> None:
        self._states = {name: BreakerState(policy) for name, policy in policies.items() if policy is not None}
        self._changed = {name: asyncio.Event() for name in self._states}
        self._clock = clock
        self._told = told
        self._quiet = False

    def fine(self, handler: str, events: int = 1) -> None:
        """So many events of the handler came to a good end. Once one may be tried, any of them does for that one."""
        state = self._states.get(handler)
        if state is None or not events:
            return
        before = state.phase
        if before is Phase.OPEN:
            state.may_try(self._clock.monotonic_s())
        state.fine(events)
        if state.phase is not before:
            self._tell(handler, state)

    def not_fine(self, handler: str) -> None:
        """An event whose handler came back well, which was told, turned out to be a conflict: no row of dead ends."""
        if (state := self._states.get(handler)) is not None:
            state.not_fine()

    async def admits(self, handler: str, outcomes: Iterable[bool] | None = None) -> bool:
        """Asked before an event (`outcomes`: a batch, in its order, True for each that failed for good) is dead.

        True: write the letters. False, after a wait: let the handler have the event (the batch) again from the start,
        with its attempts counted anew, and ask again if it fails for good once more.

        Raises:
            OwnershipLost: the process stops; the event is dropped, undone, and read again by whoever is next.
        """
        state = self._states.get(handler)
        if state is None:
            return True
        admitted = self._ask(handler, state, outcomes)
        if not admitted:
            await self._until_tried(handler, state)
        return admitted

    def admits_now(self, handler: str) -> bool:
        """The same for one event that stands in the queue: False leaves it there, nobody waits."""
        state = self._states.get(handler)
        return state is None or self._ask(handler, state, None)

    def admits_if_closed(self, handler: str, outcomes: Iterable[bool] | None = None) -> bool:
        """The same for what no try can help, because others are in its way: it is none, and ends none of another."""
        state = self._states.get(handler)
        return state is None or (state.phase is Phase.CLOSED and self._ask(handler, state, outcomes))

    def _ask(self, handler: str, state: BreakerState, outcomes: Iterable[bool] | None) -> bool:
        before = state.phase
        admitted = state.admit(ONE_DEAD if outcomes is None else runs_of(outcomes), self._clock.monotonic_s())
        if state.phase is not before:
            self._tell(handler, state)
        return admitted

    def is_open(self, handler: str) -> bool:
        """No event of the handler goes on, but one now and then."""
        state = self._states.get(handler)
        return state is not None and state.phase is not Phase.CLOSED

    def is_due(self, handler: str) -> bool:
        """It is open, and one event could be tried."""
        state = self._states.get(handler)
        return state is not None and self.is_open(handler) and state.wait_s(self._clock.monotonic_s()) == 0

    def take_try(self, handler: str) -> bool:
        """Be the one that is tried, for an event that is at hand. False: somebody else is."""
        state = self._states.get(handler)
        if state is None or not state.may_try(self._clock.monotonic_s()):
            return False
        self._tell(handler, state)
        return True

    def close(self, handler: str) -> None:
        """A person has looked: whoever waits goes on, and what was seen is forgotten."""
        state = self._states.get(handler)
        if state is not None and state.phase is not Phase.CLOSED:
            state.close()
            self._tell(handler, state)

    def quiet(self) -> None:
        """The process stops: nobody waits any more."""
        self._quiet = True
        for changed in self._changed.values():
            changed.set()

    def phases(self) -> dict[str, tuple[Phase, str]]:
        """Each handler's phase, and why it is that."""
        return {name: (state.phase, state.why) for name, state in self._states.items()}

    async def _until_tried(self, handler: str, state: BreakerState) -> None:
        """Return once the breaker is closed, or whoever waits here is the one to be tried."""
        while state.phase is not Phase.CLOSED:
            if self._quiet:
                raise OwnershipLost(f"{handler}: held back by its breaker while the process stops")
            now_s = self._clock.monotonic_s()
            if self.take_try(handler):
                return
            changed = self._changed[handler]
            try:
                async with asyncio.timeout(state.wait_s(now_s)):
                    await changed.wait()
            except TimeoutError:
                continue

    def _tell(self, handler: str, state: BreakerState) -> None:
        if state.phase is Phase.OPEN:
            log.error("breaker_open", handler=handler, why=state.why, what="no event of the handler goes on")
        else:
            log.warning("breaker_moved", handler=handler, phase=state.phase.value)
        if state.phase is Phase.CLOSED:
            waiting, self._changed[handler] = self._changed[handler], asyncio.Event()
            waiting.set()
        self._told(handler, state.phase, state.why)


@final
class WatchedMeter:
    """The slow way's meter, with the breakers looking on: a good end is one for them too.

    Not for commands of the fast way, whose good ends are told as they come, nor for batches, whose outcomes are asked.
    """

    def __init__(self, meter: Meter, breakers: DeadBreakers) -> None:
        self._meter = meter
        self._breakers = breakers
        self.duplicates = meter.duplicates
        self.dead = meter.dead
        self.unknown = meter.unknown
        self.parked = meter.parked
        self.stale = meter.stale
        self.retried = meter.retried
        self.lost = meter.lost

    def handled(self, handler: str, n: int, seconds: float) -> None:
        """Events were handled in one run of a handler that took `seconds`."""
        self._meter.handled(handler, n, seconds)
        self._breakers.fine(handler, n)

    def handled_each(self, handler: str, seconds: Sequence[float]) -> None:
        """Events were handled, one in each run of these lengths."""
        self._meter.handled_each(handler, seconds)
        self._breakers.fine(handler, len(seconds))

    def skipped(self, handler: str, n: int) -> None:
        """There was nothing to do."""
        self._meter.skipped(handler, n)
        self._breakers.fine(handler, n)
