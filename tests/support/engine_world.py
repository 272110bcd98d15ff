"""A tiny world around the engine: logs, a client, a database's checkpoints. It checks every action as it is said.

What it knows is deliberately simpler than the engine: for each track the events that were delivered and not handed out
yet, what is in flight, and what is incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.engine_desk import event
from tidegate.consumers.engine.engine import Engine
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.signals import (
    Action,
    Applied,
    Apply,
    Assigned,
    Commit,
    Delivered,
    DependencyAway,
    DependencyBack,
    Drained,
    Examine,
    Fenced,
    Finished,
    LaneItem,
    LaneTrack,
    LetGo,
    Lost,
    Pause,
    Quiet,
    Reached,
    Ready,
    Refused,
    Resume,
    Returned,
    Revoking,
    Seek,
    Signal,
    Slice,
    Start,
    StreamTrack,
    TakeOver,
    Tick,
)
from tidegate.inbox.event import Partition

PARTITIONS = tuple(Partition("t", number) for number in range(3))
STREAMS = (StreamTrack("s", batch_max=4, batch_wait_ms=0), StreamTrack("slow", batch_max=7, batch_wait_ms=500))
LANES = (LaneTrack("l", concurrency=3), LaneTrack("m", concurrency=1))
TRACKS = (*STREAMS, *LANES)
POLICY = EnginePolicy(
    window_records_max=20, window_records_low=8, window_bytes_max=500, window_bytes_low=200, commit_interval_s=0.3
)


def gap_before(offset: int) -> bool:
    """Whether the log has nothing at this offset (a marker, or compacted away)."""
    return offset % 7 in (3, 4)


def key_of(offset: int) -> bytes | None:
    """Few keys, the same in all partitions; some events have none."""
    return None if offset % 5 == 0 else b"key-%d" % (offset % 3)


def lanes_of(offsets: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """One command takes most events, the other few."""
    return {
        "l": tuple(index for index, offset in enumerate(offsets) if offset % 4),
        "m": tuple(index for index, offset in enumerate(offsets) if offset % 3 == 0),
    }


@dataclass(eq=False)
class Life:
    """What the world knows of one life of a partition."""

    partition: Partition
    epoch: int
    starts: dict[str, int]
    position: int
    waiting: dict[str, list[int]] = field(default_factory=lambda: {track.name: [] for track in TRACKS})
    incomplete: dict[str, set[int]] = field(default_factory=lambda: {track.name: set() for track in TRACKS})
    leaving: bool = False

    def bound(self) -> int:
        """No commit may be above this."""
        lowest = [min(offsets) for offsets in self.incomplete.values() if offsets]
        ahead = [max(self.position, start) for start in self.starts.values()]
        return min([*lowest, *ahead])


@dataclass(eq=False)
class Flight:
    """A started lane item, whose life may be over."""

    track: str
    life: Life
    item: LaneItem


class World:
    """The engine under test, and everything around it."""

    def __init__(self) -> None:
        self.engine = Engine(TRACKS, POLICY)
        self.now_s = 0.0
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.taking: dict[Partition, int] = {}
        self.idle_assigned: set[Partition] = set()
        self.lives: dict[Partition, Life] = {}
        self.done: dict[tuple[str, Partition], int] = {}
        self.batches: dict[str, tuple[Apply, list[Life]]] = {}
        self.flights: list[Flight] = []
        self.places = dict.fromkeys((track.name for track in LANES), 0)
        self.given_up: set[Partition] = set()
        self.paused: set[Partition] = set()
        self.committed: dict[tuple[Partition, int], int] = {}
        self.floors: dict[tuple[Partition, int], int] = {}
        self.answers_due: set[tuple[Partition, int]] = set()
        self.away: set[str] = set()
        self.quiet = False
        self.drained = 0
        self.intact = True
        """Nothing has failed yet: an end that is checked behind a failure would only hide it."""

    # ------------------------------------------------------------------------------------------------ what happens

    def tell(self, signal: Signal) -> list[Action]:
        """Give a signal to the engine and check all that it says."""
        self.intact = False
        actions = self.engine.receive(signal, self.now_s)
        for action in actions:
            self._check(action)
        assert not self.unpaused() or self.engine.window()[0] <= POLICY.window_records_max
        assert not self.unpaused() or self.engine.window()[1] <= POLICY.window_bytes_max
        self.intact = True
        return actions

    def owned(self) -> list[Partition]:
        """Assigned and not on its way out."""
        return [
            partition
            for partition in PARTITIONS
            if partition in self.taking or partition in self.idle_assigned or self.is_live(partition)
        ]

    def is_live(self, partition: Partition) -> bool:
        return partition in self.lives and not self.lives[partition].leaving

    def live(self) -> list[Life]:
        return [life for life in self.lives.values() if not life.leaving]

    def unpaused(self) -> list[Life]:
        return [life for life in self.live() if life.partition not in self.paused]

    def assign(self, partitions: Iterable[Partition]) -> None:
        fresh = [each for each in partitions if each not in self.owned() and each not in self.lives]
        for partition in fresh:
            self.epochs[partition] += 1
            self.paused.discard(partition)
            self.given_up.discard(partition)
            if self.quiet:
                self.idle_assigned.add(partition)
        self.tell(Assigned({partition: self.epochs[partition] for partition in fresh}))

    def ready(self, partition: Partition, back: int) -> None:
        """The takeover is done; each track starts at its checkpoint, or somewhat before it."""
        epoch = self.taking.pop(partition)
        starts = {track.name: max(0, self.done.get((track.name, partition), 0) - back) for track in TRACKS}
        life = Life(partition, epoch, starts, min(starts.values()))
        self.lives[partition] = life
        self.tell(Ready(partition, epoch, starts))

    def refuse(self, partition: Partition) -> None:
        epoch = self.epochs[partition]
        if not (partition in self.lives and self.lives[partition].leaving):
            self._forget(partition)
            self.given_up.add(partition)
        self.tell(Refused(partition, epoch))

    def lose(self, partitions: Iterable[Partition]) -> None:
        gone = {partition: self.epochs[partition] for partition in partitions}
        for partition, epoch in gone.items():
            self._forget(partition)
            self.answers_due.discard((partition, epoch))
            self.given_up.discard(partition)
        self.tell(Lost(gone))

    def revoke(self, partitions: Iterable[Partition], budget_s: float) -> None:
        theirs = {*self.owned(), *self.given_up}
        leaving = {partition: self.epochs[partition] for partition in partitions if partition in theirs}
        self.given_up -= leaving.keys()
        for partition, epoch in leaving.items():
            self.answers_due.add((partition, epoch))
            self.taking.pop(partition, None)
            self.idle_assigned.discard(partition)
            if partition in self.lives:
                self.lives[partition].leaving = True
                for waiting in self.lives[partition].waiting.values():
                    waiting.clear()
        self.tell(Revoking(leaving, budget_s))

    def fence(self, partition: Partition) -> None:
        life = self.lives[partition]
        self._fenced(life)
        self.tell(Fenced(partition, life.epoch))
        assert partition not in self.lives
        assert life.leaving or self.quiet or partition in self.taking

    def deliver(self, counts: dict[Partition, int], stale: bool = False) -> None:
        """A poll: so many events of each live partition, from the client's position on."""
        parts = [self._poll(self.lives[partition], count, stale) for partition, count in counts.items()]
        self.tell(Delivered(tuple(parts)))

    def reach(self, partition: Partition, gap: int) -> None:
        life = self.lives[partition]
        position = life.position + gap
        if not self.quiet and not life.leaving:
            life.position = position
        self.tell(Reached(partition, life.epoch, position))

    def apply(self, track: str, lost: frozenset[Partition]) -> None:
        apply, lives = self.batches.pop(track)
        lost = lost & {part.partition for part in apply.slices}
        for life, part in zip(lives, apply.slices, strict=True):
            if part.partition in lost:
                self._fenced(life)
                continue
            life.incomplete[track].difference_update(event.offset for event in part.events)
            key = (track, part.partition)
            self.done[key] = max(self.done.get(key, 0), part.next_offset)
        self.tell(Applied(track, apply.batch_id, lost))

    def come_back(self, track: str, count: int) -> None:
        count = min(count, self.places[track])
        self.places[track] -= count
        self.tell(Returned(track, count))

    def finish(self, flights: Sequence[Flight]) -> None:
        """Completions of one group: they may be of several partitions, and of lives that are over."""
        for flight in flights:
            self.flights.remove(flight)
            life, item = flight.life, flight.item
            life.incomplete[flight.track].discard(item.offset)
            if self.lives.get(life.partition) is life:
                self._finish(flight)
            elif self._is_followed(life):
                continue  # of an old life under the same epoch: its owner lost the fence and writes nothing
            else:
                self.tell(Finished(flight.track, life.partition, item.epoch, (item.offset,)))

    def _finish(self, flight: Flight) -> None:
        """What the prospect said is what the point is once it is so."""
        track, partition, offset = flight.track, flight.life.partition, flight.item.offset
        prospect = self.engine.prospect(track, partition, flight.life.epoch, [offset])
        assert prospect is not None
        self.done[track, partition] = max(self.done.get((track, partition), 0), prospect)
        self.tell(Finished(track, partition, flight.life.epoch, (offset,)))
        assert self.engine.point(track, partition) in (prospect, None)

    def depend(self, name: str, away: bool) -> None:
        if away:
            self.away.add(name)
            self.tell(DependencyAway(name))
        else:
            self.away.discard(name)
            self.tell(DependencyBack(name))

    def go_quiet(self) -> None:
        self.quiet = True
        self.tell(Quiet())

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(Tick())

    def finish_everything(self) -> None:
        """Everything comes back, until the engine has nothing more to do or to wait for."""
        for name in sorted(self.away):
            self.depend(name, away=False)
        for _ in range(1_000):
            for track in list(self.batches):
                self.apply(track, frozenset())
            for track in LANES:
                self.come_back(track.name, self.places[track.name])
            self.finish(list(self.flights))
            wake_at_s = self.engine.wake_at_s()
            if wake_at_s is None and not (self.batches or self.flights or any(self.places.values())):
                return
            self.pass_time(0.0 if wake_at_s is None else max(0.0, wake_at_s - self.now_s))
        raise AssertionError("the engine does not come to rest")

    # ----------------------------------------------------------------------------------------------- what is checked

    def _check(self, action: Action) -> None:
        match action:
            case TakeOver(partition, epoch):
                assert epoch == self.epochs[partition]
                assert partition not in self.taking
                self.taking[partition] = epoch
            case Seek(partition, epoch, offset):
                life = self.lives[partition]
                assert (epoch, offset) == (life.epoch, life.position)
            case Pause() | Resume():
                self._check_pausing(action)
            case Apply():
                self._check_apply(action)
            case Start():
                self._check_start(action)
            case Commit(offsets, points):
                for partition, (epoch, offset) in offsets.items():
                    assert self.is_live(partition)
                    assert min(points[partition].values()) <= offset
                    self._check_point(self.lives[partition], epoch, offset)
            case LetGo():
                self._check_let_go(action)
            case Drained() | Examine():
                assert isinstance(action, Drained), "nobody was killed in this world"
                self._check_drained()

    def _check_pausing(self, action: Pause | Resume) -> None:
        partitions = action.partitions
        assert partitions
        if isinstance(action, Pause):
            assert not partitions & self.paused
            self.paused |= partitions
        else:
            assert partitions <= self.paused
            assert not self.away
            assert not self.quiet
            assert all(self.is_live(partition) for partition in partitions)
            self.paused -= partitions

    def _check_drained(self) -> None:
        self.drained += 1
        assert self.quiet
        assert self.drained == 1
        assert not self.batches
        assert not any(self.places.values())
        assert not any(self.lives.get(each.life.partition) is each.life for each in self.flights)

    def _check_apply(self, apply: Apply) -> None:
        assert not self.away
        assert not self.quiet
        assert apply.track not in self.batches
        assert 0 < sum(len(part.events) for part in apply.slices) <= _stream(apply.track).batch_max
        lives: list[Life] = []
        for part in apply.slices:
            life = self.lives[part.partition]
            assert part.epoch == life.epoch
            offsets = [event.offset for event in part.events]
            expected = life.waiting[apply.track]
            assert offsets == expected[: len(offsets)]
            del expected[: len(offsets)]
            assert not expected or part.next_offset <= expected[0]
            lives.append(life)
        self.batches[apply.track] = (apply, lives)

    def _check_start(self, start: Start) -> None:
        assert not self.away
        assert not self.quiet
        self.places[start.track] += len(start.items)
        assert self.places[start.track] <= _lane(start.track).concurrency
        for item in start.items:
            life = self.lives[item.partition]
            assert item.epoch == life.epoch
            assert item.event.offset == item.offset
            waiting = life.waiting[start.track]
            key = item.event.key
            if key is not None:
                assert item.offset == next(offset for offset in waiting if key_of(offset) == key)
                assert not any(self._holds(flight, start.track, key) for flight in self.flights)
            waiting.remove(item.offset)
            self.flights.append(Flight(start.track, life, item))

    def _is_followed(self, life: Life) -> bool:
        taken_again = self.taking.get(life.partition) == life.epoch
        following = self.lives.get(life.partition)
        return taken_again or (following is not None and following.epoch == life.epoch)

    def _holds(self, flight: Flight, track: str, key: bytes) -> bool:
        ours = self.lives.get(flight.life.partition) is flight.life
        return ours and flight.track == track and flight.item.event.key == key

    def _check_point(self, life: Life, epoch: int, offset: int) -> None:
        key = (life.partition, epoch)
        assert epoch == life.epoch
        assert offset >= self.committed.get(key, 0), "a point fell within an epoch"
        assert offset <= max(life.bound(), self.floors.get(key, 0)), "a point passed an incomplete offset"
        self.committed[key] = offset

    def _check_let_go(self, action: LetGo) -> None:
        key = (action.partition, action.epoch)
        assert key in self.answers_due
        self.answers_due.remove(key)
        life = self.lives.pop(action.partition, None)
        if life is not None and action.next_offset is not None:
            self._check_point(life, action.epoch, action.next_offset)

    # -------------------------------------------------------------------------------------------------------- inside

    def _poll(self, life: Life, count: int, stale: bool) -> Slice:
        offsets = [offset for offset in range(life.position, life.position + 4 * count) if not gap_before(offset)][
            :count
        ]
        next_offset = offsets[-1] + 1 if offsets else life.position
        while gap_before(next_offset):
            next_offset += 1
        events: tuple[Any, ...] = tuple(event(life.partition, offset, key_of(offset)) for offset in offsets)
        epoch = life.epoch - 1 if stale else life.epoch
        taken = lanes_of(offsets)
        if not (stale or self.quiet or life.leaving):
            life.position = next_offset
            for track in TRACKS:
                chosen = offsets if isinstance(track, StreamTrack) else [offsets[index] for index in taken[track.name]]
                mine = [offset for offset in chosen if offset >= life.starts[track.name]]
                life.waiting[track.name] += mine
                life.incomplete[track.name].update(mine)
        return Slice(life.partition, epoch, events, next_offset, 10 * len(events), taken)

    def _forget(self, partition: Partition) -> None:
        self.taking.pop(partition, None)
        self.idle_assigned.discard(partition)
        self.lives.pop(partition, None)

    def _fenced(self, life: Life) -> None:
        """Its life is over, at once unless Kafka still waits for an answer; under quiet no other follows."""
        if self.lives.get(life.partition) is life and not life.leaving:
            key = (life.partition, life.epoch)
            self.floors[key] = max(self.floors.get(key, 0), life.bound())
            del self.lives[life.partition]
            if self.quiet:
                self.given_up.add(life.partition)


def _stream(name: str) -> StreamTrack:
    return next(track for track in STREAMS if track.name == name)


def _lane(name: str) -> LaneTrack:
    return next(track for track in LANES if track.name == name)
