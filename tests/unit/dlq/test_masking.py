"""Masking: nothing is shown that was not declared harmless."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.dlq.masking import EVERYTHING, Masking, changes, masked

ORDER: dict[str, Any] = {
    "id": "o-1",
    "who": {"name": "Ann", "age": 7, "vip": True},
    "lines": [{"sku": "s-1", "note": "for Bob"}, {"sku": "s-2", "note": None}],
    "tags": {"ann@example.com": "x", "plain": 1},
    "empty": {},
}


def test_without_rules_only_names_and_kinds_are_shown() -> None:
    assert masked(ORDER, EVERYTHING) == {
        "id": "<text>",
        "who": {"name": "<text>", "age": "<number>", "vip": "<boolean>"},
        "lines": [{"sku": "<text>", "note": "<text>"}, {"sku": "<text>", "note": None}],
        "tags": {"<key 1>": "<text>", "plain": "<number>"},
        "empty": {},
    }


@pytest.mark.parametrize(
    ("declared", "path", "shown"),
    [
        ({"id": False}, ("id",), "o-1"),
        ({"who": False}, ("who", "name"), "Ann"),
        ({"who": False, "who.name": True}, ("who", "name"), "<text>"),
        ({"who": False, "who.name": True}, ("who", "age"), 7),
        ({"lines.sku": False}, ("lines",), [{"sku": "s-1", "note": "<text>"}, {"sku": "s-2", "note": None}]),
        ({"tags.*": False}, ("tags",), {"ann@example.com": "x", "plain": 1}),
        ({"nothing": False}, ("id",), "<text>"),
    ],
)
def test_the_nearest_rule_above_a_value_decides(declared: dict[str, bool], path: tuple[str, ...], shown: Any) -> None:
    found: Any = masked(ORDER, EVERYTHING.over(declared))
    for name in path:
        found = found[name]
    assert found == shown


def test_the_consumers_rules_count_before_those_of_the_schema() -> None:
    schema = Masking({("id",): False, ("who",): True})
    assert masked(ORDER, schema.over({"id": True, "who": False}))["id"] == "<text>"
    assert masked(ORDER, schema.over({"who": False}))["who"]["name"] == "Ann"


def test_keys_of_maps_are_data() -> None:
    told = masked({"tags": {"ann": "x"}}, Masking(maps=frozenset({("tags",)})))
    assert told == {"tags": {"<key 1>": "<text>"}}


LEAVES = st.none() | st.booleans() | st.integers() | st.text("abc@ 1", min_size=3) | st.floats(allow_nan=False)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner), max_leaves=12
)


@given(VALUES)
def test_no_leaf_of_any_value_is_shown_without_a_rule(value: Any) -> None:
    """Whatever comes, what is left are kinds, None and shape."""
    waiting: list[Any] = [masked(value, EVERYTHING)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        else:
            assert item is None or item in ("<text>", "<number>", "<boolean>")


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, ["a.c"]),
        ({"a": 1}, {"b": 1}, ["a", "b"]),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, ["a.b"]),
        ({"m": {"ann@x": 1}}, {"m": {"ann@x": 2}}, ["m.*"]),
        (1, 2, ["(all)"]),
    ],
)
def test_changes_are_paths_without_values(before: Any, after: Any, paths: list[str]) -> None:
    assert changes(before, after) == paths
