"""What one transaction of a batch holds while it is open: who may write, what is known, what goes out. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..inbox import checkpoint, claim, failure, outbox
from ..inbox.event import Event, Partition
from ..inbox.holding import Holding
from .batch import Batch, BoundProjection, Projected
from .fates import NO_VERDICTS, Fate, Verdicts
from .rows import Made
from .verdicts import Admitted

HandlerVersion = tuple[int, int]


@dataclass(slots=True)
class Result:
    """What became of a projection's part."""

    bound: BoundProjection
    admitted: Admitted
    projected: Projected
    seconds: float


@dataclass(slots=True)
class Share:
    """A projection's part of the batch, as it stood when the transaction looked."""

    events: list[Event[Any]]
    verdicts: Verdicts = NO_VERDICTS
    fates: Mapping[int, Fate] = field(default_factory=dict[int, Fate])
    """id(event) -> what becomes of it, those that wait for others included."""
    made: dict[int, Made] = field(default_factory=dict[int, Made])
    """id(event) -> its failure row."""


class Attempt:
    """One transaction's worth of state; thrown away with it."""

    __slots__ = (
        "alone",
        "batch",
        "failed",
        "holdings",
        "known",
        "lost",
        "moves",
        "outgoing",
        "places",
        "put",
        "results",
        "shares",
        "told",
    )

    def __init__(self, batch: Batch, *, alone: bool) -> None:
        self.batch = batch
        self.alone = alone
        self.holdings: dict[Partition, Holding] = {}
        self.lost: frozenset[Partition] = frozenset()
        self.shares: dict[HandlerVersion, Share] = {}
        self.places: failure.Places = {}
        self.known = claim.Probe()
        self.results: list[Result] = []
        self.outgoing: list[outbox.NewOutgoing] = []
        self.moves: list[checkpoint.Move] = []
        self.failed: list[tuple[BoundProjection, Exception]] = []
        self.put: dict[tuple[HandlerVersion, bytes], int] = {}
        """(handler and version, event id) -> the failure row that this transaction put."""
        self.told: list[tuple[str, Event[Any], Fate]] = []
        """(handler, event, fate) of the rows that this transaction put anew."""

    def share(self, bound: BoundProjection) -> Share:
        """The projection's part."""
        return self.shares[bound.key]

    def incarnation(self, event: Event[Any]) -> int:
        """That of the event's topic."""
        return self.holdings[Partition(event.topic, event.partition)].incarnation

    def forget(self, bound: BoundProjection) -> None:
        """Its savepoint was rolled back."""
        self.results = [result for result in self.results if result.bound is not bound]
