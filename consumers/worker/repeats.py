"""What an event is whose id is known already: a repeat, or another event under the same id. No IO but the probe given.

An id that is in flight in this process holds its repeat back until the first one is durable; then the inbox is asked
before anything runs. What the intake's probe found in the failure table is asked for again as well: meanwhile it may
have been replayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, final

from ...inbox.claim import FailureFound
from ...inbox.outcome import Dead, Reason

CONFLICT: Final = Dead(Reason.CONFLICT, "another record with this event id and different bytes was handled before")

REPEAT: Final = Dead(Reason.REJECTED, "a repeat of an event that stands in the failure table")
"""Becomes a row that is linked to the first one's, and no letter."""

SUSPECTS_MAX: Final = 10_000
"""Remembered at most: what is forgotten runs once too often, and the completing transaction still finds out."""


def standing(payload_hash: int, found: Sequence[FailureFound]) -> Dead:
    """What an event is of whose id `found` stands in the failure table."""
    return REPEAT if any(row.payload_hash == payload_hash for row in found) else CONFLICT


Key = tuple[int, bytes]
"""A handler's number and an event id."""


@final
class Flight:
    """An id that is being handled here. Call it once it is durable."""

    __slots__ = ("_flying", "_key", "_waiting")

    def __init__(self, flying: dict[Key, Flight], key: Key) -> None:
        self._flying = flying
        self._key = key
        self._waiting: asyncio.Event | None = None
        flying[key] = self

    def __call__(self) -> None:
        if self._flying.get(self._key) is self:
            del self._flying[self._key]
        if self._waiting is not None:
            self._waiting.set()

    async def landed(self) -> None:
        """Return once it is durable."""
        if self._waiting is None:
            self._waiting = asyncio.Event()
        await self._waiting.wait()


@final
class InFlight:
    """Which ids are being handled here. Owned by the event loop."""

    def __init__(self) -> None:
        self._flying: dict[Key, Flight] = {}
        self._suspects: dict[Key, None] = {}

    def suspect(self, key: Key) -> None:
        """The failure table knows this id: ask before it runs."""
        self._suspects[key] = None
        if len(self._suspects) > SUSPECTS_MAX:
            del self._suspects[next(iter(self._suspects))]

    async def enter(self, key: Key) -> tuple[Flight, bool]:
        """Wait until nobody handles the id. Gives back what to call once it is durable, and whether to ask first."""
        ask = key in self._suspects
        while (other := self._flying.get(key)) is not None:
            await other.landed()
            ask = True
        return self.enter_free(key), ask

    def is_free(self, key: Key) -> bool:
        """Nobody handles the id, and nothing is to be asked first."""
        return key not in self._flying and key not in self._suspects

    def enter_free(self, key: Key) -> Flight:
        """Handle an id that nobody handles."""
        return Flight(self._flying, key)
