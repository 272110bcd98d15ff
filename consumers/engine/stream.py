"""A stream track: serial batches over all partitions, in order within each. No IO; time is an argument.

Exactly one batch is in flight; the next one is whatever came together meanwhile, up to `batch_max` events. Partitions
take turns, a slice at a turn, and the turns go on from batch to batch, so that a full partition starves none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple, final

from ...inbox.event import Partition
from .signals import Apply, Slice, StreamTrack
from .slices import behind, split
from .window import Held


class Piece(NamedTuple):
    """A slice, or what a batch left of it. Only the last piece of a slice holds it in memory."""

    part: Slice
    held: Held | None
    arrived_s: float


@final
class StreamShare:
    """One life of a partition in a stream track."""

    __slots__ = ("_cut", "applied", "in_flight", "partition", "pending", "start")

    def __init__(self, partition: Partition, start: int) -> None:
        self.partition = partition
        self.start = start
        self.pending: deque[Piece] = deque()
        self.in_flight = False
        self.applied = start
        self._cut = False

    def point(self, position: int) -> int:
        """The offset to commit: behind what is applied; the client's position where nothing is left to apply."""
        return self.applied if self._busy else max(self.applied, position)

    def take_in(self, piece: Piece, position: int) -> None:
        """Wait with it; `position` is the client's before it, up to which the point of an idle share had moved."""
        if not self._busy:
            self.applied = max(self.applied, position)
        self.pending.append(piece)

    @property
    def _busy(self) -> bool:
        return bool(self.pending) or self.in_flight or self._cut

    def cut(self) -> None:
        """What waits will never be applied here: the point stays below it."""
        self._cut = self._cut or bool(self.pending)
        for piece in self.pending:
            if piece.held is not None:
                piece.held.release()
        self.pending.clear()


class Flight(NamedTuple):
    """One piece of the batch in flight."""

    share: StreamShare
    next_offset: int
    held: Held | None


@final
class Stream:
    """The track over all partitions."""

    __slots__ = ("_batch_id", "_flights", "_ring", "_track", "_waiting")

    def __init__(self, track: StreamTrack) -> None:
        self._track = track
        self._ring: deque[StreamShare] = deque()
        self._waiting = 0
        self._batch_id = 0
        self._flights: list[Flight] = []

    @property
    def in_flight(self) -> bool:
        """A batch is out."""
        return bool(self._flights)

    def deliver(self, share: StreamShare, part: Slice, held: Held, position: int, now_s: float) -> None:
        """Take in a slice that was read from `position` on, without what is below the track's own start."""
        part = behind(part, share.start)
        if not part.events:
            return
        if not share.pending:
            self._ring.append(share)
        held.parts += 1
        share.take_in(Piece(part, held, now_s), position)
        self._waiting += len(part.events)

    def due(self, now_s: float, *, hurry: bool) -> bool:
        """Whether to compose a batch now; `hurry` where waiting for more is pointless (nothing more will be read)."""
        if self._flights or not self._ring:
            return False
        return hurry or self._waiting >= self._track.batch_max or now_s >= self._ripe_at_s()

    def wake_at_s(self) -> float | None:
        """When a batch that still waits for more must leave as it is; None where none waits."""
        return None if self._flights or not self._ring else self._ripe_at_s()

    def compose(self) -> Apply:
        """The next batch, which is in flight from now on."""
        space = self._track.batch_max
        parts: list[Slice] = []
        while space > 0 and self._ring:
            share = self._ring.popleft()
            part, held = _take(share, space)
            if share.pending:
                self._ring.append(share)
            share.in_flight = True
            space -= len(part.events)
            parts.append(part)
            self._flights.append(Flight(share, part.next_offset, held))
        self._waiting -= self._track.batch_max - space
        self._batch_id += 1
        return Apply(self._track.name, self._batch_id, tuple(parts))

    def land(self, batch_id: int, lost: Collection[Partition]) -> list[StreamShare]:
        """The batch came back: moves the points on, but for those whose fence is lost, and returns all its shares."""
        if batch_id != self._batch_id:
            return []
        flights, self._flights = self._flights, []
        for share, next_offset, held in flights:
            share.in_flight = False
            if share.partition in lost:
                continue
            share.applied = next_offset
            if held is not None:
                held.release()
        return [flight.share for flight in flights]

    def drop(self, shares: Iterable[StreamShare]) -> None:
        """Forget what waits for these."""
        for share in shares:
            self._waiting -= sum(len(piece.part.events) for piece in share.pending)
            share.cut()
        self._ring = deque(share for share in self._ring if share.pending)

    def _ripe_at_s(self) -> float:
        return min(share.pending[0].arrived_s for share in self._ring) + self._track.batch_wait_ms / 1000


def _take(share: StreamShare, space: int) -> tuple[Slice, Held | None]:
    """The share's next slice, or as much of it as there is space for."""
    part, held, arrived_s = share.pending.popleft()
    if len(part.events) <= space:
        return part, held
    head, rest = split(part, space)
    share.pending.appendleft(Piece(rest, held, arrived_s))
    return head, None
