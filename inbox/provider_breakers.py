"""A breaker for each provider that effects name: one that does not answer is left alone by all replicas.

Each replica counts its own failures in a row; the one that finds too many of them writes it down, and the others learn
within `LOOK_S`, because each looks that often, and never for an event of its own. After `retry_after_s` exactly one
call of the whole fleet is let through (compare-and-set); how it ends is what all go by.

What if the replica whose call is tried is killed, or its event never gets as far as the call? The try lapses after
`retry_after_s`, and another one gets it. What if a call that was sent before the breaker opened comes back? Its good
end says nothing new; only while this replica tries does an answer count as the try's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, final

import structlog

from . import breaker_rows
from .breaker_phase import Phase
from .clock import Clock
from .effect_rules import Effect
from .errors import DependencyError
from .points import Writes
from .store import STORE_ERRORS, Store

LOOK_S: Final = 1.0
"""How old a look at the shared row may be: a replica sends at most a second's worth of calls to a provider that is
known to be away, at the price of one small query a second while effects are under way."""

PREFIX: Final = "provider"
"""The first part of the name of a provider's row, and of the dependency that is reported."""


class ProviderAway(DependencyError):
    """A provider's breaker is open: its calls wait, nothing was sent, no attempt is counted."""

    def __init__(self, provider: str, wait_s: float, why: str) -> None:
        self.provider = provider
        self.wait_s = wait_s
        super().__init__(dependency_of(provider), f"its breaker is open ({why}); the next try is in {wait_s:.0f} s")


def dependency_of(provider: str) -> str:
    """The name under which a provider is reported as a dependency."""
    return f"{PREFIX}:{provider}"


def is_provider(dependency: str) -> bool:
    """Whether a dependency's name is a provider's: only those who call it wait for it."""
    return dependency.startswith(f"{PREFIX}:")


@final
@dataclass(frozen=True, slots=True)
class ProviderPolicy:
    """When a provider counts as away, and for how long it is left alone then."""

    failures_max: int = 10
    """So many calls in a row, of one replica, that nobody knows the end of or that were refused for overload. 10: a
    single lost connection takes a few calls with it."""
    retry_after_s: float = 15.0
    """Longer than a restart of the provider takes, short enough that a person does not wait for it."""


Told = Callable[[str, Phase, str], None]
"""(provider, phase, why): what this replica knows of the breaker changed."""


@dataclass(slots=True)
class _View:
    """What this replica knows of one provider. `due_s`: when one may be tried, by our own clock."""

    phase: Phase = Phase.CLOSED
    changes: int = 0
    due_s: float = 0.0
    why: str = ""
    looked_s: float = float("-inf")
    failures: int = 0
    trying: int | None = None
    moving: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def _nobody(provider: str, phase: Phase, why: str) -> None:
    """Nobody wants to know."""


log = structlog.get_logger(__name__)


@final
class ProviderBreakers:
    """Owned by the event loop. The empty name is no provider: always allowed, never counted."""

    def __init__(self, store: Store, clock: Clock, policy: ProviderPolicy | None = None, told: Told = _nobody) -> None:
        self._store = store
        self._clock = clock
        self._policy = policy or ProviderPolicy()
        self._told = told
        self._views: dict[str, _View] = {}

    def allows(self, provider: str) -> bool:
        """By a look that is young enough nothing stands in the way; False: ask `allow`."""
        if not provider:
            return True
        view = self._views.get(provider)
        return view is not None and view.phase is Phase.CLOSED and self._clock.monotonic_s() - view.looked_s < LOOK_S

    async def allow(self, provider: str) -> None:
        """Asked before a call's intent is written. Raises ProviderAway, or what the database raised."""
        if not provider:
            return
        view = self._views.setdefault(provider, _View())
        await self._refresh(provider, view)
        if view.phase is Phase.CLOSED or await self._is_tried(provider, view):
            return
        raise ProviderAway(provider, max(0.0, view.due_s - self._clock.monotonic_s()), view.why)

    async def look(self, provider: str) -> None:
        """Learn what the fleet knows, before there is a call that would wait for it."""
        with suppress(*STORE_ERRORS):
            await self._refresh(provider, self._views.setdefault(provider, _View()))

    async def report(self, provider: str, ok: bool, why: str = "") -> None:
        """How a call ended. `ok`: the provider answered, whatever it answered; else it did not, or was overloaded.

        `why` is shown to people: an exception's type, never its text. A database that is away is no news here.
        """
        if self.heard(provider, ok):
            await self.move(provider, ok, why)

    def heard(self, provider: str, ok: bool) -> bool:
        """Count how a call ended. True: the breaker's row has to move, which is `move`'s business."""
        if not provider:
            return False
        view = self._views.get(provider)
        if view is None:
            view = self._views[provider] = _View()
        view.failures = 0 if ok else view.failures + 1
        if view.moving:
            return False
        too_many = view.failures >= self._policy.failures_max and view.phase is Phase.CLOSED
        view.moving = view.trying is not None or too_many
        return view.moving

    async def move(self, provider: str, ok: bool, why: str = "") -> None:
        """Write down what `heard` found; contains what the database raises."""
        view = self._views[provider]
        try:
            if view.trying is not None:
                await self._settle(provider, view, ok, why)
            else:
                await self._trip(provider, view, why)
        except STORE_ERRORS as error:
            log.warning("breaker_not_written", provider=provider, error=type(error).__name__)
        finally:
            view.moving = False

    async def _refresh(self, provider: str, view: _View) -> None:
        if self._clock.monotonic_s() - view.looked_s < LOOK_S:
            return
        async with view.lock:
            now_s = self._clock.monotonic_s()
            if now_s - view.looked_s < LOOK_S:
                return
            name = _row(provider)
            async with self._store.look() as conn:
                found = await breaker_rows.look(conn, self._store.tables, [name], self._policy.retry_after_s)
            view.looked_s = now_s
            seen = found.get(name, breaker_rows.Seen(Phase.CLOSED, 0, 0.0, ""))
            if seen.changes != view.changes:
                self._learn(provider, view, seen)

    def _learn(self, provider: str, view: _View, seen: breaker_rows.Seen) -> None:
        view.changes, view.why, view.trying = seen.changes, seen.why, None
        view.due_s = self._clock.monotonic_s() + seen.wait_s
        if seen.phase is view.phase:
            return
        view.phase = seen.phase
        if seen.phase is Phase.CLOSED:
            view.failures = 0
        log.warning("provider_breaker", provider=provider, phase=seen.phase.value, why=seen.why)
        self._told(provider, seen.phase, seen.why)

    async def _is_tried(self, provider: str, view: _View) -> bool:
        """Whether ours is the one call of the fleet that is let through."""
        async with view.lock:
            if view.phase is Phase.CLOSED:
                return True
            if self._clock.monotonic_s() < view.due_s:
                return False
            wait_s = self._policy.retry_after_s
            async with self._store.transaction(Writes.BREAKER) as conn:
                mine = await breaker_rows.claim_try(
                    conn, self._store.tables, _row(provider), view.changes, retry_after_s=wait_s
                )
            view.looked_s = float("-inf")
            if mine is None:  # somebody else is, or our clocks differ: no event asks again before the next look
                view.due_s = self._clock.monotonic_s() + LOOK_S
                return False
            self._learn(provider, view, breaker_rows.Seen(Phase.HALF_OPEN, mine, wait_s, view.why))
            view.trying = mine
            return True

    async def _settle(self, provider: str, view: _View, ok: bool, why: str) -> None:
        mine, view.trying = view.trying, None
        assert mine is not None, "asked by the caller"
        async with self._store.transaction(Writes.BREAKER) as conn:
            await breaker_rows.settle(
                conn, self._store.tables, _row(provider), mine, ok=ok, why=why, retry_after_s=self._policy.retry_after_s
            )
        await self._look_now(provider, view)

    async def _trip(self, provider: str, view: _View, why: str) -> None:
        text = f"{view.failures} calls in a row without an answer, the last one: {why or 'no word'}"
        async with self._store.transaction(Writes.BREAKER) as conn:
            await breaker_rows.trip(
                conn, self._store.tables, _row(provider),
                why=text, failures=view.failures, retry_after_s=self._policy.retry_after_s,
            )  # fmt: skip
        await self._look_now(provider, view)

    async def _look_now(self, provider: str, view: _View) -> None:
        view.looked_s = float("-inf")
        await self._refresh(provider, view)


@final
class BreakerGate:
    """The ledger's gate before providers. Only what moves a breaker costs a statement, and no call waits for that."""

    def __init__(self, breakers: ProviderBreakers) -> None:
        self._breakers = breakers
        self._moves: set[asyncio.Task[None]] = set()

    async def look(self, effects: Collection[Effect]) -> None:
        """At their providers' breakers, before the first call."""
        for provider in {effect.provider for effect in effects if effect.provider}:
            await self._breakers.look(provider)

    def is_open(self, effect: Effect) -> bool:
        """See `ProviderGate`."""
        return self._breakers.allows(effect.provider)

    async def admit(self, effect: Effect) -> None:
        """Raises ProviderAway."""
        await self._breakers.allow(effect.provider)

    def ended(self, effect: Effect, answered: bool | None) -> None:
        """What says nothing about the provider does not count."""
        if answered is None or not self._breakers.heard(effect.provider, answered):
            return
        move = asyncio.get_running_loop().create_task(self._breakers.move(effect.provider, answered))
        self._moves.add(move)
        move.add_done_callback(self._moves.discard)

    async def settle(self) -> None:
        """Return once what was found is written."""
        if self._moves:
            await asyncio.wait(self._moves)


def _row(provider: str) -> str:
    return f"{PREFIX}/{provider}"
