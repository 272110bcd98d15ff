"""What may be done about an operation whose row stands already: every state under every rule."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from tidegate.inbox.effect_judging import (
    UNSURE_MAX,
    AlreadyDone,
    Ask,
    Contradiction,
    GiveUp,
    NotWanted,
    TakeOver,
    Wait,
    judge,
    judge_missing,
)
from tidegate.inbox.effect_rows import NOT_TOLD, Call, EffectRow, Origin, Owner
from tidegate.inbox.effect_rules import Asked, Effect, EffectRule, NotDone, Probe, idempotent_key, probe, review
from tidegate.inbox.effect_states import EffectState, Resolution
from tidegate.inbox.event import TIMESTAMP_NOT_AVAILABLE, Event, Partition, Record

CREATE_TIME = 1
NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)


def seconds(n: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=n)


def ask(asked: Asked) -> NotDone:
    return NotDone()


KEY, PROBE, REVIEW = idempotent_key(valid_s=100), probe(ask), review()
assert isinstance(PROBE, Probe)


def call(rule: EffectRule, request: Any = None, at: datetime.datetime | None = None) -> Call:
    owner = Owner("c/h", "#1", origin=Origin("c", Partition("t", 0)))
    written = (-1, TIMESTAMP_NOT_AVAILABLE) if at is None else (round(at.timestamp() * 1_000), CREATE_TIME)
    event: Event[None] = Event(None, Record("t", 0, 7, None, None, (), *written))
    return Call.of(Effect("charge", rule, 10.0), owner, "op", request, event=event)


def row(state: EffectState, rule: str = "review", **options: Any) -> EffectRow:
    """An attempt that began 30 s ago, with 10 s to the deadline and a margin of 5 s."""
    ended = None if state is EffectState.INTENDED else NOW - seconds(15)
    given: dict[str, Any] = {
        "id": 1, "state": state, "rule": rule, "fingerprint": NOT_TOLD, "attempt_id": b"a" * 16, "attempts": 1,
        "unsure": 0, "in_doubt": False, "key": "k", "key_no": 0, "key_since": NOW - seconds(30),
        "intended_at": NOW - seconds(30), "deadline": NOW - seconds(20), "due": NOW - seconds(15), "ended_at": ended,
        "external_id": None, "result": None, "error": "", "resolution": None, "probes": 0, "row_version": 1, "now": NOW,
    }  # fmt: skip
    return EffectRow(**{**given, **options})


def found(resolution: Resolution, **options: Any) -> EffectRow:
    return row(EffectState.RESOLVED, resolution=resolution, **options)


@pytest.mark.parametrize("rule", [KEY, PROBE, REVIEW])
def test_what_is_known_is_known_under_every_rule(rule: EffectRule) -> None:
    assert judge(row(EffectState.COMPLETED), call(rule)) == AlreadyDone()
    assert judge(found(Resolution.DONE), call(rule)) == AlreadyDone()
    assert judge(found(Resolution.DISCARDED), call(rule)) == NotWanted()
    surely = TakeOver(in_doubt=False, unsure=0, key_since=None)
    assert judge(row(EffectState.FAILED), call(rule)) == surely
    assert judge(found(Resolution.NOT_DONE), call(rule)) == surely


@pytest.mark.parametrize("rule", [KEY, PROBE, REVIEW])
def test_a_call_that_may_be_under_way_is_waited_for_under_every_rule(rule: EffectRule) -> None:
    due = NOW + seconds(0.001)
    assert judge(row(EffectState.INTENDED, due=due), call(rule)) == Wait(due)


@pytest.mark.parametrize("state", [EffectState.INTENDED, EffectState.UNKNOWN])
def test_what_nobody_knows_goes_by_its_rule(state: EffectState) -> None:
    again = TakeOver(in_doubt=True, unsure=1, key_since=NOW - seconds(30))
    assert judge(row(state, "idempotent_key"), call(KEY)) == again
    assert judge(row(state, "probe"), call(PROBE)) == Ask(PROBE)
    assert isinstance(judge(row(state), call(REVIEW)), GiveUp)


def test_an_attempt_that_ended_is_not_waited_for_where_the_key_protects_it() -> None:
    due = NOW + seconds(9)
    keyed, probed = row(EffectState.UNKNOWN, "idempotent_key", due=due), row(EffectState.UNKNOWN, "probe", due=due)
    assert isinstance(judge(keyed, call(KEY)), TakeOver)
    assert judge(probed, call(PROBE)) == Wait(due)


@pytest.mark.parametrize(("age_s", "valid"), [(89.9, True), (90.0, True), (90.1, False), (1e9, False)])
def test_a_key_counts_while_a_call_that_begins_now_still_reaches_the_service(age_s: float, valid: bool) -> None:
    stale = row(EffectState.UNKNOWN, "idempotent_key", key_since=NOW - seconds(age_s))
    assert isinstance(judge(stale, call(KEY)), TakeOver) == valid
    assert isinstance(judge(stale, call(idempotent_key(valid_s=100, then=PROBE))), TakeOver if valid else Ask)
    if not valid:
        assert judge(stale, call(KEY)) == GiveUp("its idempotency key is too old")


@pytest.mark.parametrize(("ahead_s", "valid"), [(5.0, True), (5.1, False), (3_600.0, False)])
def test_nobody_knows_how_old_a_key_from_the_future_is(ahead_s: float, valid: bool) -> None:
    ahead = row(EffectState.UNKNOWN, "idempotent_key", key_since=NOW + seconds(ahead_s))
    judged = judge(ahead, call(KEY))
    assert isinstance(judged, TakeOver) == valid
    if not valid:
        assert judged == GiveUp("nobody knows how old its idempotency key is: a clock was set back")


@pytest.mark.parametrize("made_under", ["probe", "review"])
def test_a_call_made_under_another_rule_did_not_carry_the_key(made_under: str) -> None:
    assert isinstance(judge(row(EffectState.UNKNOWN, made_under), call(KEY)), GiveUp)
    assert judge(row(EffectState.UNKNOWN, made_under), call(idempotent_key(valid_s=100, then=PROBE))) == Ask(PROBE)


@pytest.mark.parametrize("state", [EffectState.INTENDED, EffectState.UNKNOWN, EffectState.COMPLETED])
@pytest.mark.parametrize("rule", [KEY, PROBE, REVIEW])
def test_another_request_under_the_same_id_is_a_contradiction_and_never_a_call(
    rule: EffectRule, state: EffectState
) -> None:
    mine = call(rule, {"cents": 5})
    assert (
        judge(row(state, "idempotent_key", fingerprint=call(rule, {"cents": 6}).fingerprint), mine) == Contradiction()
    )
    assert judge(row(state, "idempotent_key", fingerprint=mine.fingerprint), mine) != Contradiction()
    assert judge(row(state, "idempotent_key", fingerprint=mine.fingerprint), call(rule)) != Contradiction()
    assert judge(row(state, "idempotent_key"), mine) != Contradiction()


def test_a_repaired_request_may_go_where_the_first_one_surely_did_not() -> None:
    failed = row(EffectState.FAILED, fingerprint=call(REVIEW, {"cents": -5}).fingerprint)
    assert isinstance(judge(failed, call(REVIEW, {"cents": 5})), TakeOver)


def test_a_service_that_never_answers_ends_with_a_person() -> None:
    assert isinstance(judge(row(EffectState.UNKNOWN, "probe", unsure=UNSURE_MAX), call(PROBE)), GiveUp)
    assert isinstance(judge(row(EffectState.UNKNOWN, "probe", unsure=UNSURE_MAX - 1), call(PROBE)), Ask)


def test_what_a_probe_found_stays_counted_and_a_refusal_does_not() -> None:
    again = TakeOver(in_doubt=False, unsure=7, key_since=None)
    assert judge(found(Resolution.NOT_DONE, unsure=7), call(PROBE)) == again
    assert judge(row(EffectState.FAILED, unsure=7), call(PROBE)) == replace(again, unsure=0)


# ------------------------------------------------------------------------------------------- attempts that never called


@pytest.mark.parametrize("rule", [KEY, PROBE, REVIEW])
def test_nobody_waits_for_an_attempt_that_never_called(rule: EffectRule) -> None:
    """Nor does its request bind anybody."""
    mine = row(EffectState.INTENDED, due=NOW + seconds(9), fingerprint=call(rule, {"cents": 6}).fingerprint)
    again = TakeOver(in_doubt=False, unsure=0, key_since=mine.key_since)
    assert judge(mine, call(rule, {"cents": 5}), withdrawn=True) == again


def test_what_it_took_over_in_doubt_goes_by_the_rule() -> None:
    fingerprint = call(KEY, {"cents": 6}).fingerprint
    mine = row(EffectState.INTENDED, "idempotent_key", due=NOW + seconds(9), in_doubt=True, unsure=1)
    assert judge(mine, call(KEY), withdrawn=True) == TakeOver(in_doubt=True, unsure=1, key_since=mine.key_since)
    told = replace(mine, fingerprint=fingerprint)
    assert judge(told, call(KEY, {"cents": 5}), withdrawn=True) == Contradiction()
    stale = replace(mine, key_since=NOW - seconds(91))
    assert judge(stale, call(KEY), withdrawn=True) == GiveUp("its idempotency key is too old")
    then = call(idempotent_key(valid_s=100, then=PROBE))
    assert judge(stale, then, withdrawn=True) == Wait(stale.due), "the call before it may be under way"
    assert judge(replace(stale, due=NOW), then, withdrawn=True) == Ask(PROBE)


# ---------------------------------------------------------------------------------------------------- after a restore


@pytest.mark.parametrize("old", [row(EffectState.FAILED, "idempotent_key"), found(Resolution.NOT_DONE, rule="probe")])
def test_what_a_copy_says_of_a_failure_is_not_what_happened_later(old: EffectRow) -> None:
    """The copy has attempt 1, which failed; attempt 2, which was done, is what the restore forgot."""
    restored = replace(old, restored_at=NOW - seconds(1))
    assert isinstance(judge(restored, call(REVIEW)), GiveUp)
    assert judge(restored, call(PROBE)) == Ask(PROBE)
    since = replace(old, restored_at=NOW - seconds(20))
    assert judge(since, call(REVIEW)) == TakeOver(in_doubt=False, unsure=0, key_since=None)


@pytest.mark.parametrize(("age_s", "calls"), [(0.0, True), (89.0, True), (91.0, False), (-1.0, False)])
def test_a_forgotten_call_has_a_key_as_old_as_its_record_at_most(age_s: float, calls: bool) -> None:
    at = NOW - seconds(age_s)
    expected = TakeOver(in_doubt=True, unsure=1, key_since=at) if calls else None
    assert judge_missing(call(KEY, at=at), NOW) == expected


def test_a_forgotten_call_opens_as_unknown_where_no_key_protects_it() -> None:
    assert judge_missing(call(KEY, at=None), NOW) is None
    for rule in (PROBE, REVIEW):
        assert judge_missing(call(rule, at=NOW), NOW) is None
