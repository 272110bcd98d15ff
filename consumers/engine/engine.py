"""The engine: a signal goes in, actions come out. No IO; time is an argument.

It composes the parts and decides nothing itself that a part can decide: the window and the causes of pauses, streams,
lanes, commit points and commit timing each stand in a file of their own. What each signal means is one small function,
found in one table; after it, `_settle` says what follows from the new state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from ...inbox.event import Partition
from .committing import Committing
from .lanes import Lanes
from .partition import NOBODY, PartitionLife, Phase, Step
from .pausing import Pausing
from .policy import EnginePolicy
from .signals import (
    Action,
    Applied,
    Assigned,
    Delivered,
    DependencyAway,
    DependencyBack,
    Drained,
    Examine,
    Examined,
    Fenced,
    Finished,
    GoOn,
    LaneTrack,
    LetGo,
    Lost,
    NotCommitted,
    Pause,
    PauseCause,
    Quiet,
    Reached,
    Ready,
    Refused,
    Returned,
    Revoking,
    Seek,
    Signal,
    Slice,
    StandBack,
    StreamTrack,
    TakeOver,
    Tick,
    Track,
)
from .slices import behind
from .stream import Stream
from .window import Held, Window


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a partition is; lag is the log's end less `position` (to be read) or less `committable` (to be done)."""

    epoch: int
    phase: Phase
    position: int
    committable: int | None
    records: int
    size_bytes: int
    paused: bool


@final
class Engine:
    """All partitions and tracks of one consumer."""

    def __init__(self, tracks: Iterable[Track], policy: EnginePolicy) -> None:
        tracks = tuple(tracks)
        self._streams = {track.name: Stream(track) for track in tracks if isinstance(track, StreamTrack)}
        self._lanes = {track.name: Lanes(track) for track in tracks if isinstance(track, LaneTrack)}
        self._tracks = (*self._streams.values(), *self._lanes.values())
        assert len(self._tracks) == len(tracks), "track names must be unique"
        self._window = Window(policy)
        self._pausing = Pausing(self._window)
        self._committing = Committing(policy)
        self._lives: dict[Partition, PartitionLife] = {}
        self._leaving: set[PartitionLife] = set()
        self._drained = False
        self._receivers = self._table()

    def receive(self, signal: Signal, now_s: float) -> list[Action]:
        """What is to be done about this signal at this (monotonic) time, in this order."""
        actions: list[Action] = []
        self._receivers[type(signal)](signal, now_s, actions)
        self._settle(now_s, actions)
        return actions

    def _table(self) -> Mapping[type[Signal], Callable[[Any, float, list[Action]], None]]:
        return {
            Assigned: self._assigned,
            Ready: self._ready,
            Refused: self._refused,
            Fenced: self._fenced,
            Revoking: self._revoked,
            Lost: self._lost,
            Delivered: self._delivered,
            Reached: self._reached,
            Applied: self._applied,
            Returned: self._returned,
            Finished: self._finished,
            NotCommitted: self._not_committed,
            DependencyAway: self._away,
            DependencyBack: self._back,
            StandBack: self._stood_back,
            GoOn: self._went_on,
            Examined: self._examined,
            Quiet: self._quiet,
            Tick: self._ticked,
        }

    # ------------------------------------------------------------------------------------------------------ queries

    def prospect(self, track: str, partition: Partition, epoch: int, offsets: Iterable[int]) -> int | None:
        """A lane track's point if these offsets were finished; None where the partition is not ours (any more)."""
        life = self._current(partition, epoch)
        share = life.lanes.get(track)
        return None if share is None else share.commit_point.after(offsets, life.position)

    def point(self, track: str, partition: Partition) -> int | None:
        """Below it everything is durable for this track; None where the partition is not ours or not started."""
        life = self._lives.get(partition, NOBODY)
        return life.points().get(track)

    def window(self) -> tuple[int, int]:
        """Records and bytes in memory."""
        return self._window.records, self._window.size_bytes

    def causes(self) -> frozenset[PauseCause]:
        """Why partitions are paused now."""
        return self._pausing.causes()

    def turn_in_s(self, track: str, now_s: float) -> float:
        """When a handler may begin one more that does not come from here (a queued row): 0 is now, and counts."""
        return self._lanes[track].turn_in_s(now_s)

    def running(self) -> int:
        """Command handlers that were started and have not come back."""
        return sum(lanes.places_taken for lanes in self._lanes.values())

    def is_at_rest(self) -> bool:
        """Nothing is in memory, and nothing in flight."""
        return not (self._window.records or self._in_flight())

    def is_given(self, partition: Partition, epoch: int) -> bool:
        """Whether the partition was not taken away (yet) since this assignment."""
        return self._current(partition, epoch).phase is not Phase.GONE

    def is_done(self, partition: Partition, epoch: int, next_offset: int) -> bool | None:
        """Whether everything below `next_offset` is durable for every track; None where it is not ours to work on."""
        life = self._current(partition, epoch)
        return None if life.phase is not Phase.LIVE else min(life.points().values()) >= next_offset

    def progress(self) -> dict[Partition, Progress]:
        """All partitions that are ours."""
        return {
            partition: Progress(
                life.epoch,
                life.phase,
                life.position,
                life.point(),
                life.account.records,
                life.account.size_bytes,
                life.paused,
            )
            for partition, life in self._lives.items()
            if life.phase is not Phase.GONE
        }

    def wake_at_s(self) -> float | None:
        """When the next `Tick` has something to do; None where nothing waits for time."""
        commit_at_s = self._committing.wake_at_s()
        times = [] if commit_at_s is None else [commit_at_s]
        if self._leaving:
            times += [life.let_go_by_s for life in self._leaving]
        if not self._pausing.held_back:
            times += [at_s for track in self._tracks if (at_s := track.wake_at_s()) is not None]
        return min(times) if times else None

    # ---------------------------------------------------------------------------------------------------- ownership

    def _assigned(self, signal: Assigned, now_s: float, actions: list[Action]) -> None:
        for partition, epoch in signal.partitions.items():
            known = self._lives.get(partition, NOBODY)
            if epoch <= known.epoch:
                continue
            if known.allows(Step.LOST):
                self._end((known,), Step.LOST)
            self._begin(PartitionLife(partition, epoch, self._window.account()), actions)

    def _ready(self, signal: Ready, now_s: float, actions: list[Action]) -> None:
        life = self._current(signal.partition, signal.epoch)
        if not life.allows(Step.READY):
            return
        life.take(Step.READY)
        if signal.anew:
            life.forget()
        life.start(signal.starts, self._streams, self._lanes)
        self._committing.touch(life)
        self._pausing.look_again()
        kind = Examine if signal.suspected else Seek
        actions.append(kind(life.partition, life.epoch, life.position))

    def _examined(self, signal: Examined, now_s: float, actions: list[Action]) -> None:
        life = self._current(signal.partition, signal.epoch)
        if life.phase is Phase.LIVE:
            actions.append(Seek(life.partition, life.epoch, life.position))

    def _refused(self, signal: Refused, now_s: float, actions: list[Action]) -> None:
        life = self._current(signal.partition, signal.epoch)
        if life.allows(Step.REFUSED):
            self._give_up(life, Step.REFUSED, actions)

    def _fenced(self, signal: Fenced, now_s: float, actions: list[Action]) -> None:
        self._ask_again(self._current(signal.partition, signal.epoch), actions)

    def _ask_again(self, life: PartitionLife, actions: list[Action]) -> None:
        """The fence is not ours: start a new life under the same epoch, unless the partition is on its way out.

        1. The client still fetches, and slices of the old life may be on their way here.
        2. `Pause`, then `TakeOver`, which asks Kafka through the client's thread: its answer comes after those slices.
        3. So what arrives behind the new `Ready` was read behind the new `Seek`.
        """
        if not life.allows(Step.FENCED):
            return
        if life.phase is Phase.REVOKING or self._pausing.quiet:
            self._give_up(life, Step.FENCED, actions)
            return
        if not life.paused:
            life.paused = True
            actions.append(Pause(frozenset({life.partition})))
        self._end((life,), Step.FENCED)
        self._begin(life.again(self._window.account()), actions)

    def _revoked(self, signal: Revoking, now_s: float, actions: list[Action]) -> None:
        leaving: list[PartitionLife] = []
        for partition, epoch in signal.partitions.items():
            life = self._current(partition, epoch)
            if life.allows(Step.REVOKE):
                life.take(Step.REVOKE)
                life.let_go_by_s = now_s + signal.budget_s
                leaving.append(life)
            elif life.owes_answer and life.phase is Phase.GONE:
                _answer(life, None, actions)
        self._drop(leaving, gone=False)
        self._leaving.update(leaving)

    def _lost(self, signal: Lost, now_s: float, actions: list[Action]) -> None:
        lives = [self._current(partition, epoch) for partition, epoch in signal.partitions.items()]
        self._end([life for life in lives if life.allows(Step.LOST)], Step.LOST)
        for life in lives:
            life.owes_answer = False

    def _current(self, partition: Partition, epoch: int) -> PartitionLife:
        life = self._lives.get(partition, NOBODY)
        return life if life.epoch == epoch else NOBODY

    def _begin(self, life: PartitionLife, actions: list[Action]) -> None:
        self._lives[life.partition] = life
        self._pausing.look_again()
        if not self._pausing.quiet:
            life.take(Step.TAKE_OVER)
            actions.append(TakeOver(life.partition, life.epoch))

    def _give_up(self, life: PartitionLife, step: Step, actions: list[Action]) -> None:
        if life.phase is Phase.REVOKING:
            _answer(life, None, actions)
        self._end((life,), step)

    def _end(self, lives: Collection[PartitionLife], step: Step) -> None:
        self._drop(lives, gone=True)
        self._leaving.difference_update(lives)
        for life in lives:
            life.take(step)
            life.end()

    def _drop(self, lives: Collection[PartitionLife], *, gone: bool) -> None:
        """Forget what these have waiting, and where they are `gone` also what runs; one pass for all of them."""
        if not lives:
            return
        for name, stream in self._streams.items():
            stream.drop([life.streams[name] for life in lives if life.started])
        for name, lanes in self._lanes.items():
            lanes.drop({life.lanes[name] for life in lives if life.started}, gone=gone)

    # --------------------------------------------------------------------------------------------------------- work

    def _delivered(self, signal: Delivered, now_s: float, actions: list[Action]) -> None:
        if self._pausing.quiet:
            return
        for part in signal.slices:
            life = self._current(part.partition, part.epoch)
            if life.phase is Phase.LIVE and part.next_offset > life.position:
                self._take_in(life, behind(part, life.position), now_s)

    def _take_in(self, life: PartitionLife, part: Slice, now_s: float) -> None:
        assert not part.events or part.events[-1].record.offset < part.next_offset, "a slice ends behind its last event"
        held = Held(life.account, len(part.events), part.size_bytes)
        for name, stream in self._streams.items():
            stream.deliver(life.streams[name], part, held, life.position, now_s)
        takers = held.parts
        for name, lanes in self._lanes.items():
            before = held.parts
            lanes.deliver(life.lanes[name], part, held)
            takers += held.parts > before
        held.settle(takers)
        self._move(life, part.next_offset)

    def _reached(self, signal: Reached, now_s: float, actions: list[Action]) -> None:
        life = self._current(signal.partition, signal.epoch)
        if life.phase is Phase.LIVE and signal.position > life.position and not self._pausing.quiet:
            self._move(life, signal.position)

    def _move(self, life: PartitionLife, position: int) -> None:
        life.position = position
        self._committing.touch(life)

    def _applied(self, signal: Applied, now_s: float, actions: list[Action]) -> None:
        for share in self._streams[signal.track].land(signal.batch_id, signal.lost):
            life = self._lives[share.partition]
            if life.streams.get(signal.track) is not share:
                continue
            if share.partition in signal.lost:
                self._ask_again(life, actions)
            else:
                self._committing.touch(life)

    def _returned(self, signal: Returned, now_s: float, actions: list[Action]) -> None:
        self._lanes[signal.track].returned(signal.count)

    def _finished(self, signal: Finished, now_s: float, actions: list[Action]) -> None:
        life = self._current(signal.partition, signal.epoch)
        share = life.lanes.get(signal.track)
        if share is not None:
            self._lanes[signal.track].finished(share, signal.offsets)
            self._committing.touch(life)

    def _not_committed(self, signal: NotCommitted, now_s: float, actions: list[Action]) -> None:
        for partition, epoch in signal.partitions.items():
            life = self._current(partition, epoch)
            if life.phase is Phase.LIVE:
                life.said = None
                self._committing.touch(life)

    # ------------------------------------------------------------------------------------------------- pausing, time

    def _away(self, signal: DependencyAway, now_s: float, actions: list[Action]) -> None:
        self._pausing.away(signal.name)

    def _back(self, signal: DependencyBack, now_s: float, actions: list[Action]) -> None:
        self._pausing.back(signal.name)

    def _stood_back(self, signal: StandBack, now_s: float, actions: list[Action]) -> None:
        self._pausing.standing_back = True

    def _went_on(self, signal: GoOn, now_s: float, actions: list[Action]) -> None:
        self._pausing.standing_back = False

    def _quiet(self, signal: Quiet, now_s: float, actions: list[Action]) -> None:
        self._pausing.quiet = True

    def _ticked(self, signal: Tick, now_s: float, actions: list[Action]) -> None:
        """What follows from the time alone is in `_settle`."""

    # ------------------------------------------------------------------------------------------------ what follows

    def _settle(self, now_s: float, actions: list[Action]) -> None:
        if self._leaving:
            self._let_go(now_s, actions)
        self._pausing.settle(self._lives.values(), actions)
        if not self._pausing.held_back:
            self._dispatch(now_s, actions)
        commit = self._committing.due(now_s)
        if commit is not None:
            actions.append(commit)
        if self._pausing.quiet and not self._drained:
            self._drain(now_s, actions)

    def _dispatch(self, now_s: float, actions: list[Action]) -> None:
        if self._streams:
            hurry = self._window.full or self._pausing.standing_back
            actions += [stream.compose() for stream in self._streams.values() if stream.due(now_s, hurry=hurry)]
        if self._lanes:
            actions += [start for lanes in self._lanes.values() if (start := lanes.start(now_s)) is not None]

    def _let_go(self, now_s: float, actions: list[Action]) -> None:
        done = [life for life in self._leaving if not life.in_flight or now_s >= life.let_go_by_s]
        for life in done:
            _answer(life, life.point(), actions)
        self._end(done, Step.LET_GO)

    def _in_flight(self) -> bool:
        return (
            any(stream.in_flight for stream in self._streams.values())
            or any(lanes.places_taken for lanes in self._lanes.values())
            or any(life.in_flight for life in self._lives.values())
        )

    def _drain(self, now_s: float, actions: list[Action]) -> None:
        if self._in_flight():
            return
        self._drained = True
        commit = self._committing.everything(now_s)
        actions += [Drained()] if commit is None else [commit, Drained()]


def _answer(life: PartitionLife, next_offset: int | None, actions: list[Action]) -> None:
    life.owes_answer = False
    actions.append(LetGo(life.partition, life.epoch, next_offset))
