"""What is to be claimed of a batch, by each event's id, its bytes and what the inbox knows."""

from __future__ import annotations

import datetime
from typing import Any

from tidegate.inbox.claim import ClaimKey, FailureFound, Probe
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failure_rows import Verdict
from tidegate.inbox.outcome import Dead, FailureState, Reason
from tidegate.projections.fates import BEHIND, CONFLICT, Died, Fate, ForReview, Later
from tidegate.projections.verdicts import admit, in_batch_order

KEY = (7, 1)
REJECTED = Died(Dead(Reason.REJECTED, "refused"))
WAITS = Later(BEHIND, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))


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
    assert (admitted.fresh, admitted.aside) == ([], [first])
    assert (admitted.duplicates, admitted.conflicts) == ([repeat], [other])


def test_a_repeat_ends_with_its_original_whatever_it_met_itself() -> None:
    first, repeat = event(0, b"a"), event(1, b"a")
    admitted = admit([first, repeat], Probe(), KEY, {id(first): REJECTED, id(repeat): WAITS})
    admitted.judge_rest()
    assert (admitted.aside, admitted.duplicates) == ([first], [repeat])


def test_a_conflict_leads_nobody() -> None:
    first, second = event(0, b"a", 2), event(1, b"a", 1)
    conflicts: list[Fate] = [Died(CONFLICT), ForReview(Verdict.of(CONFLICT))]
    for fate in conflicts:
        admitted = admit([first, second], Probe(), KEY, {id(first): fate})
        assert (admitted.fresh, admitted.aside) == ([second], [first])


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


def test_what_would_wait_for_its_key_is_looked_up_first() -> None:
    """Nothing of a parked key is claimed, so its claim is asked for beforehand."""
    waiting, follower = event(0, b"a"), event(1, b"a")
    fates = {id(waiting): WAITS}
    for known, aside, duplicates, conflicts in (
        (Probe(), [waiting], [follower], []),
        (Probe(claims={ClaimKey(*KEY, b"a"): 1}), [], [waiting, follower], []),
        (Probe(claims={ClaimKey(*KEY, b"a"): 2}), [], [], [waiting, follower]),
        (row(b"a", 1), [], [waiting, follower], []),
        (row(b"a", 2), [], [follower], [waiting]),
    ):
        admitted = admit([waiting, follower], known, KEY, fates)
        admitted.judge_rest()
        assert (admitted.fresh, admitted.aside) == ([], aside)
        assert (admitted.duplicates, admitted.conflicts) == (duplicates, conflicts)


def test_those_set_aside_come_in_the_order_of_the_batch() -> None:
    events = [event(n, b"%d" % n) for n in range(4)]
    assert in_batch_order(events, [events[3], events[0]]) == [events[0], events[3]]
