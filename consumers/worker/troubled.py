"""Events that failed and wait for each other a moment: their transaction costs the same for one as for fifty.

It has three times the statements of a group of those that went well, which wait behind it; where one event in a hundred
fails, nearly each group would have one in it. Nothing depends on their being written soon: their lanes are held, in
memory, and the checkpoint stands below them. What if the process stops meanwhile? They are read again, as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, final

from .completion import Completion

APART_S: Final = 0.1
"""Between two of their transactions: ten a second are made at most, and the first after a while at once. With twenty an
event that fails cost a third more of processor time."""

TOGETHER_MAX: Final = 50
"""Half of what a breaker takes for too many in a row: what follows them in their lanes comes at once."""


@final
class Troubled:
    """Owned by the completer."""

    def __init__(self) -> None:
        self._gathered: list[Completion] = []
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def may_wait(self, members: Sequence[Completion]) -> bool:
        """Whether these and those who are here may wait for more: all of them failed, some were written just now."""
        if len(self._gathered) + len(members) >= TOGETHER_MAX:
            return False
        return self._now_s() < self._next_s and all(member.fate is not None for member in members)

    def gather(self, members: Sequence[Completion], wake: Callable[[], None]) -> None:
        """Keep these; `wake` is called when they should be written."""
        self._gathered += members
        if self._gathered and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._next_s, self._ring, wake)

    def and_these(self, members: list[Completion]) -> list[Completion]:
        """Those who waited and these, which are written now."""
        if self._timer is not None:
            self._timer.cancel()
        together, self._gathered, self._timer = self._gathered + members, [], None
        if any(member.fate is not None for member in together):
            self._next_s = self._now_s() + APART_S
        return together

    def _ring(self, wake: Callable[[], None]) -> None:
        """The time is over, whatever a clock of whole milliseconds says."""
        self._next_s = 0.0
        wake()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()
