"""What becomes of each event of a batch: fresh, a repeat, a conflict, or dead. No IO."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from ..dlq.failure_text import dead as dead_outcome
from ..dlq.rules import DeadNow, Decision, Transient
from ..inbox.claim import ClaimKey, Probe
from ..inbox.event import Event
from ..inbox.outcome import Dead, Reason

Events = list[Event[Any]]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a bisection found. By identity: two records of one batch may carry the same event id."""

    dead: Mapping[int, Dead]
    """id(event) -> why it is dead."""
    starts: frozenset[int] = frozenset()
    """id(event) of the first event of each piece that went well by itself: the whole may not (two upserts of one key
    in one statement, say), so the pieces are handed over as they were tried."""
    attempts: Mapping[int, int] = field(default_factory=dict[int, int])
    """id(event) -> how often its batch was tried before; 1 where nothing is said."""

    def with_conflicts(self, events: Iterable[Event[Any]]) -> Verdicts:
        """The same, and these are conflicts."""
        return replace(self, dead={**self.dead, **{id(event): conflict() for event in events}})


NO_VERDICTS: Final = Verdicts({})


def conflict() -> Dead:
    """The verdict on an event whose id is known with other bytes."""
    return Dead(Reason.CONFLICT, "another record with this event id and different bytes was handled before")


def pieces_of(events: Events, starts: Collection[int]) -> Iterator[Events]:
    """The events, cut before each one that starts a piece; nothing where there are none."""
    if not starts:
        if events:
            yield events
        return
    piece: Events = []
    for event in events:
        if piece and id(event) in starts:
            yield piece
            piece = []
        piece.append(event)
    if piece:
        yield piece


@final
@dataclass(slots=True)
class Admitted:
    """What a projection gets of a batch, after its claims."""

    fresh: Events
    """The first of each id, until its claim says that it was handled before."""
    duplicates: Events = field(default_factory=list)
    conflicts: Events = field(default_factory=list)
    followers: Events = field(default_factory=list)
    """Later records of an id in the same batch; judged by the bytes that count for their id."""
    suspects: Events = field(default_factory=list)
    """Fresh ones that stand in the failure table with other bytes: repeats of a claim, or conflicts."""
    hashes: dict[bytes, int] = field(default_factory=dict)
    """Event id -> the payload hash that counts."""

    def sort_out(self, new: frozenset[bytes], taken: Mapping[bytes, int]) -> None:
        """Ids that were claimed before are repeats, or conflicts where the bytes differ."""
        fresh, self.fresh = self.fresh, []
        for event in fresh:
            if event.event_id in new:
                self.fresh.append(event)
            else:
                self._judge(event, taken.get(event.event_id, event.payload_hash))
        self.suspects = [event for event in self.suspects if event.event_id in new]
        self.hashes.update(taken)

    def judge_rest(self) -> None:
        """Followers, and suspects that nobody claimed."""
        self.conflicts += self.suspects
        for event in self.followers:
            self._judge(event, self.hashes[event.event_id])

    def _judge(self, event: Event[Any], payload_hash: int) -> None:
        (self.duplicates if event.payload_hash == payload_hash else self.conflicts).append(event)


def admit(events: Events, known: Probe, key: tuple[int, int], dead: Mapping[int, Dead]) -> Admitted:
    """What is to be claimed of `events`, before their claims are asked for."""
    if dead:
        conflicting = {number for number, verdict in dead.items() if verdict.reason is Reason.CONFLICT}
        events = [event for event in events if id(event) not in conflicting]
    admitted = _leaders(events)
    if dead:
        admitted.fresh = [event for event in admitted.fresh if id(event) not in dead]
        admitted.followers = [event for event in admitted.followers if id(event) not in dead]
    if known.failures:
        _set_aside(admitted, known, key)
    return admitted


def _leaders(events: Events) -> Admitted:
    first = {event.event_id: event for event in reversed(events)}
    if len(first) == len(events):
        return Admitted(events)
    return Admitted(
        [event for event in events if first[event.event_id] is event],
        followers=[event for event in events if first[event.event_id] is not event],
        hashes={event_id: event.payload_hash for event_id, event in first.items()},
    )


def _set_aside(admitted: Admitted, known: Probe, key: tuple[int, int]) -> None:
    """What stands in the failure table is not run: it is being dealt with there."""
    fresh, admitted.fresh = admitted.fresh, []
    for event in fresh:
        rows = known.failures.get(ClaimKey(*key, event.event_id), ())
        if any(row.payload_hash == event.payload_hash for row in rows):
            admitted.duplicates.append(event)
            continue
        admitted.fresh.append(event)
        if rows:
            admitted.suspects.append(event)


@final
class Search:
    """A bisection's state: pieces in their order, and the events that no try will help.

    Args:
        before: what was found earlier.
        attempts: how often the batch was tried by now.
        patient: what time may heal is left.
    """

    def __init__(self, before: Verdicts, attempts: int, *, patient: bool) -> None:
        self.dead = dict(before.dead)
        self._before = before
        self._attempts = attempts
        self.pieces: list[Events] = []
        self._patient = patient
        self._begun = False

    def begin(self, events: Sequence[Event[Any]]) -> None:
        """The events to try, once; a trial that is made again goes on with the pieces that there are."""
        if not self._begun and events:
            self.pieces = [list(events)]
        self._begun = True

    def failed(self, place: int, decision: Decision | None, error: Exception) -> int:
        """The piece at `place` failed: halve it, or judge its one event. Gives the place to go on at."""
        piece = self.pieces[place]
        if len(piece) > 1:
            middle = len(piece) // 2
            self.pieces[place : place + 1] = [piece[:middle], piece[middle:]]
            return place
        if self._patient and isinstance(decision, Transient):
            return place + 1  # it has a piece of its own, and tries left
        self.dead[id(piece[0])] = dead_outcome(_reason(decision), error, piece[0].record)
        del self.pieces[place]
        return place

    def verdicts(self) -> Verdicts:
        """What was found."""
        attempts = {number: self._before.attempts.get(number, self._attempts) for number in self.dead}
        return Verdicts(self.dead, frozenset(id(piece[0]) for piece in self.pieces), attempts)


def _reason(decision: Decision | None) -> Reason:
    if isinstance(decision, DeadNow):
        return decision.reason
    return decision.exhausted if isinstance(decision, Transient) else Reason.EXHAUSTED
