"""Group commit: what is asked meanwhile goes together, and one bad member never harms its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
import pytest

from tidegate.inbox.grouping import GROUP_MAX, Grouped


class Table:
    """Where groups go. Its gate is open unless a test shuts it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.bad: dict[int, Exception] = {}
        self.left: list[tuple[int, int]] = []
        self.grouped: Grouped[int, int] = Grouped(self.run, lambda ask, answer: self.left.append((ask, answer)))

    async def run(self, asks: Sequence[int]) -> Sequence[int]:
        self.groups.append(list(asks))
        await self.gate.wait()
        for ask in asks:
            if ask in self.bad:
                raise self.bad[ask]
        return [ask * 10 for ask in asks]


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_what_is_asked_meanwhile_goes_in_one_statement() -> None:
    table = Table()
    table.gate.clear()
    asking = [asyncio.ensure_future(table.grouped.put(n)) for n in range(3)]
    await turns()
    asking += [asyncio.ensure_future(table.grouped.put(n)) for n in range(3, 9)]
    await turns()
    assert table.groups == [[0, 1, 2]]
    table.gate.set()
    assert await asyncio.gather(*asking) == [n * 10 for n in range(9)]
    assert table.groups == [[0, 1, 2], [3, 4, 5, 6, 7, 8]]


async def test_a_group_is_bounded() -> None:
    table = Table()
    asked = GROUP_MAX * 2 + 1
    assert await asyncio.gather(*[table.grouped.put(n) for n in range(asked)]) == [n * 10 for n in range(asked)]
    assert [len(group) for group in table.groups] == [GROUP_MAX, GROUP_MAX, 1]


async def test_one_bad_member_fails_alone() -> None:
    table = Table()
    table.bad[3] = asyncpg.DataError("refused")
    answers = await asyncio.gather(*[table.grouped.put(n) for n in range(8)], return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, int)] == [table.bad[3]]
    assert [answer for answer in answers if isinstance(answer, int)] == [0, 10, 20, 40, 50, 60, 70]


async def test_an_error_that_is_nobodys_fault_is_everybodys() -> None:
    """A group that failed for the database's sake is not split: it would fail again, piece by piece."""
    table = Table()
    table.bad[3] = ConnectionResetError()
    answers = await asyncio.gather(*[table.grouped.put(n) for n in range(8)], return_exceptions=True)
    assert answers == [table.bad[3]] * 8
    assert len(table.groups) == 1
    table.bad.clear()
    assert await table.grouped.put(5) == 50


async def test_who_is_cancelled_meanwhile_is_told_of_by_somebody_else() -> None:
    table = Table()
    table.gate.clear()
    leaving, staying = (asyncio.ensure_future(table.grouped.put(n)) for n in (1, 2))
    await turns()
    leaving.cancel()
    await turns()
    assert leaving.cancelled()
    table.gate.set()
    assert await staying == 20
    assert table.left == [(1, 10)]


async def test_who_is_cancelled_between_the_answer_and_its_turn_is_told_of_too() -> None:
    table = Table()
    asking = asyncio.ensure_future(table.grouped.put(1))
    while not (table.groups and asking._fut_waiter is not None and asking._fut_waiter.done()):  # pyright: ignore[reportAttributeAccessIssue] - the moment between the answer and the asker's turn shows nowhere else
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait((asking,))
    assert asking.cancelled()
    assert table.left == [(1, 10)]


async def test_a_settled_table_leaves_nobody_waiting() -> None:
    table = Table()
    await table.grouped.settle(1.0)
    table.gate.clear()
    asking = [asyncio.ensure_future(table.grouped.put(n)) for n in range(2)]
    await turns()
    asking.append(asyncio.ensure_future(table.grouped.put(2)))
    await turns()
    await table.grouped.settle(0.01)
    await asyncio.wait(asking)
    assert all(asked.cancelled() for asked in asking)


async def test_a_bug_in_the_statement_leaves_nobody_waiting() -> None:
    table = Table()
    table.bad[1] = ZeroDivisionError()
    loop = asyncio.get_running_loop()
    seen: list[object] = []
    loop.set_exception_handler(lambda _, context: seen.append(context.get("exception")))
    asking = asyncio.ensure_future(table.grouped.put(1))
    with pytest.raises(asyncio.CancelledError):
        await asking
