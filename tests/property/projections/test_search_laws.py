"""Whatever fails in a batch, and however often: each event has exactly one end, and a key keeps its order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.dlq.policy import AfterDead, FailurePolicy, OnFailure
from tidegate.dlq.retry import RetryPolicy
from tidegate.dlq.rules import DeadNow, Decision, ReviewNow, SkipNow, Transient
from tidegate.inbox.clock import ManualClock
from tidegate.inbox.event import Event, Record
from tidegate.inbox.outcome import Reason
from tidegate.projections.fates import BEHIND, Died, Fate, ForReview, Later, holds, in_order, lane_of
from tidegate.projections.search import Search

ATTEMPTS_MAX = 4
PASSES_MAX = 200
"""Far more than a search of this size needs."""

Events = list[Event[Any]]


@dataclass(frozen=True)
class Kind:
    """What an event does to the function that gets it. One that `needs` fails where the one before it of its key did
    not land: an update of what was never created.
    """

    name: str
    times: int = 0
    """A transient one fails so often."""
    foe: int = 0
    """It fails in one run with the event at this place."""


KINDS = st.one_of(
    st.sampled_from([Kind("fine")] * 3 + [Kind("needs")] * 3 + [Kind("permanent"), Kind("skip"), Kind("review")]),
    st.integers(1, 12).map(lambda times: Kind("transient", times=times)),
    st.integers(0, 11).map(lambda foe: Kind("pair", foe=foe)),
)


class Failing(Exception):
    """One run of the function failed, and what that means."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__("it failed")


@final
@dataclass
class World:
    """A function that fails as its events say, and a transaction around it that may be undone."""

    events: Events
    kinds: list[Kind]
    calls: Counter[int] = field(default_factory=Counter[int])
    landed: set[int] = field(default_factory=set[int])
    """Offsets that the open transaction holds."""

    def run(self, piece: Events) -> None:
        """One run of the function, in a savepoint."""
        before = set(self.landed)
        try:
            self._run(piece)
        except Failing:
            self.landed = before
            raise

    def _run(self, piece: Events) -> None:
        offsets = {event.offset for event in piece}
        for event in piece:
            kind = self.kinds[event.offset]
            self.calls[event.offset] += 1
            before = self.before(event)
            if kind.name == "needs" and before is not None and before not in self.landed:
                raise Failing(DeadNow(Reason.REJECTED))
            if kind.name == "permanent":
                raise Failing(DeadNow(Reason.REJECTED))
            if kind.name == "skip":
                raise Failing(SkipNow("of no interest"))
            if kind.name == "review":
                raise Failing(ReviewNow("ask"))
            if kind.name == "transient" and self.calls[event.offset] <= kind.times:
                raise Failing(Transient())
            if kind.name == "pair" and kind.foe in offsets and kind.foe != event.offset:
                raise Failing(DeadNow(Reason.REJECTED))
            self.landed.add(event.offset)

    def before(self, event: Event[Any]) -> int | None:
        """The offset of the event before it of its key."""
        lane = lane_of(event)
        earlier = [other.offset for other in self.events[: event.offset] if lane is not None and lane_of(other) == lane]
        return earlier[-1] if earlier else None

    def settle(self, policy: FailurePolicy, clock: ManualClock) -> tuple[Events, dict[int, Fate], set[int]]:
        """What `Settler` does, without a database: (applied, fates, skipped)."""
        try:
            self.run(self.events)
        except Failing as failing:
            search = Search("revenue", policy, 60.0, clock)
            search.failed_whole(failing.decision, failing, self.events)
        else:
            return self.events, {}, set()
        for _ in range(PASSES_MAX):
            clock.advance(search.delay_s or 0.0)
            known = search.known()
            fates = dict(in_order(self.events, known.fates, (), policy, clock.now()))
            self.landed = set()
            applied = self._pass(search, [event for event in self.events if id(event) not in fates])
            if search.is_settled:
                return applied, fates, set(search.known().skipped)
        raise AssertionError("the search does not end")

    def _pass(self, search: Search, fresh: Events) -> Events:
        applied: Events = []
        search.begin(fresh)
        while (piece := search.next()) is not None:
            try:
                self.run(piece)
            except Failing as failing:
                search.failed(failing.decision, failing)
            else:
                search.went_well()
                applied += piece
        return applied


@settings(max_examples=300)
@given(
    kinds=st.lists(KINDS, min_size=1, max_size=12),
    keys=st.lists(st.sampled_from([b"a", b"b", None]), min_size=12, max_size=12),
    on_failure=st.sampled_from(["continue", "block"]),
    after_dead=st.sampled_from(["release", "hold"]),
    in_place_max_s=st.sampled_from([0.0, 0.3, 1_000.0]),
    seed=st.integers(0, 1_000),
)
@example([Kind("transient", times=3), Kind("needs")], [b"a"] * 2, "continue", "release", 1_000.0, 0)
@example([Kind("transient", times=9), Kind("needs")], [b"a"] * 2, "block", "release", 0.0, 0)
@example([Kind("permanent"), Kind("fine"), Kind("needs")], [b"a"] * 3, "block", "hold", 0.0, 0)
def test_each_event_has_one_end_and_its_reason_and_a_key_keeps_its_order(
    kinds: list[Kind],
    keys: list[bytes | None],
    on_failure: OnFailure,
    after_dead: AfterDead,
    in_place_max_s: float,
    seed: int,
) -> None:
    """Permanent failures, transient ones, and pairs that fail only together, over a batch with keys.

    Case: B36
    Parts: none (pure)
    Red when: projections/search.py `_wait` leaves out `self._hold(event)`
    """
    events = [Event(None, Record("t", 0, n, keys[n], b"v"), event_id=b"%16d" % n) for n in range(len(kinds))]
    retry = RetryPolicy(attempts_max=ATTEMPTS_MAX, in_place_max_s=in_place_max_s)
    policy = FailurePolicy(on_failure, retry, after_dead=after_dead)
    world = World(events, kinds)
    applied, fates, skipped = world.settle(policy, ManualClock(seed=seed))
    ends = Counter([*(event.offset for event in applied), *_offsets(events, fates), *_offsets(events, skipped)])
    assert ends == Counter(range(len(events)))
    for event in events:
        had_its_need = world.before(event) in {None, *(other.offset for other in applied)}
        _check_end(kinds[event.offset], fates.get(id(event)), id(event) in skipped, had_its_need)
    _check_order(events, applied, fates, policy)


def _offsets(events: Events, chosen: dict[int, Fate] | set[int]) -> list[int]:
    return [event.offset for event in events if id(event) in chosen]


def _check_end(kind: Kind, fate: Fate | None, is_skipped: bool, had_its_need: bool) -> None:
    """The end is one that its kind can come to."""
    if isinstance(fate, Later) and fate.verdict == BEHIND:
        return
    match kind.name:
        case "permanent":
            assert isinstance(fate, Died)
            assert fate.dead.reason is Reason.REJECTED
        case "review":
            assert isinstance(fate, ForReview)
        case "skip":
            assert is_skipped
        case "needs" if not had_its_need:
            assert isinstance(fate, Died)
        case "transient":
            assert fate is None or (isinstance(fate, Later) and fate.verdict.reason == "retry") or _is_exhausted(fate)
        case _:
            assert fate is None
            assert not is_skipped


def _is_exhausted(fate: Fate) -> bool:
    return isinstance(fate, Died) and fate.dead.reason is Reason.EXHAUSTED and fate.attempts >= ATTEMPTS_MAX


def _check_order(events: Events, applied: Events, fates: dict[int, Fate], policy: FailurePolicy) -> None:
    """What landed of a key did so in its order, and under `block` nothing did behind an event that holds it."""
    for lane in {lane_of(event) for event in events} - {None}:
        offsets = [event.offset for event in applied if lane_of(event) == lane]
        assert offsets == sorted(offsets)
        if policy.on_failure != "block":
            continue
        of_lane = [event for event in events if lane_of(event) == lane]
        ends = [fates.get(id(event)) for event in of_lane]
        held = next((n for n, fate in enumerate(ends) if fate is not None and holds(fate, policy)), len(ends))
        behind = [fate for fate in ends[held + 1 :] if isinstance(fate, Later) and fate.verdict == BEHIND]
        assert len(behind) == len(ends[held + 1 :])
