"""Where a partition starts: one answer for each question, and a loud one where there is none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tidegate.consumers.engine.positions import (
    BeyondEnd,
    Findings,
    Gap,
    OnGap,
    StartAt,
    StartFrom,
    StartPolicy,
    WentBackInTime,
    decide_start,
)

EARLIEST = StartPolicy()
LATEST = StartPolicy(start=StartFrom.LATEST)
STEP_OVER = StartPolicy(on_gap=OnGap.EARLIEST)


def found(
    checkpoints: Mapping[str, int | None],
    *,
    kafka: int | None = None,
    fence: int | None = None,
    low: int = 0,
    high: int = 100,
    known: bool = True,
) -> Findings:
    return Findings(kafka, fence, low, high, checkpoints, known)


def test_records_lost_to_retention_are_a_gap_that_stops() -> None:
    """Committed 10, log begins at 50: a gap of 40 is reported, and nothing is skipped in silence.

    Case: B07
    Parts: fake (numbers instead of a log)
    Red when: positions._resume never returns a Gap
    """
    gone = found({"h": 10}, kafka=10, fence=10, low=50, high=80)
    assert decide_start(gone, EARLIEST) == Gap(lost=40, resume_offset=50, handlers=("h",))
    assert decide_start(gone, LATEST) == Gap(lost=40, resume_offset=50, handlers=("h",))


def test_a_gap_is_stepped_over_only_where_that_is_declared_and_is_counted() -> None:
    gone = found({"h": 10}, kafka=10, fence=10, low=50, high=80)
    assert decide_start(gone, STEP_OVER) == StartAt({"h": 50}, lost=40)


def test_a_new_partition_of_a_known_group_starts_at_its_beginning_although_latest_is_declared() -> None:
    """The group knows p0 and p1, nothing of p2 which holds 5 records: all 5 are handled.

    Case: B07
    Parts: fake (numbers instead of a log)
    Red when: positions._never_seen takes every start for the first one
    """
    assert decide_start(found({"h": None}, high=5, known=True), LATEST) == StartAt({"h": 0})


def test_a_group_that_the_database_knows_resumes_although_kafka_forgot_its_commits() -> None:
    """No commits at all, but the database says that the group ran: it goes on at its checkpoint.

    Case: B07
    Parts: fake (numbers instead of a log)
    Red when: positions._known is empty where kafka_offset is None
    """
    assert decide_start(found({"h": 42}, kafka=None, fence=42), LATEST) == StartAt({"h": 42})


@pytest.mark.parametrize(("policy", "offset"), [(EARLIEST, 20), (LATEST, 100)])
def test_the_declared_start_counts_at_the_first_start(policy: StartPolicy, offset: int) -> None:
    assert decide_start(found({"h": None}, low=20, known=False), policy) == StartAt({"h": offset})


def test_each_handler_resumes_at_its_own_checkpoint_and_a_new_one_at_the_lowest() -> None:
    decision = decide_start(found({"a": 30, "b": 50, "new": None}, fence=30, kafka=30), EARLIEST)
    assert decision == StartAt({"a": 30, "b": 50, "new": 30})
    assert isinstance(decision, StartAt)
    assert decision.position == 30


def test_a_gap_counts_from_the_handler_furthest_behind_and_names_all_it_hits() -> None:
    behind = found({"a": 10, "b": 40, "c": 60, "new": None}, low=50)
    assert decide_start(behind, EARLIEST) == Gap(lost=40, resume_offset=50, handlers=("a", "b"))
    assert decide_start(behind, STEP_OVER) == StartAt({"a": 50, "b": 50, "c": 60, "new": 50}, lost=40)


def test_a_checkpoint_beyond_the_end_stops() -> None:
    assert decide_start(found({"a": 10, "b": 11}, high=10), STEP_OVER) == BeyondEnd(offset=11, high=10, handlers=("b",))


def test_a_checkpoint_at_either_end_is_no_loss() -> None:
    assert decide_start(found({"a": 0, "b": 100}), EARLIEST) == StartAt({"a": 0, "b": 100})


def test_kafka_ahead_of_what_the_database_wrote_down_is_the_alarm() -> None:
    assert decide_start(found({"h": 10}, kafka=12, fence=10), EARLIEST) == WentBackInTime(12, 10)
    assert decide_start(found({"h": None}, kafka=12, fence=None, known=False), LATEST) == WentBackInTime(12, None)


def test_kafka_behind_the_fence_is_a_commit_that_did_not_get_out() -> None:
    assert decide_start(found({"h": 15}, kafka=10, fence=15), EARLIEST) == StartAt({"h": 15})


def test_an_app_without_handlers_goes_on_where_it_committed() -> None:
    assert decide_start(found({}, kafka=10, fence=10), EARLIEST) == StartAt({"": 10})
    assert decide_start(found({}, known=False), LATEST) == StartAt({"": 100})
    assert decide_start(found({}, fence=10, low=50), EARLIEST) == Gap(40, 50, ("",))
