"""Rule sets that are refused at start: the handler, the rule, what is wrong, and the fix are named."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from tidegate.consumers import App, Json, position
from tidegate.dlq.policy import FailurePolicy, Rule, Then, fail_on, retry_on, review_on, skip_on, stop_on
from tidegate.dlq.retry import RetryPolicy
from tidegate.dlq.rule_checks import policy_problems, rule_problems, rule_warnings
from tidegate.inbox.errors import EffectUnknown, FatalError, OwnershipLost
from tidegate.inbox.outcome import Reason

KEY = "handler 'bill' of 'orders'"


async def later(_: BaseException) -> bool:
    return True


@pytest.mark.parametrize(
    ("rule", "what", "fix"),
    [
        (retry_on(OSError, because=""), "it has no reason", "because="),
        (retry_on(OSError, because="  "), "it has no reason", "because="),
        (retry_on(OSError, because=cast(Any, None)), "it has no reason", "because="),
        (skip_on(cast(Any, int), because="x"), "int is no exception class", "name one exception class"),
        (skip_on(cast(Any, (OSError, KeyError)), because="x"), "a tuple is no exception class", "one exception class"),
        (skip_on(cast(Any, ValueError("x")), because="x"), "a ValueError is no exception class", "one exception class"),
        (fail_on("json.loads", because="x"), "json.loads is no exception class", "exception class"),
        (fail_on("int", because="x"), "int is no exception class", "exception class"),
        (fail_on("Refused", because="x"), "'Refused' is no full name", "module.Class"),
        (fail_on("shop.errors:Refused", because="x"), "'shop.errors:Refused' is no full name", "module.Class"),
        (fail_on("shop..Refused", because="x"), "'shop..Refused' is no full name", "module.Class"),
        (fail_on("", because="x"), "'' is no full name", "module.Class"),
        (skip_on(BaseException, because="x"), "BaseException also is how a worker is stopped", "Exception"),
        (skip_on("BaseException", because="x"), "BaseException also is how a worker is stopped", "Exception"),
        (retry_on(asyncio.CancelledError, because="x"), "CancelledError also is how a worker is stopped", "Exception"),
        (stop_on(KeyboardInterrupt, because="x"), "KeyboardInterrupt also is how", "Exception"),
        (retry_on(OwnershipLost, because="x"), "no rule is asked about OwnershipLost", "take the rule out"),
        (skip_on(FatalError, because="x"), "no rule is asked about FatalError", "take the rule out"),
        (fail_on(EffectUnknown, because="x"), "no rule is asked about EffectUnknown", "take the rule out"),
        (fail_on("tidegate.inbox.errors.EffectPending", because="x"), "no rule is asked about EffectPending", "out"),
        (retry_on(OSError, because="x", when=cast(Any, later)), "when= is an async def", "give a def"),
        (retry_on(OSError, because="x", after_s=cast(Any, later)), "after_s= is an async def", "give a def"),
        (retry_on(OSError, because="x", after_s=cast(Any, 30)), "after_s= is a int", "a function"),
        (fail_on(OSError, because="x", reason=cast(Any, "my_reason")), "'my_reason' is no reason", "rejected"),
    ],
)
def test_a_rule_that_is_wrong_by_itself_is_refused(rule: Rule, what: str, fix: str) -> None:
    (problem,) = rule_problems(KEY, [rule])
    assert problem.key == f"{KEY}, rule 1"
    assert what in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize(
    "rule",
    [
        retry_on(OSError, because="x"),
        skip_on("aiohttp.ClientError", because="x"),
        fail_on("ValueError", because="x"),
        fail_on("builtins.ValueError", because="x"),
        review_on("shop.errors.Outer.Inner", because="x"),
        stop_on(Exception, because="x"),
        fail_on(ExceptionGroup, because="x"),
        retry_on(SystemExit, because="a library of ours leaves so"),
    ],
)
def test_a_rule_that_can_be_asked_is_accepted(rule: Rule) -> None:
    assert rule_problems(KEY, [rule]) == []


def test_what_is_no_rule_is_named() -> None:
    (problem,) = rule_problems(KEY, [OSError])
    assert (problem.key, problem.what) == (KEY, "rule 1 is a type, not a rule")
    assert "retry_on" in problem.fix


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (retry_on(OSError, because="x"), fail_on(OSError, because="y")),
        (retry_on(OSError, because="x"), fail_on(ConnectionError, because="y", when=lambda _: True)),
        (retry_on("OSError", because="x"), fail_on(ConnectionError, because="y")),
        (retry_on(OSError, because="x"), fail_on("ConnectionError", because="y")),
        (retry_on("shop.Refused", because="x"), fail_on("shop.Refused", because="y")),
        (retry_on("json.decoder.JSONDecodeError", because="x"), fail_on("json.JSONDecodeError", because="y")),
    ],
)
def test_a_rule_that_nothing_reaches_is_refused(first: Rule, second: Rule) -> None:
    (problem,) = rule_problems(KEY, [first, second])
    assert problem.key == f"{KEY}, rule 2"
    assert "never gets here: rule 1 takes every" in problem.what
    assert "put it before rule 1" in problem.fix


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (retry_on(OSError, because="x", when=lambda _: True), fail_on(OSError, because="y")),
        (retry_on(ConnectionError, because="x"), fail_on(OSError, because="y")),
        (retry_on("shop.Refused", because="x"), fail_on("shop.Gone", because="y")),
        (retry_on(OSError, because="x"), fail_on("not.loaded.yet.Error", because="y")),
    ],
)
def test_a_rule_that_something_may_reach_is_accepted(first: Rule, second: Rule) -> None:
    assert rule_problems(KEY, [first, second]) == []


def test_a_wrong_rule_does_not_hide_the_others() -> None:
    rules = [retry_on(OSError, because=""), retry_on(OSError, because="x"), fail_on(OSError, because="y")]
    assert [problem.key[-6:] for problem in rule_problems(KEY, rules)] == ["rule 1", "rule 3"]


def test_a_retry_without_end_is_refused_however_it_was_made() -> None:
    """A policy that went round its own check, with an age without end, does not start.

    Case: B35
    Parts: -
    Red when: dlq/rule_checks.py's retry_problems gives [] for every RetryPolicy
    """
    endless = RetryPolicy()
    object.__setattr__(endless, "age_max_s", float("inf"))
    (problem,) = policy_problems(KEY, FailurePolicy(retry=endless, rules=(retry_on(OSError, because="x"),)))
    assert problem.key == f"{KEY}, retry.age_max_s"
    (problem,) = policy_problems(KEY, FailurePolicy(retry=cast(Any, 5)))
    assert problem.what == "retry= is a int"


def test_a_rule_for_an_outage_is_a_warning() -> None:
    assert len(rule_warnings(KEY, [skip_on(Exception, because="x")])) == 1
    assert len(rule_warnings(KEY, [fail_on("OSError", because="x")])) == 1
    assert rule_warnings(KEY, [fail_on(Exception, because="x", when=lambda _: True)]) == []
    assert rule_warnings(KEY, [retry_on(Exception, because="x"), fail_on(ValueError, because="x")]) == []


def test_a_name_that_its_module_does_not_have_is_a_warning() -> None:
    (warning,) = rule_warnings(KEY, [fail_on("json.JSONDecodError", because="x")])
    assert "the module json has no JSONDecodError" in warning
    assert rule_warnings(KEY, [fail_on("not.loaded.yet.Error", because="x")]) == []


def test_an_app_tells_every_wrong_rule_of_it_and_of_its_handlers() -> None:
    app = App("billing", owner="payments", rules=[retry_on(OSError, because=""), retry_on(KeyError, because="x")])
    orders = app.consumer("orders", topics=["shop.orders"], codec=Json(), event_id=position())

    @orders.projection("seen", rules=[fail_on(KeyError, because="no such order"), skip_on("Nope", because="x")])
    async def seen(events: Any, tx: Any) -> None: ...

    problems = app.problems()
    assert [problem.key for problem in problems] == ["app 'billing', rule 1", "handler 'seen' of 'orders', rule 2"]
    policy = orders.policies()["seen"]
    assert policy.own_rules == policy.rules[:2]
    assert [rule.then for rule in policy.rules] == [Then.FAIL, Then.SKIP, Then.RETRY, Then.RETRY]


def test_the_makers_make_what_they_say() -> None:
    def when(_: BaseException) -> bool:
        return True

    def after_s(_: BaseException) -> float:
        return 2.0

    assert retry_on(OSError, because="x", when=when, after_s=after_s) == Rule(OSError, Then.RETRY, "x", when, after_s)
    assert skip_on(OSError, because="x", when=when) == Rule(OSError, Then.SKIP, "x", when)
    assert review_on(OSError, because="x", when=when) == Rule(OSError, Then.REVIEW, "x", when)
    assert stop_on(OSError, because="x", when=when) == Rule(OSError, Then.STOP, "x", when)
    timeout = fail_on(OSError, because="x", when=when, reason=Reason.TIMEOUT)
    assert timeout == replace(Rule(OSError, Then.FAIL, "x", when), reason=Reason.TIMEOUT)
