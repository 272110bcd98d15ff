"""A user's rules: asked before the tables, never before what is certain, and their own failures never hide an event."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.deadline import DeadlineError
from tidegate.dlq.decisions import RANKS
from tidegate.dlq.policy import Rule, Then, fail_on, retry_on, review_on, skip_on, stop_on
from tidegate.dlq.rules import (
    DATABASE,
    DeadNow,
    Decision,
    DependencyAway,
    Fatal,
    Lost,
    Postponed,
    ReviewNow,
    SkipNow,
    Transient,
    decide,
)
from tidegate.inbox.errors import (
    DependencyError,
    EffectPending,
    EffectUnknown,
    FatalError,
    OwnershipLost,
    RecordError,
    RetryLater,
)
from tidegate.inbox.faults import Fault, classify
from tidegate.inbox.outcome import Reason

DUE = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
REJECTED = DeadNow(Reason.REJECTED)

PENDING = EffectPending(7, DUE, "still out")
UNKNOWN = EffectUnknown(8, "nobody knows")

EVERYTHING = [make(Exception, because="everything") for make in (retry_on, skip_on, fail_on, review_on, stop_on)]


def giving(value: object) -> Callable[[Any], Any]:
    def function(_: Any) -> Any:
        return value

    return function


class PaymentError(Exception):
    """A user's own."""


class Declined(PaymentError):
    """A user's own, more exact."""

    def __init__(self, code: int = 51) -> None:
        self.code = code
        super().__init__(f"declined with {code}")


def code_of(error: Declined) -> int:
    return error.code


def raised_from(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


def raising(error: BaseException) -> Callable[[Any], Any]:
    def function(_: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("rule", "decision", "because"),
    [
        (retry_on(PaymentError, because="the bank sleeps"), Transient(), "the bank sleeps"),
        (skip_on(PaymentError, because="paid before"), SkipNow("paid before"), "paid before"),
        (fail_on(PaymentError, because="no"), DeadNow(Reason.REJECTED), "no"),
        (fail_on(PaymentError, because="no", reason=Reason.NO_KEY), DeadNow(Reason.NO_KEY), "no"),
        (review_on(PaymentError, because="who knows"), ReviewNow("who knows"), "who knows"),
        (stop_on(PaymentError, because="the books are open"), Fatal(), "the books are open"),
    ],
)
def test_each_rule_leads_where_it_says_and_the_decision_names_it(rule: Rule, decision: Decision, because: str) -> None:
    found = decide(Declined(), classify, [skip_on(KeyError, because="not this"), rule])
    assert found == decision
    assert found.because == because
    assert found.led_by.rule == 2
    assert str(found.led_by) == f"rule 2 ({rule.then} on {__name__}.PaymentError)"


def test_every_end_of_a_rule_is_tried() -> None:
    assert {rule.then for rule in EVERYTHING} == set(Then)


def test_the_first_rule_that_fits_decides() -> None:
    rules = [
        fail_on(Declined, because="lost card", when=lambda error: error.code == 43),
        retry_on(Declined, because="not enough money today"),
        review_on(PaymentError, because="anything else"),
    ]
    assert decide(Declined(43), classify, rules) == REJECTED
    assert decide(Declined(51), classify, rules) == Transient()
    assert decide(PaymentError(), classify, rules) == ReviewNow("")
    assert decide(ValueError(), classify, rules) == REJECTED


@pytest.mark.parametrize("rule", EVERYTHING, ids=lambda rule: rule.then.value)
@pytest.mark.parametrize(
    ("error", "decision"),
    [
        (OwnershipLost(), Lost()),
        (FatalError("x", fix="y"), Fatal()),
        (UNKNOWN, ReviewNow("", 8)),
        (PENDING, Postponed(DUE, 7)),
    ],
)
def test_no_rule_is_asked_about_what_is_certain(rule: Rule, error: Exception, decision: Decision) -> None:
    """A call that may have been made is never skipped, retried or forgotten by a rule, wherever it stands."""
    for raised in (
        error,
        raised_from(PaymentError(), error),
        raised_from(PaymentError(), raised_from(KeyError(), error)),
        ExceptionGroup("tasks", [PaymentError(), error]),
        raised_from(PaymentError(), ExceptionGroup("tasks", [ExceptionGroup("in", [error]), ValueError()])),
    ):
        found = decide(raised, classify, [rule])
        assert found == decision
        assert found.led_by.rule == 0
        assert str(found.led_by)


def test_of_what_is_certain_a_lost_partition_goes_first_and_a_wait_last() -> None:
    errors = [PENDING, UNKNOWN, FatalError("x", fix="y"), OwnershipLost()]
    found: list[Decision] = []
    while errors:
        found.append(decide(ExceptionGroup("all at once", errors), classify))
        errors.pop()
    assert found == [Lost(), Fatal(), ReviewNow("", 8), Postponed(DUE, 7)]


def test_rules_are_asked_of_the_exception_then_of_what_it_was_raised_from() -> None:
    rules = [fail_on(KeyError, because="no such order"), retry_on(PaymentError, because="the bank sleeps")]
    assert decide(raised_from(PaymentError(), KeyError("x")), classify, rules) == Transient()
    assert decide(raised_from(RuntimeError(), KeyError("x")), classify, rules) == REJECTED
    assert (
        decide(raised_from(RuntimeError(), raised_from(ValueError(), PaymentError())), classify, rules) == Transient()
    )


def test_an_error_raised_while_handling_another_is_its_own() -> None:
    error = RuntimeError()
    error.__context__ = PaymentError()
    assert decide(error, classify, [skip_on(PaymentError, because="x")]) == REJECTED


def test_a_rule_about_a_cause_goes_before_the_tables_word_on_the_exception() -> None:
    error = raised_from(ConnectionError(), Declined())
    assert decide(error, classify) == DependencyAway(DATABASE)
    assert decide(error, classify, [fail_on(Declined, because="x")]) == REJECTED


@pytest.mark.parametrize(
    "name",
    [
        f"{__name__}.Declined",
        f"{__name__}.PaymentError",
        "builtins.Exception",
        "Exception",
    ],
)
def test_a_rule_may_name_its_class(name: str) -> None:
    assert decide(Declined(), classify, [skip_on(name, because="x")]) == SkipNow("")


@pytest.mark.parametrize("name", ["Declined", "other.Declined", "tests.PaymentError", "KeyError", "no_module.At.All"])
def test_another_name_is_another_class(name: str) -> None:
    assert decide(Declined(), classify, [skip_on(name, because="x")]) == REJECTED


def test_a_library_may_show_its_class_under_another_name() -> None:
    error = json.JSONDecodeError("bad", "x", 0)
    assert decide(error, classify, [skip_on("json.JSONDecodeError", because="x")]) == SkipNow("")
    assert decide(error, classify, [skip_on("json.decoder.JSONDecodeError", because="x")]) == SkipNow("")


def test_a_nested_class_has_a_name() -> None:
    class Inner(Exception):
        pass

    name = f"{Inner.__module__}.{Inner.__qualname__}"
    assert decide(Inner(), classify, [skip_on(name, because="x")]) == SkipNow("")


class No:
    """What `numpy` gives for a comparison of arrays."""

    def __bool__(self) -> bool:
        raise ValueError("neither yes nor no")


@pytest.mark.parametrize(
    "when",
    [
        raising(AttributeError("no code")),
        raising(SystemExit(1)),
        raising(KeyboardInterrupt()),
        raising(GeneratorExit()),
        giving(No()),
        cast(Any, lambda: True),
    ],
)
@pytest.mark.parametrize("make", [retry_on, skip_on, fail_on, review_on, stop_on])
def test_a_condition_that_raises_is_the_events_end_and_names_its_rule(make: Any, when: Any) -> None:
    """Nobody knows whether the rule fits, so nothing is guessed: a dead letter whose text names the rule.

    Case: B34
    Parts: -
    Red when: dlq/rules.py's _of_rule gives None where the condition raised
    """
    found = decide(Declined(), classify, [make(Declined, because="x", when=when)])
    assert found == REJECTED
    assert found.led_by.rule == 1
    assert f"rule 1 ({make(Declined, because='x').then} on {__name__}.Declined): its condition raised" in found.because


def test_a_condition_is_not_asked_about_another_class() -> None:
    assert decide(KeyError(), classify, [retry_on(Declined, because="x", when=raising(ValueError()))]) == REJECTED


@pytest.mark.parametrize(
    ("after_s", "wait_s", "note"),
    [
        (code_of, 51, ""),
        (giving(0), 0, ""),
        (giving(None), None, ""),
        (raising(ValueError("x")), None, "(its after_s raised ValueError: the backoff is used)"),
        (raising(SystemExit(1)), None, "its after_s raised tidegate.dlq.guard.HandlerLeft"),
        (giving("soon"), None, "(its after_s gave a str that is no wait: the backoff is used)"),
        (giving(float("nan")), None, "gave a float that is no wait"),
        (giving(float("inf")), None, "gave a float that is no wait"),
        (giving(10**400), None, "gave a int that is no wait"),
        (giving(-1), None, "gave a int that is no wait"),
        (giving(True), None, "gave a bool that is no wait"),
    ],
)
def test_a_wait_that_cannot_be_read_still_is_a_retry(after_s: Any, wait_s: float | None, note: str) -> None:
    found = decide(Declined(), classify, [retry_on(Declined, because="busy", after_s=after_s)])
    assert found == Transient(after_s=wait_s)
    assert found.because.startswith("busy")
    assert note in found.because


def test_a_handler_that_runs_out_of_time_under_a_rule_still_is_a_timeout_at_its_end() -> None:
    found = decide(DeadlineError("too long"), classify, [retry_on(TimeoutError, because="x"), EVERYTHING[0]])
    assert found == Transient(Reason.TIMEOUT)


def test_a_handler_may_ask_for_its_wait_itself() -> None:
    assert decide(RetryLater("the bank opens at nine", after_s=30.0), classify) == Transient(after_s=30.0)
    assert decide(RetryLater("later"), classify) == Transient()


def test_of_a_group_the_mildest_decision_counts_and_a_skip_only_if_all_are_skipped() -> None:
    rules = [
        skip_on(KeyError, because="known"),
        review_on(Declined, because="who knows"),
        retry_on(PaymentError, because="later"),
    ]
    known, failed, later, asked = KeyError(), ValueError(), PaymentError(), Declined()
    away = DependencyError("bank", "away")
    for members, decision in (
        ([known, known], SkipNow("")),
        ([known, failed], REJECTED),
        ([known, failed, later], Transient()),
        ([known, failed, later, away], DependencyAway("bank")),
        ([known, failed, later, away, asked], ReviewNow("")),
    ):
        assert decide(ExceptionGroup("tasks", members), classify, rules) == decision
        assert decide(ExceptionGroup("deep", [ExceptionGroup("er", members)]), classify, rules) == decision
        assert decide(raised_from(RuntimeError(), ExceptionGroup("tasks", members)), classify, rules) == decision


def test_a_rule_may_be_about_a_group() -> None:
    group = ExceptionGroup("tasks", [KeyError()])
    assert decide(group, classify, [review_on(ExceptionGroup, because="x")]) == ReviewNow("")


def test_groups_in_groups_and_loops_of_causes_end() -> None:
    deep: Exception = KeyError()
    for _ in range(500):
        deep = raised_from(RuntimeError(), ExceptionGroup("again", [deep]))
    assert decide(deep, classify, [skip_on(KeyError, because="x")]) == REJECTED
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, ExceptionGroup("loop", [first])
    assert decide(first, classify, [skip_on(KeyError, because="x")]) == REJECTED


def test_no_table_skips() -> None:
    """Only who wrote a rule may lose an event.

    Case: B35
    Parts: -
    Red when: a line of dlq/rule_tables.py leads to SkipNow
    """
    errors: list[BaseException] = [cls() for cls in _classes(BaseException)]
    errors += [RecordError(Reason.NO_KEY, "x"), PENDING, UNKNOWN, DependencyError("x", "y"), asyncio.CancelledError()]
    assert len(errors) > 50
    for error in errors:
        assert not isinstance(decide(error, classify), SkipNow)


def _classes(cls: type[BaseException]) -> list[type[BaseException]]:
    """Every builtin class that is made out of nothing."""
    below = [sub for sub in cls.__subclasses__() if sub.__module__ == "builtins"]
    plain = [sub for sub in below if not issubclass(sub, UnicodeError | BaseExceptionGroup)]
    return [cls, *(found for sub in plain for found in _classes(sub))]


rules_of_any_kind = st.builds(
    Rule,
    on=st.sampled_from([Exception, OSError, PaymentError, "KeyError", "nowhere.Error", ExceptionGroup]),
    then=st.sampled_from(Then),
    because=st.just("x"),
    when=st.sampled_from([None, giving(True), giving(False), raising(ValueError())]),
    after_s=st.sampled_from([None, giving(1.0), raising(ValueError())]),
)
errors_of_any_kind = st.recursive(
    st.sampled_from([ValueError, OSError, OwnershipLost, MemoryError, PaymentError, KeyError]).map(lambda cls: cls()),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda errors: ExceptionGroup("g", errors))
        | st.tuples(inner, inner).map(lambda pair: raised_from(*pair))
    ),
    max_leaves=8,
)


@given(errors_of_any_kind, st.lists(rules_of_any_kind, max_size=4))
def test_every_exception_has_a_decision_under_every_set_of_rules(error: Exception, rules: list[Rule]) -> None:
    found = decide(error, classify, rules)
    assert isinstance(found, RANKS)
    assert str(found.led_by)
    assert found.because


def test_a_classifier_that_fails_leaves_the_handlers_own_error() -> None:
    def broken(_: BaseException) -> Fault:
        raise RuntimeError

    assert decide(ValueError(), broken) == REJECTED
