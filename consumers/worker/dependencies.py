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

Check = Callable[[], Awaitable[bool]]


@final
class Dependencies:
    """Owned by the event loop. `away` and `back` are told once for each outage."""

    def __init__(self, checks: Mapping[str, Check], away: Callable[[str], None], back: Callable[[str], None]) -> None:
        self._checks = checks
        self._away = away
        self._back = back
        self._outages: dict[str, asyncio.Event] = {}

    async def answers(self, name: str) -> bool:
        """Whether the dependency's own health check passes now. One without a check counts as answering."""
        check = self._checks.get(name)
        if check is None:
            return True
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
        wait_s = FIRST_WAIT_S
        while not await self.answers(name):
            await asyncio.sleep(wait_s)
            wait_s = min(WAIT_MAX_S, wait_s * 2)
