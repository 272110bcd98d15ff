"""What one transaction of a batch holds while it is open: who may write, what is known, what goes out. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..inbox import checkpoint, claim, outbox
from ..inbox.event import Event, Partition
from ..inbox.holding import Holding
from .batch import Batch, BoundProjection
from .verdicts import Admitted


@dataclass(slots=True)
class Result:
    """What became of a projection's part."""

    bound: BoundProjection
    admitted: Admitted
    published: list[outbox.NewOutgoing]
    seconds: float


class Attempt:
    """One transaction's worth of state; thrown away with it."""

    __slots__ = (
        "alone",
        "batch",
        "buried",
        "events",
        "failed",
        "holdings",
        "known",
        "lost",
        "moves",
        "outgoing",
        "results",
    )

    def __init__(self, batch: Batch, *, alone: bool) -> None:
        self.batch = batch
        self.alone = alone
        self.holdings: dict[Partition, Holding] = {}
        self.lost: frozenset[Partition] = frozenset()
        self.events: dict[tuple[int, int], list[Event[Any]]] = {}
        self.known = claim.Probe()
        self.results: list[Result] = []
        self.outgoing: list[outbox.NewOutgoing] = []
        self.moves: list[checkpoint.Move] = []
        self.failed: list[tuple[BoundProjection, Exception]] = []
        self.buried: dict[tuple[tuple[int, int], bytes], int] = {}
        """(handler and version, event id) -> the failure row that this transaction put."""

    def forget(self, bound: BoundProjection) -> None:
        """Its savepoint was rolled back."""
        self.results = [result for result in self.results if result.bound is not bound]
