"""A lane track: concurrent across keys, in order within a key. No IO; time is an argument.

A lane is the ordered stream of one (topic, key); an event without a key is a lane of its own. The head of a lane is
ready or running, the others wait behind it; it leaves once it is durable (`Finished`). A place (one of `concurrency`)
is freed earlier, when the handler function comes back (`Returned`). Partitions take turns, and so do the lanes of a
partition: a lane that is freed goes to the back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias, final

from ...inbox.event import Partition
from .commit_point import CommitPoint
from .rate import Rate
from .signals import LaneItem, LaneTrack, Slice, Start
from .slices import behind
from .window import Held


class Queued(NamedTuple):
    """One event on its way through its lane."""

    share: LaneShare
    item: LaneItem
    held: Held


Lane: TypeAlias = "Queued | deque[Queued] | None"
"""What waits behind the head of a lane. Nearly always that is nothing, or one, and needs no queue."""


@final
class LaneShare:
    """One life of a partition in a lane track."""

    __slots__ = ("commit_point", "partition", "ready", "running", "start")

    def __init__(self, partition: Partition, start: int) -> None:
        self.partition = partition
        self.start = start
        self.commit_point = CommitPoint(start)
        self.ready: deque[Queued] = deque()
        self.running: dict[int, Queued] = {}

    @property
    def in_flight(self) -> bool:
        """Something was started and is not durable yet."""
        return bool(self.running)

    def point(self, position: int) -> int:
        """The offset to commit."""
        return self.commit_point.at(position)


@final
class Lanes:
    """The track over all partitions."""

    __slots__ = ("_lanes", "_rate", "_ring", "_track", "places_taken")

    def __init__(self, track: LaneTrack) -> None:
        self._track = track
        self._lanes: dict[str, dict[bytes, Lane]] = {}
        self._ring: deque[LaneShare] = deque()
        self._rate = None if track.rate_per_s is None else Rate(track.rate_per_s)
        self.places_taken = 0

    def deliver(self, share: LaneShare, part: Slice, held: Held) -> None:
        """Take in the events of a slice that this track's handler takes, from the track's own start on."""
        part = behind(part, share.start)
        indexes = part.lanes.get(self._track.name)
        if not indexes:
            return
        events, partition, epoch = part.events, part.partition, part.epoch
        lanes = self._lanes.setdefault(partition.topic, {})
        ready = share.ready
        was_idle = not ready
        offsets: list[int] = []
        for index in indexes:
            event = events[index]
            record = event.record
            key, offset = record.key, record.offset
            offsets.append(offset)
            queued = Queued(share, LaneItem(partition, epoch, offset, event), held)
            if key is None:
                ready.append(queued)
            elif key not in lanes:
                lanes[key] = None
                ready.append(queued)
            else:
                _wait(lanes, key, queued)
        held.parts += len(offsets)
        share.commit_point.deliver(offsets)
        if was_idle and ready:
            self._ring.append(share)

    def start(self, now_s: float) -> Start | None:
        """As many heads of lanes as there are places for, partitions in turn; they run from now on."""
        places = self._track.concurrency - self.places_taken
        ring = self._ring
        if self._rate is not None and places > 0 and ring:
            places = self._rate.free(now_s, places)
        if places <= 0 or not ring:
            return None
        items: list[LaneItem] = []
        while ring and len(items) < places:
            share = ring[0]
            queued = share.ready.popleft()
            item = queued.item
            share.running[item.offset] = queued
            items.append(item)
            if share.ready:
                ring.rotate(-1)
            else:
                ring.popleft()
        self.places_taken += len(items)
        if self._rate is not None:
            self._rate.begin(len(items), now_s)
        return Start(self._track.name, tuple(items))

    def wake_at_s(self) -> float | None:
        """When a head that only waits for its turn may begin; None where none does."""
        if self._rate is None or not self._ring or self.places_taken >= self._track.concurrency:
            return None
        return self._rate.next_at_s()

    def turn_in_s(self, now_s: float) -> float:
        """0 where one more may begin, which then counts as begun, though it does not come from here; else the wait."""
        if self._rate is None:
            return 0.0
        if self._rate.free(now_s, most=1):
            self._rate.begin(1, now_s)
            return 0.0
        return self._rate.next_at_s() - now_s

    def returned(self, count: int) -> None:
        """Handler functions came back, whether or not their partitions are still here."""
        self.places_taken -= count
        assert self.places_taken >= 0, "more handler functions came back than were started"

    def finished(self, share: LaneShare, offsets: Iterable[int]) -> None:
        """These are durable: frees their lanes. What is not running here changes nothing."""
        running = share.running
        done: list[int] = []
        for offset in offsets:
            queued = running.pop(offset, None)
            if queued is not None:
                done.append(offset)
                queued.held.release()
                self._leave(queued)
        share.commit_point.finish(done)

    def drop(self, shares: Collection[LaneShare], *, gone: bool) -> None:
        """Forget what waits for these, and where they are `gone` also what runs; other partitions' lanes move up."""
        for lanes in self._lanes.values():
            _purge(lanes, shares)
        for share in shares:
            leaving = [*share.ready, *share.running.values()] if gone else list(share.ready)
            share.ready.clear()
            if gone:
                share.running.clear()
            for queued in leaving:
                queued.held.release()
                self._leave(queued)
        self._ring = deque(share for share in self._ring if share.ready)

    def _leave(self, queued: Queued) -> None:
        """The head leaves its lane; the next one of the lane is ready."""
        key = queued.item.event.record.key
        if key is None:
            return
        lanes = self._lanes[queued.item.partition.topic]
        waiting = lanes[key]
        if waiting is None:
            del lanes[key]
            return
        if isinstance(waiting, Queued):
            following, lanes[key] = waiting, None
        else:
            following = waiting.popleft()
            if not waiting:
                lanes[key] = None
        share = following.share
        if not share.ready:
            self._ring.append(share)
        share.ready.append(following)


def _wait(lanes: dict[bytes, Lane], key: bytes, queued: Queued) -> None:
    waiting = lanes[key]
    if waiting is None:
        lanes[key] = queued
    elif isinstance(waiting, Queued):
        lanes[key] = deque((waiting, queued))
    else:
        waiting.append(queued)


def _purge(lanes: dict[bytes, Lane], shares: Collection[LaneShare]) -> None:
    """Take what these shares have waiting out of the lanes; one pass over the lanes, however many shares."""
    for key, waiting in lanes.items():
        if waiting is None:
            continue
        queue = (waiting,) if isinstance(waiting, Queued) else waiting
        gone = [queued for queued in queue if queued.share in shares]
        if gone:
            for queued in gone:
                queued.held.release()
            lanes[key] = deque(queued for queued in queue if queued.share not in shares) or None
