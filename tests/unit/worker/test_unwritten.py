"""Who is over but for an ending on its way goes on when that is durable, in order, and never before."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tidegate.consumers.worker.completion import Completion
from tidegate.consumers.worker.unwritten import Unwritten


class Desk:
    """What was over, and what failed."""

    def __init__(self) -> None:
        self.over: list[str] = []
        self.failed: list[BaseException] = []
        self.unwritten = Unwritten(self._note, self.failed.append)

    def _note(self, completion: Completion) -> None:
        self.over.append(cast(Any, completion))

    def add(self, name: str, *endings: asyncio.Future[None]) -> None:
        self.unwritten.add(endings, cast(Any, name))


def ending() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_group_of_endings_frees_all_that_wait_for_it() -> None:
    desk = Desk()
    group, later = [ending() for _ in range(4)], ending()
    for n, one in enumerate(group):
        desk.add(f"e{n}", one)
    desk.add("next", later)
    await turns()
    assert desk.over == []
    for one in group:
        one.set_result(None)
    await turns()
    assert desk.over == ["e0", "e1", "e2", "e3"]
    later.set_result(None)
    await turns()
    assert desk.over[4:] == ["next"]


async def test_who_waits_for_several_waits_for_the_last_of_them() -> None:
    desk, endings = Desk(), [ending() for _ in range(3)]
    desk.add("e", *endings)
    for one in reversed(endings):
        await turns()
        assert desk.over == []
        one.set_result(None)
    await turns()
    assert desk.over == ["e"]


async def test_what_is_durable_already_does_not_wait() -> None:
    desk, done = Desk(), ending()
    done.set_result(None)
    desk.add("e", done)
    assert desk.over == ["e"]


async def test_who_comes_behind_others_waits_for_its_turn() -> None:
    desk, first, done = Desk(), ending(), ending()
    done.set_result(None)
    desk.add("first", first)
    desk.add("second", done)
    assert desk.over == []
    first.set_result(None)
    await turns()
    assert desk.over == ["first", "second"]


async def test_an_ending_that_is_cut_off_ends_nothing_and_holds_nobody_up() -> None:
    """The process ends: the event is read again."""
    desk, cut_off, other = Desk(), ending(), ending()
    desk.add("lost", cut_off)
    desk.add("other", other)
    cut_off.cancel()
    other.set_result(None)
    await turns()
    assert (desk.over, desk.failed) == (["other"], [])


async def test_an_ending_that_fails_is_nobodys_success() -> None:
    desk, bad = Desk(), ending()
    desk.add("e", bad)
    error = RuntimeError("no such column")
    bad.set_exception(error)
    await turns()
    assert (desk.over, desk.failed) == ([], [error])
