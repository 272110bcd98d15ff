"""When rows are taken to be new, and for how long they are not."""

from __future__ import annotations

import asyncpg
import pytest

from tidegate.inbox.optimism import CAREFUL_S, Optimism


class Writer:
    """Writes rows of which some are known."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.known = False
        self.tries: list[bool] = []
        self._optimism = Optimism(lambda: self.now_s)

    async def write(self) -> list[bool]:
        """How the rows were taken, one try behind the other: True is new."""
        self.tries = []
        assert await self._optimism.write(self._write) == "written"
        return self.tries

    async def _write(self, optimistic: bool) -> str:
        self.tries.append(optimistic)
        if optimistic and self.known:
            raise asyncpg.UniqueViolationError("duplicate key value violates unique constraint")
        return "written"


async def test_rows_are_taken_to_be_new_until_one_is_known_and_again_a_while_later() -> None:
    writer = Writer()
    assert await writer.write() == [True]
    writer.known = True
    assert await writer.write() == [True, False]
    assert await writer.write() == [False]
    writer.now_s += CAREFUL_S - 0.001
    assert await writer.write() == [False]
    writer.now_s += 0.001
    assert await writer.write() == [True, False]
    writer.known = False
    writer.now_s += CAREFUL_S
    assert await writer.write() == [True]


async def test_any_other_error_goes_out_and_nothing_is_tried_again() -> None:
    tries: list[bool] = []

    async def refused(optimistic: bool) -> None:
        tries.append(optimistic)
        raise asyncpg.CheckViolationError

    with pytest.raises(asyncpg.CheckViolationError):
        await Optimism().write(refused)
    assert tries == [True]
