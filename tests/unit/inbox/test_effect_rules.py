"""Declarations of effects: what is wrong with them is said at start, all at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidegate.consumers import App
from tidegate.inbox.effect_rules import (
    Asked,
    Done,
    Effect,
    EffectRule,
    ProbeAnswer,
    idempotent_key,
    probe,
    probe_of,
    problems_of,
    review,
    rule_name,
)


def ask(asked: Asked) -> ProbeAnswer:
    return Done()


SOUND: dict[str, tuple[EffectRule, str]] = {
    "key": (idempotent_key(valid_s=60), "idempotent_key"),
    "key, then probe": (idempotent_key(valid_s=60, then=probe(ask)), "idempotent_key"),
    "probe": (probe(ask), "probe"),
    "review": (review(), "review"),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_rule_has_a_name_for_its_rows(name: str) -> None:
    rule, stored = SOUND[name]
    assert rule_name(rule) == stored
    assert problems_of(Effect("charge", rule, 10.0)) == []
    asked = probe_of(rule)
    assert (asked is not None) == ("probe" in name)


def test_a_provider_is_the_effects_own_unless_it_is_named() -> None:
    assert Effect("charge", review(), 1.0).provider == "charge"
    assert Effect("charge", review(), 1.0, "bank").provider == "bank"


UNSOUND: dict[str, dict[str, Any]] = {
    "no time to call": {"deadline_s": 0},
    "a margin below nothing": {"margin_s": -1},
    "a bound below nothing": {"result_bytes_max": -1},
    "a key that is never valid": {"rule": idempotent_key(valid_s=0)},
    "a key that ends before its call": {"rule": idempotent_key(valid_s=5), "deadline_s": 10},
    "no rule": {"rule": "again"},
    "a probe that is no function": {"rule": probe(cast(Any, "look"))},
    "a key that then falls to nothing": {"rule": idempotent_key(valid_s=60, then=cast(Any, None))},
    "a key that then falls to no function": {"rule": idempotent_key(valid_s=60, then=probe(cast(Any, 7)))},
    "a name that is no name": {"name": "Charge it!"},
}


@pytest.mark.parametrize("what", UNSOUND)
def test_what_is_wrong_with_a_declaration_is_said_at_start(what: str) -> None:
    app = App("tests", owner="tests")
    given: dict[str, Any] = {"name": "charge", "rule": review(), "deadline_s": 10.0, **UNSOUND[what]}
    app.effect(**given)
    (problem,) = [found for found in app.problems() if found.key.startswith("effect")]
    assert problem.fix


def test_a_name_that_is_declared_twice_is_a_problem() -> None:
    app = App("tests", owner="tests")
    app.effect("charge", rule=review(), deadline_s=1)
    app.effect("charge", rule=review(), deadline_s=2)
    assert [found.what for found in app.problems() if found.key == "effect 'charge'"] == ["it is declared twice"]
