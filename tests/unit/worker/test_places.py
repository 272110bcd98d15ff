"""The places of a handler: taken without waiting where one is free, else in turn, and never lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumers.worker.places import Places, Seat


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


async def test_who_waits_for_its_next_attempt_leaves_its_place_to_others_and_comes_back_in_turn() -> None:
    places, counted = Places(1), list[int]()
    seat = Seat(places, counted.append, taken=False)
    await seat.take()
    resting = asyncio.create_task(seat.rest(0.001))
    await asyncio.sleep(0)
    assert places.take()
    assert counted == [1]
    while counted == [1]:
        await asyncio.sleep(0)
    assert not resting.done()
    places.give_back()
    await resting
    assert counted == [1, -1]
    assert not places.take()
    seat.leave()
    seat.leave()
    assert places.take()
    assert not places.take()


async def test_no_more_rest_beside_their_places_than_there_are() -> None:
    places, counted = Places(2), list[int]()
    seats = [Seat(places, counted.append, taken=True) for _ in range(3)]
    tasks = [asyncio.create_task(seat.rest(60.0)) for seat in seats]
    await asyncio.sleep(0)
    assert counted == [1, 1]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert counted == [1, 1, -1, -1]
    assert places.may_rest()


async def test_who_is_cut_off_while_it_waits_for_a_place_has_none_to_give_back() -> None:
    places = Places(1)
    seat = Seat(places, lambda _: None, taken=False)
    await seat.take()
    resting = asyncio.create_task(seat.rest(0))
    await asyncio.sleep(0)
    assert places.take()
    for _ in range(3):
        await asyncio.sleep(0)
    resting.cancel()
    await asyncio.wait((resting,))
    seat.leave()
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


async def test_who_is_cancelled_as_it_is_refused_gives_no_place_back() -> None:
    places = Places(1)
    assert places.take()
    refused, gone = (asyncio.create_task(places.wait()) for _ in range(2))
    await asyncio.sleep(0)
    places.refuse(ValueError("none comes free"))
    gone.cancel()
    await asyncio.wait((refused, gone))
    assert isinstance(refused.exception(), ValueError)
    assert gone.cancelled()
    assert not places.take()
    places.give_back()
    assert places.take()
    assert not places.take()
