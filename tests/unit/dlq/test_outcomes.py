"""What a handler returned, and what it raised, become outcomes that say what is to be known."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.decisions import DeadNow, Fatal, LedBy, Transient
from tidegate.dlq.outcomes import dead_by, fatal_by, outcome_of
from tidegate.inbox.errors import FatalError
from tidegate.inbox.event import Record
from tidegate.inbox.outcome import Dead, Handled, Reason, Retry, Skipped, Unknown

RECORD = Record("shop.orders", 3, 17, b"order-1", b'{"card": "4111-test-card"}')
RULE = LedBy("rule 1 (fail on ValueError)", 1)


async def forgotten() -> None: ...


@pytest.mark.parametrize(
    "value", [Handled(), Skipped("no invoice is due"), Retry("busy", 30), Dead(Reason.NO_KEY, "no"), Unknown("no word")]
)
def test_an_outcome_is_what_it_is(value: object) -> None:
    assert outcome_of(value) == value


def test_nothing_is_done() -> None:
    assert outcome_of(None) == Handled()


@pytest.mark.parametrize(
    ("value", "what", "fix"),
    [
        (True, "a bool, which says nothing", "return None when it is done"),
        (0, "a int, which says nothing", "Skipped, Retry, Dead or Unknown"),
        ({"status": "error"}, "a dict, which says nothing", "return None"),
        ("skipped", "a str, which says nothing", "return None"),
        (ValueError("x"), "a ValueError, which says nothing", "return None"),
        (Skipped, "the class Skipped", "Skipped(...)"),
        (Retry, "the class Retry", "Retry(...)"),
        (Retry("busy", cast(Any, "soon")), "after_s is a str that is no wait", "give seconds"),
        (Retry("busy", math.nan), "after_s is a float that is no wait", "give seconds"),
        (Retry("busy", 10**400), "after_s is a int that is no wait", "give seconds"),
        (Retry("busy", -1), "after_s is a int that is no wait", "give seconds"),
        (Dead(cast(Any, "broken"), "x"), "a Dead with a reason of its own", "take one of undecodable"),
    ],
)
def test_nonsense_is_dead_with_a_text_that_names_it_and_the_fix(value: object, what: str, fix: str) -> None:
    """A handler that returns nonsense did not say that it is done: its event never passes for a success.

    Case: B34
    Parts: -
    Red when: dlq/outcomes.py's `case _` returns Handled()
    """
    outcome = outcome_of(value)
    assert isinstance(outcome, Dead)
    assert outcome.reason is Reason.REJECTED
    assert what in outcome.why
    assert fix in outcome.why.partition(". Fix: ")[2]


def test_a_forgotten_await_is_named_and_warned_about_nowhere_else() -> None:
    outcome = outcome_of(forgotten())
    assert isinstance(outcome, Dead)
    assert "a coroutine that nobody awaited" in outcome.why


def test_a_reason_may_be_written_as_a_text() -> None:
    assert outcome_of(Dead(cast(Any, "no_key"), "x")) == Dead(Reason.NO_KEY, "x")


def rejected(why: str) -> Dead:
    return Dead(Reason.REJECTED, why)


@pytest.mark.parametrize("make", [Skipped, Unknown, Retry, rejected])
def test_what_an_outcome_says_is_as_clean_as_what_an_exception_says(make: Any) -> None:
    """Text that a handler writes into an outcome goes into rows and headers: no secret, no value of the record.

    Case: B38
    Parts: -
    Red when: dlq/outcomes.py's _told returns text
    """
    outcome = cast(Any, outcome_of(make("card 4111-test-card\x00 at postgresql://app:pw123@db " + "x" * 9_999), RECORD))
    assert "4111-test-card" not in outcome.why
    assert "pw123" not in outcome.why
    assert "\x00" not in outcome.why
    assert len(outcome.why) <= 500
    assert cast(Any, outcome_of(make(cast(Any, 5)))).why == "int"


@given(st.floats() | st.binary() | st.builds(Retry, st.text(), st.floats() | st.integers()) | st.builds(object))
def test_whatever_comes_back_has_an_outcome(value: object) -> None:
    assert isinstance(outcome_of(value), Handled | Skipped | Retry | Dead | Unknown)


def test_a_rules_reason_stands_before_the_exceptions_message() -> None:
    by_rule = dead_by(DeadNow(Reason.REJECTED, "a declined card stays declined", RULE), ValueError("code 51"), RECORD)
    assert by_rule.why == "a declined card stays declined: code 51"
    by_table = dead_by(DeadNow(Reason.REJECTED, "nobody knows it"), ValueError("code 51"), RECORD)
    assert by_table == Dead(Reason.REJECTED, "code 51", "ValueError")
    exhausted = dead_by(Transient(Reason.TIMEOUT, because="the bank is slow", led_by=RULE), ValueError(""), RECORD)
    assert exhausted == Dead(Reason.TIMEOUT, "the bank is slow: ValueError", "ValueError")


def test_a_process_leaves_with_its_own_error_or_with_the_rules() -> None:
    """A stop by a rule says where and why, without the record's values and without secrets.

    Case: B38
    Parts: -
    Red when: dlq/outcomes.py's fatal_by puts str(exc) into its FatalError
    """
    own = FatalError("the ledger is gone", fix="look")
    wrapped = ValueError("x")
    wrapped.__cause__ = own
    assert fatal_by(Fatal(), own, RECORD) is own
    assert fatal_by(Fatal(), wrapped, RECORD) is own
    error = fatal_by(Fatal("the books do not balance", RULE), ValueError("4111-test-card password=pw123"), RECORD)
    assert "shop.orders/3@17: ValueError: the books do not balance: " in str(error)
    assert "4111-test-card" not in str(error)
    assert "pw123" not in str(error)
    of_a_batch = fatal_by(Fatal("the books do not balance", RULE), ValueError("4111-test-card"))
    assert str(of_a_batch).startswith("ValueError: the books do not balance. Fix: ")
