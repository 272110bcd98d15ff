"""A handler that is cut off at its deadline tells where it stood, as one that raises tells where it raised."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine

from tidegate.dlq.failure_text import describe
from tidegate.dlq.guard import Raised, guarded


async def stuck() -> None:
    await asyncio.Event().wait()


async def stuck_elsewhere() -> None:
    await stuck()


async def test_failures_at_a_deadline_have_the_same_digest_where_they_stood_at_the_same_place() -> None:
    async def digest(call: Callable[[], Coroutine[None, None, None]]) -> str:
        cut_off = await guarded(call(), 0.01)
        assert isinstance(cut_off, Raised)
        return describe(cut_off.error).stack_digest

    first, again, other = await digest(stuck), await digest(stuck), await digest(stuck_elsewhere)
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert first == again
    assert first != other
