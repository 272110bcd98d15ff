"""What a backfill makes of each record, by what the inbox knew before and what it says now."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.consumers.backfill.order import Bounds, Frame
from tidegate.consumers.backfill.sifting import Cause, Plan, Tally, Target, known_before, outcome, plan, sift
from tidegate.consumers.client.ports import Rejected, Taken
from tidegate.inbox.claim import ClaimKey, FailureFound, Probe
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.outcome import FailureState, Reason

P = Partition("t", 0)
KEY = (7, 0)
TARGET = Target("do", *KEY, None)
FRAME = Frame(100, 200, None, force=False)


def event(offset: int, id_: str = "", payload_hash: int = 1, tenant: str | None = None, ms: int = 150) -> Event[Any]:
    record = Record("t", 0, offset, b"k", b"v", (), ms, 1)
    name = id_ or f"e{offset}"
    return Event({}, record, "Thing", name.encode(), name, payload_hash, tenant)


def taken(*events: Event[Any], rejects: tuple[Rejected, ...] = ()) -> Taken:
    return Taken(events, rejects, {"do": tuple(range(len(events)))})


def row(state: FailureState, offset: int, payload_hash: int = 1) -> FailureFound:
    return FailureFound(offset + 100, state, P, 0, offset, payload_hash, None)


def probe(claims: dict[str, int] | None = None, failures: dict[str, FailureFound] | None = None) -> Probe:
    return Probe(
        {ClaimKey(*KEY, id_.encode()): found for id_, found in (claims or {}).items()},
        {ClaimKey(*KEY, id_.encode()): (found,) for id_, found in (failures or {}).items()},
    )


def test_records_outside_window_tenant_and_types_are_left_out() -> None:
    events = [event(0, ms=99), event(1, tenant="A"), event(2, tenant="B"), event(3, ms=200)]
    other = Record("t", 0, 4, b"k", b"v", (), 150, 1)
    bad = Rejected(Record("t", 0, 5, b"k", b"v", (), 150, 1), Reason.UNDECODABLE, "no")
    unmatched = Rejected(other, Reason.UNMATCHED, "nobody")
    records = [*(e.record for e in events), other, bad.record]
    frame = Frame(100, 200, "A", force=False)
    sifted = sift(records, taken(*events, rejects=(unmatched, bad)), TARGET, frame, lambda _: "A")
    assert [e.offset for e in sifted.events] == [1]
    assert sifted.rejects == [bad]
    assert sifted.left == {Cause.OUTSIDE_WINDOW: 2, Cause.OTHER_TENANT: 1, Cause.NOT_FOR_HANDLER: 1}
    elsewhere = sift(records, taken(*events, rejects=(bad,)), TARGET, frame, lambda _: "B")
    assert elsewhere.rejects == []
    assert elsewhere.left[Cause.OTHER_TENANT] == 2


def test_a_record_without_a_time_counts() -> None:
    timeless = Record("t", 0, 0, b"k", b"v", (), -1, 0)
    made: Event[Any] = Event({}, timeless, "Thing", b"e", "e", 1)
    assert sift([timeless], taken(made), TARGET, FRAME, lambda _: None).events == [made]


def test_the_same_bytes_are_known_and_other_bytes_are_a_conflict_to_be_handled() -> None:
    events = [event(0), event(1), event(2), event(3)]
    now = probe({"e0": 1, "e1": 2}, {"e2": row(FailureState.DEAD, 9), "e3": row(FailureState.DEAD, 9, 5)})
    assert known_before(events, now, TARGET) == {0, 2}
    at_its_place = probe(failures={"e3": row(FailureState.DEAD, 3, 5)})
    assert known_before(events, at_its_place, TARGET) == {3}


def test_what_the_inbox_may_have_forgotten_is_refused_and_what_it_knows_is_not() -> None:
    events = [event(n) for n in range(6)]
    bounds = Bounds({P: 2}, {P: 4})
    made = plan(events, {0}, bounds, force=False)
    assert [e.offset for e in made.known] == [0]
    assert made.causes == {Cause.TOO_OLD: 1, Cause.AFTER_RESTORE: 2}
    assert [e.offset for e in made.fresh] == [4, 5]
    assert [e.offset for e in plan(events, {0}, bounds, force=True).fresh] == [1, 2, 3, 4, 5]


def test_a_repeat_within_the_window_is_no_second_event_and_other_bytes_are() -> None:
    made = plan([event(0, "a"), event(1, "a"), event(2, "a", 2)], set(), Bounds(), force=False)
    assert [e.offset for e in made.fresh] == [0, 2]
    assert made.causes == {Cause.REPEAT: 1}


def test_outcomes_are_told_by_claims_and_rows() -> None:
    fresh = [event(n) for n in range(6)]
    known = [event(10), event(11), event(12)]
    now = probe(
        {"e0": 1, "e10": 1},
        {"e1": row(FailureState.QUEUED, 1), "e2": row(FailureState.DEAD, 2), "e3": row(FailureState.UNKNOWN, 3),
         "e4": row(FailureState.LINKED, 4), "e11": row(FailureState.DEAD, 11), "e12": row(FailureState.DISCARDED, 12)},
    )  # fmt: skip
    tally, undone = outcome(Plan(fresh, known, Tally().causes), now, TARGET)
    assert tally.handled == 1
    assert [e.offset for e in undone] == [5]
    counts = tally.counts()
    assert (counts.handled, counts.skipped, counts.refused, counts.failed) == (1, 4, 0, 3)
    assert counts.causes == {
        "queued": 1, "dead": 1, "unknown": 1, "repeat": 1, "handled_before": 1, "in_inbox": 1, "discarded": 1,
    }  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 2)), max_size=20),
    st.sets(st.integers(0, 19)), st.integers(0, 20), st.booleans(),
)  # fmt: skip
def test_whatever_is_read_is_counted_once(ids: list[tuple[int, int]], known: set[int], birth: int, force: bool) -> None:
    events = [event(n, f"i{id_}", found) for n, (id_, found) in enumerate(ids)]
    made = plan(events, known, Bounds({P: birth}), force=force)
    everything = Probe({ClaimKey(*KEY, e.event_id): e.payload_hash for e in events})
    tally, undone = outcome(made, everything, TARGET)
    assert undone == []
    assert tally.counts().read == len(events)
