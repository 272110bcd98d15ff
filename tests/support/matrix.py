"""The crash matrix: which kinds of handlings there are, which points each of them passes, and one kill for each pair.

No IO. A step is one kill: a worker that was armed for one point of one kind's path, and the input that makes it get
there. Steps of a chain share a group and its tables; each step's worker first works off what the last one left.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.inbox.identity import event_id16, event_prefix
from tidegate.inbox.points import Point, Writes

EVENTS: Final = 3
"""In each step: two of one key, one of another."""


class Lit(enum.Enum):
    """From when on passes of the point count."""

    INPUT = "input"
    """The worker has started and worked off what was left."""
    START = "start"
    """The worker's start itself."""
    STOP = "stop"
    """It is asked to stop."""
    REPLAY = "replay"
    """The start, after the input could not be decoded, and was put back."""


class Ends(enum.Enum):
    """How an event of a kind ends, whatever happens in between."""

    CLAIMED = "claimed"
    DEAD = "dead"


def _around(writes: Writes) -> tuple[Point, ...]:
    return writes.value


READ: Final = (Point.POLLED, Point.DECODED)
OFFSETS: Final = (Point.BEFORE_OFFSETS, Point.AFTER_OFFSETS)
TOLD: Final = (*_around(Writes.NOTE), *OFFSETS, *_around(Writes.RAISE))
RUN: Final = (Point.BEFORE_HANDLER, Point.AFTER_HANDLER)
COMPLETED: Final = (Point.CLAIMED, *_around(Writes.GROUP))
SENDING: Final = (Point.BEFORE_SEND, Point.AFTER_SEND)
SENT: Final = (*SENDING, *_around(Writes.MARK))
CALLED: Final = (
    *_around(Writes.INTENT),
    Point.BEFORE_CALL,
    Point.IN_CALL,
    Point.AFTER_CALL,
    *_around(Writes.COMPLETION),
)
IN_DOUBT: Final = (Point.AFTER_INTENT, Point.BEFORE_CALL, Point.IN_CALL, Point.AFTER_CALL, Point.BEFORE_COMPLETION)
"""Who dies here leaves an intent, and nobody but the provider knows whether the call was made."""
BEFORE_CALLS: Final = (*READ, Point.PROBED, Point.BEFORE_HANDLER, Point.BEFORE_INTENT)
"""Who dies here, the first time that the point is passed, has called nobody; later the next event may."""

EVENT: Final = (*READ, Point.PROBED, *RUN, *TOLD)
"""What every event of a command passes."""
COMMAND: Final = (*EVENT, *COMPLETED)
NAMED: Final = {
    *(Point.CLAIMED, *RUN, *CALLED, *_around(Writes.VERDICTS), *_around(Writes.GROUP), *_around(Writes.TX)),
    *(*_around(Writes.ROW), *_around(Writes.VERDICT), *_around(Writes.RECONCILE)),
}
"""Points that are passed on behalf of a handler, or of an effect that has its name."""


class Kind(enum.Enum):
    """A kind of handling; its value is its handler's name."""

    PROJECTION = "sums"
    COMMAND = "note"
    TX = "book"
    PUBLISH = "tell"
    KEYED = "keyed"
    PROBED = "probed"
    REVIEWED = "reviewed"
    UNSAID = "unsaid"
    """The reconciler's way: up to its call it is like PROBED."""
    REFUSED = "refused"
    BAD_BATCH = "checked"
    LATER = "later"
    AGAIN = "again"
    TWICE = "twice"
    PICKY = "picky"
    REJECT = ""

    @property
    def type(self) -> str:
        """Its events' type, which is the name of a class."""
        return "Nonsense" if self is Kind.REJECT else self.value.title()

    @property
    def ends(self) -> Ends:
        """How its events end."""
        return Ends.DEAD if self in (Kind.REFUSED, Kind.BAD_BATCH, Kind.TWICE, Kind.REJECT) else Ends.CLAIMED

    @property
    def is_effect(self) -> bool:
        """It calls the provider."""
        return self in (Kind.KEYED, Kind.PROBED, Kind.REVIEWED, Kind.UNSAID)


PATHS: Final[dict[Kind, tuple[Point, ...]]] = {
    Kind.PROJECTION: (*READ, Point.CLAIMED, *RUN, *_around(Writes.BATCH), *TOLD),
    Kind.COMMAND: COMMAND,
    Kind.TX: (*COMMAND, *_around(Writes.TX)),
    Kind.PUBLISH: (*COMMAND, *SENT),
    Kind.KEYED: (*COMMAND, *CALLED),
    Kind.PROBED: (*COMMAND, *CALLED),
    Kind.REVIEWED: (*COMMAND, *CALLED),
    Kind.UNSAID: _around(Writes.RECONCILE),
    Kind.REFUSED: (*EVENT, *_around(Writes.GROUP), *SENT),
    Kind.BAD_BATCH: (*READ, Point.CLAIMED, Point.BEFORE_HANDLER, *_around(Writes.VERDICTS), *SENT, *TOLD),
    Kind.LATER: (*COMMAND, *_around(Writes.ROW)),
    Kind.AGAIN: (*COMMAND, *_around(Writes.TX)),
    Kind.TWICE: (*EVENT, *_around(Writes.GROUP), *_around(Writes.VERDICT), *SENT),
    Kind.PICKY: (*_around(Writes.HAND_OUT), Point.CLAIMED, *RUN, *_around(Writes.ROW)),
    Kind.REJECT: (*READ, *_around(Writes.REJECTS), *SENT, *TOLD),
}

STARTS: Final = (
    *_around(Writes.REGISTER),
    *_around(Writes.TOPIC),
    *_around(Writes.LEASE),
    Point.BEFORE_TAKEOVER,
    *_around(Writes.WANT),
    *_around(Writes.TAKE),
    Point.AFTER_TAKEOVER,
    *_around(Writes.START),
)
AGREES: Final = _around(Writes.AGREE)
"""Passed by the start of a group, and by one behind a death between the note and the commit of an offset."""
STOPS: Final = _around(Writes.RELEASE)


@dataclass(frozen=True, slots=True)
class Step:
    """One kill."""

    point: Point
    kind: Kind
    lit: Lit = Lit.INPUT

    @property
    def name(self) -> str:
        """Stands in the ids of its events, and in what a failed test says."""
        return f"{self.kind.name.lower()}-{self.point.value}"

    def at(self, out_topic: str, letters: str) -> str:
        """How the worker is armed: for the kind's own pass of the point, wherever the code says whose it is."""
        if self.point in NAMED:
            return f"{self.point.value}@{self.kind.value}"
        if self.point in SENT:
            return f"{self.point.value}@{out_topic if self.kind is Kind.PUBLISH else letters}"
        return self.point.value

    def events(self) -> list[Sent]:
        """Its input."""
        alone = self.kind in (Kind.REVIEWED, Kind.UNSAID)  # whose key would wait for a person too
        keys = ("a", "b", "c") if alone else ("a", "a", "b")
        return [Sent(f"{self.name}-{n}", f"{self.name}-{key}", self, n) for n, key in enumerate(keys)]


@dataclass(frozen=True, slots=True)
class Sent:
    """One record of the input."""

    id: str
    key: str
    step: Step
    number: int

    @property
    def value(self) -> bytes:
        """The bytes."""
        return b'{"number": ' if self.step.kind is Kind.REJECT else json.dumps({"number": self.number + 1}).encode()

    def event_id(self, topic: str) -> bytes:
        """The key under which it is claimed."""
        return event_id16(event_prefix(topic, self.step.kind.type, b""), self.id.encode())


OFFSET_IN_DOUBT: Final = Step(Point.BEFORE_OFFSETS, Kind.PROJECTION)
"""Who dies there has noted an offset that Kafka was not told, unless it was about to say the last one again."""


def every_step() -> list[Step]:
    """Each point with each kind that passes it."""
    steps = [_step(point, kind) for point in Point for kind in Kind if point in PATHS[kind]]
    return [*steps, *_around_the_input()]


def some_steps() -> list[Step]:
    """Each point once, with the kind that passes it and had the fewest turns; what is sent, as a letter and not."""
    turns = Counter[Kind]()
    chosen: list[Step] = []
    for point in Point:
        passing = [kind for kind in Kind if point in PATHS[kind]]
        for way in _ways(point, passing):
            kind = min(way, key=lambda kind: (kind is Kind.PICKY, turns[kind]))  # which needs two more workers
            turns[kind] += 1
            chosen.append(_step(point, kind))
    return [*chosen, *_around_the_input()]


def _ways(point: Point, kinds: list[Kind]) -> list[list[Kind]]:
    """Kinds that pass the point alike; none of these groups is empty."""
    letters = [kind for kind in kinds if kind.ends is Ends.DEAD]
    ways = [letters, [kind for kind in kinds if kind not in letters]] if point in SENDING else [kinds]
    return [way for way in ways if way]


def _step(point: Point, kind: Kind) -> Step:
    return Step(point, kind, Lit.REPLAY if kind is Kind.PICKY else Lit.INPUT)


def _around_the_input() -> Iterator[Step]:
    for point in STARTS:
        yield Step(point, Kind.COMMAND, Lit.START)
    for point in AGREES:
        yield OFFSET_IN_DOUBT
        yield Step(point, Kind.COMMAND, Lit.START)
    for point in STOPS:
        yield Step(point, Kind.COMMAND, Lit.STOP)


def chains(steps: Iterable[Step], number: int) -> list[list[Step]]:
    """Split into this many chains of neighbours."""
    whole = list(steps)
    size = -(-len(whole) // number)
    return [whole[start : start + size] for start in range(0, len(whole), size)]
