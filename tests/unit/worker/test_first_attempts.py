"""First attempts under way: who is past the deadline is handed over, in order; nobody is forgotten at a stop."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from tidegate.consumers.worker.attempt import Attempt
from tidegate.consumers.worker.first_attempts import FirstAttempt, FirstAttempts
from tidegate.consumers.worker.repeats import Flight


class Calls:
    """The attempt, as far as it is asked: a call is open until it is released."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._open: asyncio.Future[None] | None = asyncio.get_running_loop().create_future() if is_open else None

    def left_s(self) -> float | None:
        return None if self._open is None or self._open.done() else 60.0

    def released(self) -> asyncio.Future[None]:
        assert self._open is not None
        return self._open

    def answer(self) -> None:
        assert self._open is not None
        self._open.set_result(None)


def began(ago_s: float = 0.0, calls: Calls | None = None) -> FirstAttempt:
    task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
    attempt = cast("Attempt", calls or Calls())
    return FirstAttempt(attempt, cast("Flight", None), cast("asyncio.Task[Any]", task), time.perf_counter() - ago_s, 0)


async def test_who_is_past_the_deadline_is_handed_over_and_who_came_back_is_not() -> None:
    handed: asyncio.Queue[FirstAttempt] = asyncio.Queue()
    under_way = FirstAttempts(30.0, handed.put_nowait)
    back, late, later, young = began(40.0), began(35.0), began(31.0), began()
    for first in (back, late, later, young):
        under_way.add(first)
    assert under_way.remove(back)
    assert [await handed.get(), await handed.get()] == [late, later]
    assert (late.given_up, young.given_up) == (True, False)
    assert not under_way.remove(late), "somebody else waits for it now"
    assert under_way.remove(young)
    await under_way.call_off()
    for first in (back, late, later, young):
        first.task.cancel()


async def test_a_stop_cancels_them_all_and_lets_open_calls_come_to_their_end() -> None:
    calls = Calls(is_open=True)
    under_way = FirstAttempts(30.0, lambda _: None)
    idle, calling = began(), began(calls=calls)
    under_way.add(idle)
    under_way.add(calling)
    stopping = asyncio.create_task(under_way.call_off())
    await asyncio.wait((idle.task,))
    assert idle.task.cancelled()
    assert not calling.task.done()
    assert not stopping.done()
    calls.answer()
    await stopping
    assert calling.task.cancelled()
    assert not under_way.remove(calling)
