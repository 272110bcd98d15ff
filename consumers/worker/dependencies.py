"""Which dependencies are away, and when they are back: one health check for each, asked until it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, final

FIRST_WAIT_S: Final = 0.2
"""Most outages are a fail-over or a restart of a second: look again soon."""

WAIT_MAX_S: Final = 5.0
"""A dependency that came back is noticed within five seconds, and one that stays away is hardly bothered."""

CHECK_MAX_S: Final = 5.0
"""A health check that takes longer has failed."""

FORGOTTEN_S: Final = 60.0
"""A dependency that nobody complained of for a minute had come back."""

Check = Callable[[], Awaitable[bool]]


@final
class Dependencies:
    """Owned by the event loop. `away` and `back` are told once for each outage."""

    def __init__(self, checks: Mapping[str, Check], away: Callable[[str], None], back: Callable[[str], None]) -> None:
        self._checks = checks
        self._away = away
        self._back = back
        self._outages: dict[str, asyncio.Event] = {}
        self._holds: dict[str, tuple[float, float]] = {}

    async def answers(self, name: str) -> bool:
        """Whether the dependency's own health check passes now. Of one without a check its users know more than we."""
        check = self._checks.get(name)
        if check is None:
            return False
        try:
            async with asyncio.timeout(CHECK_MAX_S):
                return await check()
        except TimeoutError:
            return False

    async def wait(self, name: str) -> None:
        """Return once the dependency answers. Whoever comes first asks; the others wait for the same answer."""
        outage = self._outages.get(name)
        if outage is not None:
            await outage.wait()
            return
        outage = self._outages[name] = asyncio.Event()
        self._away(name)
        try:
            await self._until_back(name)
        finally:
            del self._outages[name]
            outage.set()
            self._back(name)

    async def _until_back(self, name: str) -> None:
        if name not in self._checks:
            await asyncio.sleep(self._next_hold_s(name))
            return
        wait_s = FIRST_WAIT_S
        while not await self.answers(name):
            await asyncio.sleep(wait_s)
            wait_s = min(WAIT_MAX_S, wait_s * 2)

    def _next_hold_s(self, name: str) -> float:
        """Nobody can ask it, so its users try again: twice as long after each time, from the start after a while."""
        now_s = asyncio.get_running_loop().time()
        last_s, ended_s = self._holds.get(name, (0.0, float("-inf")))
        hold_s = min(WAIT_MAX_S, last_s * 2) if now_s - ended_s < FORGOTTEN_S and last_s else FIRST_WAIT_S
        self._holds[name] = (hold_s, now_s + hold_s)
        return hold_s
