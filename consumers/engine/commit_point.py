"""The commit point of offsets that complete out of order. No IO; time is an argument.

Only offsets that were *delivered* are tracked, so that gaps (compaction, transaction markers) need no case of their
own: the point is the lowest delivered and unfinished offset, and where there is none, the client's position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import dropwhile
from typing import final


@final
class CommitPoint:
    """Delivered offsets of one partition for one track; O(1) an offset, amortised."""

    __slots__ = ("_incomplete", "_order", "_start")

    def __init__(self, start: int) -> None:
        self._start = start
        self._order: deque[int] = deque()
        self._incomplete: set[int] = set()

    def deliver(self, offsets: Sequence[int]) -> None:
        """Offsets to be finished: ascending, above all that were delivered before."""
        self._order.extend(offsets)
        self._incomplete.update(offsets)

    def finish(self, offsets: Iterable[int]) -> None:
        """These are durable; those that were never delivered change nothing."""
        incomplete, order = self._incomplete, self._order
        incomplete.difference_update(offsets)
        while order and order[0] not in incomplete:
            order.popleft()

    def at(self, position: int) -> int:
        """The offset to commit, where `position` is the client's: never below the start."""
        return self._order[0] if self._order else max(self._start, position)

    def after(self, offsets: Iterable[int], position: int) -> int:
        """The offset to commit if these were finished too. Changes nothing."""
        finished = frozenset(offsets)
        incomplete = self._incomplete
        rest = dropwhile(lambda offset: offset in finished or offset not in incomplete, self._order)
        return next(rest, max(self._start, position))

    def __len__(self) -> int:
        """How many are incomplete."""
        return len(self._incomplete)
