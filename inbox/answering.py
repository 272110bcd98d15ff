"""Whether the database answers, learned from a commit that is sent anyway: on a busy worker nobody has to ask for it.

An error that an outage raises too (a connection that was reset, say) is judged by whether the database answers *now*:
what came back before proves nothing. So whoever asks waits for a commit that is sent after the question. Events fail
far faster than a round trip takes: were each to ask by itself, the questions would cost more than the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, final

WAIT_S: Final = 0.05
"""A busy worker commits more often; an idle one may well ask, so this is all that it loses."""


@final
class Answering:
    """Questions that are open, of one database. Owned by the event loop."""

    def __init__(self) -> None:
        self._asked: list[asyncio.Future[bool]] = []

    async def answered(self) -> bool:
        """True once a commit that was sent after this call came back; False where none does so soon."""
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[bool] = loop.create_future()
        self._asked.append(asked)
        timer = loop.call_later(WAIT_S, _say, asked, False)
        try:
            return await asked
        finally:
            timer.cancel()

    @contextmanager
    def sending(self) -> Generator[None]:
        """Around a commit: it answers what was asked before it."""
        asked, self._asked, came_back = self._asked, [], False
        try:
            yield
            came_back = True
        finally:
            for one in asked:
                _say(one, came_back)


def _say(asked: asyncio.Future[bool], came_back: bool) -> None:
    """Unless whoever asked has left."""
    if not asked.done():
        asked.set_result(came_back)
