"""Which events in memory must not run, because earlier ones of their key wait in the failure table. No IO.

The truth is the lane's row in the database; this is what it takes to never miss it. A look-up answers for the moment at
which it was made, so an event whose look-up was made before its key was parked must not trust it:

1. A slice is looked up: its key is not parked. 2. An earlier event of the key fails, and the decision to park it falls.
3. Its row is committed, its place in the lane is free, and the event of the slice is next.

So from the decision on the key counts as parked, and behind the commit for every event that was looked up before it,
told by offsets: below `until` of its partition it queues up, from there on its own look-up, which saw the row, decides.
A decision that comes to nothing (there is no room for the row, and the event is dead) is taken back. Queueing up is
always right, also where the key was released meanwhile: then the event is a queue of one. An entry is forgotten once
everything below `until` is done, so that this never holds more keys than there are in the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, final

from ...inbox.event import Partition

SWEPT_AT_MIN: Final = 1_000
"""Entries below this number are not worth a look through them."""


class Lane(NamedTuple):
    """The ordered stream of one key for one handler. `key` is the record's, as it is."""

    handler_id: int
    topic: str
    key: bytes


Point = Callable[[int, Partition], int | None]
"""(handler id, partition) -> below it everything is durable; None where the partition is not ours."""


@final
class ParkedKeys:
    """Owned by the event loop."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._decided: dict[Lane, set[Partition]] = {}
        """Where their events came from: no row is committed yet, so no look-up can have seen it."""
        self._until: dict[Lane, dict[Partition, int]] = {}
        self._looked_up: dict[Partition, int] = {}
        self._sweep_at = SWEPT_AT_MIN

    def looking_up(self, partition: Partition, next_offset: int) -> None:
        """A look-up for the events below `next_offset` begins."""
        self._looked_up[partition] = next_offset

    def found(self, lane: Lane, partition: Partition, next_offset: int) -> None:
        """The look-up for the events below `next_offset` saw the lane parked."""
        self._raise(lane, partition, next_offset)

    def decided(self, lane: Lane, partition: Partition) -> None:
        """An event of this lane will be parked."""
        self._decided.setdefault(lane, set()).add(partition)

    def taken_back(self, lane: Lane) -> None:
        """It will not: what was known before is true still."""
        self._decided.pop(lane, None)

    def committed(self, lanes: Iterable[Lane]) -> None:
        """The rows of these lanes are durable: a look-up that begins now sees them."""
        for lane in lanes:
            if self._decided.pop(lane, None) is not None or lane in self._until:
                self._raise_looked_up(lane)
        if len(self._until) >= self._sweep_at:
            self._sweep()

    def holds(self, lane: Lane, partition: Partition, offset: int) -> bool:
        """Whether the event at `offset` has to queue up."""
        if lane in self._decided:
            return True
        places = self._until.get(lane)
        return places is not None and offset < places.get(partition, 0)

    def drop(self, partition: Partition) -> None:
        """The partition is not ours any more: what comes of it later is looked up anew.

        Whether what was decided got committed nobody knows then: the key's events of other partitions queue up.
        """
        self._looked_up.pop(partition, None)
        for places in self._until.values():
            places.pop(partition, None)
        for lane in [lane for lane, partitions in self._decided.items() if partition in partitions]:
            self._decided[lane].discard(partition)
            if not self._decided[lane]:
                del self._decided[lane]
            self._raise_looked_up(lane)

    def __bool__(self) -> bool:
        return bool(self._until or self._decided)

    def __len__(self) -> int:
        return len(self._until.keys() | self._decided.keys())

    def _raise_looked_up(self, lane: Lane) -> None:
        """Whatever of its topic was looked up so far may not have seen the row."""
        for partition, next_offset in self._looked_up.items():
            if partition.topic == lane.topic:
                self._raise(lane, partition, next_offset)

    def _raise(self, lane: Lane, partition: Partition, until: int) -> None:
        places = self._until.setdefault(lane, {})
        places[partition] = max(places.get(partition, 0), until)

    def _sweep(self) -> None:
        """Forget what lies behind us."""
        for lane, places in list(self._until.items()):
            for partition, until in list(places.items()):
                point = self._point(lane.handler_id, partition)
                if point is None or point >= until:
                    del places[partition]
            if not places:
                del self._until[lane]
        self._sweep_at = max(SWEPT_AT_MIN, 2 * len(self._until))
