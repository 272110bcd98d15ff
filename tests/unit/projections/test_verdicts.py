"""What becomes of each event of a batch, by its id, its bytes and what the inbox knows."""

from __future__ import annotations

from typing import Any

from tidegate.dlq.rules import DeadNow, Transient
from tidegate.inbox.claim import ClaimKey, FailureFound, Probe
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.outcome import Dead, FailureState, Reason
from tidegate.projections.verdicts import NO_VERDICTS, Search, admit, conflict, pieces_of

KEY = (7, 1)
REJECTED = Dead(Reason.REJECTED, "refused")


def event(offset: int, id_: bytes, payload_hash: int = 1) -> Event[Any]:
    return Event(None, Record("t", 0, offset, b"k", b"v"), event_id=id_, payload_hash=payload_hash)


def row(id_: bytes, payload_hash: int) -> Probe:
    found = FailureFound(1, FailureState.DEAD, Partition("t", 0), 0, 0, payload_hash, None)
    return Probe(failures={ClaimKey(*KEY, id_): (found,)})


def test_each_id_counts_once_in_a_batch() -> None:
    first, repeat, other = event(0, b"a"), event(1, b"a"), event(2, b"a", 2)
    admitted = admit([first, repeat, other], Probe(), KEY, {})
    admitted.judge_rest()
    assert (admitted.fresh, admitted.duplicates, admitted.conflicts) == ([first], [repeat], [other])


def test_a_claim_decides_which_bytes_count() -> None:
    """The batch's first record is the conflict, if the claim has the bytes of the second."""
    first, second = event(0, b"a", 2), event(1, b"a", 1)
    admitted = admit([first, second], Probe(), KEY, {})
    admitted.sort_out(frozenset(), {b"a": 1})
    admitted.judge_rest()
    assert (admitted.fresh, admitted.duplicates, admitted.conflicts) == ([], [second], [first])


def test_repeats_of_an_event_that_is_dead_by_now_are_not_run() -> None:
    first, repeat, other = event(0, b"a"), event(1, b"a"), event(2, b"a", 2)
    admitted = admit([first, repeat, other], Probe(), KEY, {id(first): REJECTED})
    admitted.judge_rest()
    assert (admitted.fresh, admitted.duplicates, admitted.conflicts) == ([], [repeat], [other])


def test_a_conflict_leads_nobody() -> None:
    first, second = event(0, b"a", 2), event(1, b"a", 1)
    admitted = admit([first, second], Probe(), KEY, {id(first): conflict()})
    assert admitted.fresh == [second]


def test_what_stands_in_the_failure_table_is_not_run() -> None:
    known = event(5, b"a", 1)
    admitted = admit([known], row(b"a", 1), KEY, {})
    admitted.judge_rest()
    assert (admitted.fresh, admitted.duplicates) == ([], [known])


def test_other_bytes_beside_a_failure_are_a_conflict_unless_they_were_handled() -> None:
    suspect = event(5, b"a", 2)
    admitted = admit([suspect], row(b"a", 1), KEY, {})
    admitted.sort_out(frozenset(), {b"a": 2})
    admitted.judge_rest()
    assert (admitted.duplicates, admitted.conflicts) == ([suspect], [])
    admitted = admit([suspect], row(b"a", 1), KEY, {})
    admitted.judge_rest()
    assert admitted.conflicts == [suspect]


def test_pieces_are_cut_before_their_first_events() -> None:
    events = [event(n, b"%d" % n) for n in range(5)]
    assert list(pieces_of(events, {id(events[0]), id(events[3])})) == [events[:3], events[3:]]
    assert list(pieces_of(events, ())) == [events]
    assert list(pieces_of([], ())) == []


def test_a_search_ends_with_a_verdict_for_each_bad_event_and_pieces_of_good_ones() -> None:
    events = [event(n, b"%d" % n) for n in range(8)]
    search = Search(NO_VERDICTS, 1, patient=False)
    search.begin(events)
    place = 0
    while place < len(search.pieces):
        piece = search.pieces[place]
        place = search.failed(place, DeadNow(Reason.REJECTED), ValueError()) if events[3] in piece else place + 1
    found = search.verdicts()
    assert set(found.dead) == {id(events[3])}
    good = [e for e in events if e is not events[3]]
    assert [len(piece) for piece in pieces_of(good, found.starts)] == [2, 1, 4]


def test_a_patient_search_leaves_what_time_heals_a_piece_of_its_own() -> None:
    only = event(0, b"a")
    patient, last = Search(NO_VERDICTS, 1, patient=True), Search(NO_VERDICTS, 1, patient=False)
    for search in (patient, last):
        search.begin([only])
    assert patient.failed(0, Transient(), OSError()) == 1
    assert patient.verdicts().dead == {}
    assert last.failed(0, Transient(Reason.TIMEOUT), OSError()) == 0
    assert last.verdicts().dead[id(only)].reason is Reason.TIMEOUT
