"""What a command says about the calls it makes: how many at once, which ones, and what a stop has to wait for."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.consumers import App, Event, Json, field, idempotent_key, review
from tidegate.consumers.cli.preparing import drain_problems
from tidegate.consumers.command import CONCURRENCY, Command
from tidegate.consumers.layers import load


def app_with(*, before: bool = True, **options: Any) -> tuple[App, Command]:
    """An app with a keyed effect and a reviewed one, and a command; effects may stand behind it."""
    app = App("tests", owner="tests")
    consumer = app.consumer("billing", topics=["shop.orders"], codec=Json(), event_id=field("id"))

    def declare() -> None:
        app.effect("charge", rule=idempotent_key(valid_s=3600), deadline_s=5)
        app.effect("call-courier", rule=review(), deadline_s=20, margin_s=10)

    if before:
        declare()

    @consumer.command("bill", on="OrderPlaced", **options)
    def bill(event: Event[Any]) -> None:
        return None

    if not before:
        declare()
    return app, consumer.commands["bill"]


@pytest.mark.parametrize("before", [True, False])
def test_calls_under_review_run_one_at_a_time_unless_it_is_said(before: bool) -> None:
    """It is how many events one kill can put to review."""
    assert app_with(before=before)[1].concurrency == 1
    assert app_with(before=before, effects=["charge"])[1].concurrency == CONCURRENCY
    assert app_with(before=before, effects=["charge", "call-courier"])[1].concurrency == 1
    assert app_with(before=before, effects=[])[1].concurrency == CONCURRENCY
    assert app_with(before=before, concurrency=7)[1].concurrency == 7
    assert app_with(before=before, concurrency=7, effects=["call-courier"])[1].concurrency == 7


def test_who_says_nothing_is_told_what_that_means() -> None:
    app, _ = app_with()
    assert ["one at a time" in warning for warning in app.consumers["billing"].warnings()] == [True]
    said: list[dict[str, Any]] = [{"effects": ["charge"]}, {"concurrency": 2}, {"effects": ["call-courier"]}]
    for options in said:
        assert app_with(**options)[0].consumers["billing"].warnings() == []


def test_an_effect_that_nobody_declares_is_a_problem_at_start() -> None:
    app, _ = app_with(effects=["charge", "chrage"])
    assert [problem.what for problem in app.problems()] == ["no effect 'chrage' is declared"]


def test_an_effect_is_named_by_itself_or_by_its_name() -> None:
    app, _ = app_with()
    (consumer,) = app.consumers.values()

    @consumer.command("other", on="OrderPlaced", effects=[app.effects["charge"], "call-courier"])
    def other(event: Event[Any]) -> None:
        return None

    assert [effect.name for effect in consumer.commands["other"].calls] == ["charge", "call-courier"]


@pytest.mark.parametrize(("budget_s", "enough"), [("29.9", False), ("30", True)])
def test_a_stop_must_be_as_long_as_the_longest_call_with_its_margin(budget_s: str, enough: bool) -> None:
    settings = load({"TIDEGATE_WORKER_DRAIN_BUDGET_S": budget_s}).settings
    problems = drain_problems(settings, app_with()[0])
    assert not problems if enough else ["call-courier" in problem.what for problem in problems] == [True]
    assert drain_problems(settings, App("tests", owner="tests")) == []
