"""The places of a handler: taken without waiting where one is free, else in turn, and never lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumers.worker.places import Places


async def test_whoever_waits_comes_before_whoever_only_asks() -> None:
    places = Places(1)
    assert places.take()
    waiting = asyncio.create_task(places.wait())
    await asyncio.sleep(0)
    assert not places.take()
    places.give_back()
    assert not places.take()
    await waiting
    places.give_back()
    assert places.take()


async def test_who_is_cancelled_leaves_the_queue_and_gives_back_what_it_was_handed() -> None:
    places = Places(1)
    assert places.take()
    gone, handed, last = (asyncio.create_task(places.wait()) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    places.give_back()  # passes over the one that is gone
    handed.cancel()  # it has the place, and has not run since
    await asyncio.wait((gone, handed, last))
    assert (gone.cancelled(), handed.cancelled(), last.cancelled()) == (True, True, False)
    places.give_back()
    assert places.take()
    assert not places.take()


@given(steps=st.lists(st.tuples(st.sampled_from(["take", "wait", "give_back", "cancel", "turn"]), st.integers(0, 9))))
async def test_no_place_is_lost_and_none_is_made(steps: list[tuple[str, int]]) -> None:
    places, held, waiting = Places(3), 0, list[asyncio.Task[None]]()
    for step, n in steps:
        if step == "take":
            held += places.take()
        elif step == "wait":
            waiting.append(asyncio.create_task(places.wait()))
        elif step == "give_back" and held:
            places.give_back()
            held -= 1
        elif step == "cancel" and waiting:
            waiting[n % len(waiting)].cancel()
        else:
            await asyncio.sleep(0)
        came = [task for task in waiting if task.done()]
        waiting = [task for task in waiting if not task.done()]
        held += sum(not task.cancelled() for task in came)
        assert held <= 3
    for task in waiting:
        task.cancel()
    for task in waiting:
        with suppress(asyncio.CancelledError):
            await task
            held += 1
    for _ in range(held):
        places.give_back()
    assert [places.take() for _ in range(4)] == [True, True, True, False]
