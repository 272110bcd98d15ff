"""What a cancellation must not interrupt is not interrupted, and the cancellation is not lost."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.inbox.finishing import to_the_end


async def test_the_result_and_the_error_come_through() -> None:
    async def fail() -> None:
        raise KeyError("x")

    assert await to_the_end(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(KeyError):
        await to_the_end(fail())


async def test_a_cancellation_waits_for_the_end_however_often_it_comes() -> None:
    go, finished = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        finished.set()

    task = asyncio.create_task(to_the_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished.is_set()
