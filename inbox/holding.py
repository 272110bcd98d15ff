"""What this process holds of a partition: its fence epoch and the checkpoints it confirmed. No IO.

Owned by the event loop alone. A `Holding` is made when the fence is taken and dropped when the partition is gone;
whoever keeps one across an `await` asks `Holdings.current` again before it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final

from .event import Partition

HandlerVersion = tuple[int, int]
"""(handler id, version); a command's version is 0."""


@dataclass(slots=True)
class Holding:
    """One partition under one assignment. `checkpoints` are next offsets whose commit was confirmed.

    `unclean_ends` in a row, the former owner's the last. `suspect_rows` are the failure rows that are handled alone:
    those that it had in its hands, if it was itself at work after an unclean end, and `doubtful_rows`, which are the
    first ones that come: `rows_unseen` more may. `found_in_hand`, a record's offset and its failure row's id, is what a
    dead owner had alone in its hands.
    """

    partition: Partition
    epoch: int
    fence_epoch: int
    incarnation: int
    checkpoints: dict[HandlerVersion, int] = field(default_factory=dict)
    unclean_ends: int = 0
    suspect_rows: set[int] = field(default_factory=set)
    doubtful_rows: set[int] = field(default_factory=set)
    rows_unseen: int = 0
    found_in_hand: tuple[int, int | None] | None = None

    def doubt(self, failure_id: int) -> None:
        """The row may have been in a dead owner's hands: it is handled alone, if it is one of the first."""
        if self.rows_unseen:
            self.rows_unseen -= 1
            self.doubtful_rows.add(failure_id)
            self.suspect_rows.add(failure_id)

    def trust(self) -> None:
        """There is no more time for doubts: all but what was in a dead owner's hands are rows like any other."""
        self.suspect_rows -= self.doubtful_rows
        self.doubtful_rows.clear()
        self.rows_unseen = 0


@final
class Holdings:
    """The partitions that this process may write for."""

    def __init__(self) -> None:
        self._held: dict[Partition, Holding] = {}

    def put(self, holding: Holding) -> None:
        """The fence of this partition is ours."""
        self._held[holding.partition] = holding

    def drop(self, partition: Partition, epoch: int | None = None) -> None:
        """It is ours no more (under this assignment; None: whatever it was)."""
        held = self._held.get(partition)
        if held is not None and (epoch is None or held.epoch == epoch):
            del self._held[partition]

    def current(self, partition: Partition, epoch: int | None = None) -> Holding | None:
        """What we hold of it, None where nothing (or only under another assignment)."""
        held = self._held.get(partition)
        return held if held is not None and (epoch is None or held.epoch == epoch) else None

    def fences(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The fence epochs of those that we hold: what a writing transaction asks for first."""
        return {p: held.fence_epoch for p in partitions if (held := self._held.get(p)) is not None}

    def __iter__(self) -> Iterator[Holding]:
        return iter(tuple(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)
