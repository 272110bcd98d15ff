"""A handler that is cut off at its deadline tells where it stood, as one that raises tells where it raised."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine

import pytest

from tidegate.dlq import guard
from tidegate.dlq.failure_text import describe
from tidegate.dlq.guard import Raised, Returned, guarded, not_counted


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


@pytest.mark.parametrize("how", ["swallows", "hangs in finally"])
async def test_a_function_that_its_cancellation_does_not_end_is_left_to_itself(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Also where a stop cuts it off: nobody waits for it for ever."""
    monkeypatch.setattr(guard, "CANCEL_MAX_S", 0.01)
    free, entered, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def call() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            while how == "swallows" and not free.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await free.wait()
            await free.wait()
            ended.set()

    outcome = await guarded(call(), 0.01)
    assert isinstance(outcome, Raised)
    assert (outcome.timed_out, outcome.alive) == (True, True)
    free.set()
    await ended.wait()
    free.clear()
    entered.clear()
    ended.clear()
    stopped = asyncio.ensure_future(guarded(call(), 60))
    await entered.wait()
    stopped.cancel()
    await asyncio.wait((stopped,))
    assert stopped.cancelled()
    assert not ended.is_set()
    free.set()
    await ended.wait()


async def test_what_a_function_waits_for_that_is_not_its_own_is_no_time_of_its_own() -> None:
    """It has its whole time behind that: here it ends in it."""
    loop = asyncio.get_running_loop()
    free = loop.create_future()
    loop.call_later(0.2, free.set_result, None)

    async def call() -> str:
        with not_counted():
            await free
        await asyncio.sleep(0.001)
        return "done"

    assert await guarded(call(), 0.05) == Returned("done")


async def test_behind_that_its_deadline_is_what_it_was() -> None:
    async def call() -> None:
        with not_counted():
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()

    outcome = await guarded(call(), 0.01)
    assert isinstance(outcome, Raised)
    assert outcome.timed_out
