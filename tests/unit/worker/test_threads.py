"""The threads of `def` functions: one that is given up keeps its thread until it comes back, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from tidegate.consumers.worker import threads
from tidegate.consumers.worker.threads import Threads
from tidegate.inbox.errors import FatalError


class Hang:
    """A function that hangs until it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def __call__(self) -> str:
        self.free.wait()
        return "came back"

    async def keeps(self, pool: Threads) -> None:
        """One of its threads: it was begun, and given up."""
        began = threading.Event()
        running = asyncio.create_task(pool.run("hang", lambda: (began.set(), self())))
        await asyncio.to_thread(began.wait)
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()


@pytest.fixture
def hang() -> Generator[Hang]:
    """Let go at the end at the latest."""
    hang = Hang()
    yield hang
    hang.free.set()


async def test_a_function_gives_what_it_gives_or_raises() -> None:
    pool = Threads(1)
    assert await pool.run("f", lambda: "done") == "done"
    with pytest.raises(ZeroDivisionError):
        await pool.run("f", lambda: 1 // 0)
    assert await pool.run("f", lambda: "free again") == "free again"
    pool.close()


async def test_a_thread_is_free_once_its_function_comes_back_and_not_before(hang: Hang) -> None:
    pool = Threads(1)
    await hang.keeps(pool)
    waiting = asyncio.create_task(pool.run("f", lambda: "done"))
    await asyncio.sleep(0)
    assert not waiting.done()
    hang.free.set()
    assert await waiting == "done"
    pool.close()


async def test_who_waits_for_a_thread_while_all_are_kept_is_told_after_a_while_and_so_is_who_comes_then(
    hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once one comes back after all, there are threads again."""
    monkeypatch.setattr(threads, "ALL_KEPT_MAX_S", 0.01)
    pool = Threads(2)
    await hang.keeps(pool)
    await hang.keeps(pool)
    with pytest.raises(FatalError, match=r"kept by one that does not end: hang \(2\)"):
        await pool.run("f", lambda: "done")
    with pytest.raises(FatalError):
        await pool.run("f", lambda: "done")
    hang.free.set()
    async with asyncio.timeout(10):
        while True:
            try:
                assert await pool.run("f", lambda: "done") == "done"
                break
            except FatalError:
                await asyncio.sleep(0)
    pool.close()


async def test_one_that_is_not_kept_is_waited_for(hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end well."""
    monkeypatch.setattr(threads, "ALL_KEPT_MAX_S", 0.01)
    pool = Threads(2)
    await hang.keeps(pool)
    slow = Hang()
    running = asyncio.create_task(pool.run("slow", slow))
    waiting = asyncio.create_task(pool.run("f", lambda: "done"))
    await asyncio.wait((waiting,), timeout=0.05)
    assert not waiting.done()
    slow.free.set()
    assert (await running, await waiting) == ("came back", "done")
    pool.close()
