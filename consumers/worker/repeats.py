"""What an event is whose id is known already: a repeat, or another event under the same id. No IO but the probe given.

An id that is in flight in this process holds its repeat back until the first one is durable; then the inbox is asked
before anything runs. What the intake's probe found in the failure table is asked for again as well: meanwhile it may
have been replayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
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
class InFlight:
    """Which ids are being handled here. Owned by the event loop."""

    def __init__(self) -> None:
        self._flying: dict[Key, asyncio.Event] = {}
        self._suspects: dict[Key, None] = {}

    def suspect(self, key: Key) -> None:
        """The failure table knows this id: ask before it runs."""
        self._suspects[key] = None
        if len(self._suspects) > SUSPECTS_MAX:
            del self._suspects[next(iter(self._suspects))]

    async def enter(self, key: Key) -> tuple[Callable[[], None], bool]:
        """Wait until nobody handles the id. Gives back what to call once it is durable, and whether to ask first."""
        ask = key in self._suspects
        while (other := self._flying.get(key)) is not None:
            await other.wait()
            ask = True
        return self.enter_free(key), ask

    def is_free(self, key: Key) -> bool:
        """Nobody handles the id, and nothing is to be asked first."""
        return key not in self._flying and key not in self._suspects

    def enter_free(self, key: Key) -> Callable[[], None]:
        """Handle an id that nobody handles."""
        mine = self._flying[key] = asyncio.Event()

        def leave() -> None:
            if self._flying.get(key) is mine:
                del self._flying[key]
            mine.set()

        return leave
