"""Text that the database can hold, whatever it was."""

from __future__ import annotations

import pytest

from tidegate.inbox.safe_text import safe_details, safe_text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain", "plain"),
        ("a\0b", "a�b"),
        ("\ud800", "�"),
        ("x\udc00y", "x�y"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\U0001f600", "\U0001f600"),
        ("\\u0000", "\\u0000"),
        ("", ""),
    ],
)
def test_only_what_cannot_be_stored_is_replaced(text: str, safe: str) -> None:
    """NUL and lone surrogates go; pairs, astral characters and six innocent characters stay.

    Case: B43
    Parts: none (pure)
    Red when: inbox/safe_text.py strips every surrogate instead of decoding pairs
    """
    assert safe_text(text) == safe


def test_it_is_cut_to_its_bound_and_says_so() -> None:
    assert safe_text("abcdef", 4) == "abc…"
    assert safe_text("abcd", 4) == "abcd"


def test_details_are_made_safe_in_keys_and_values() -> None:
    assert safe_details({"a\0": "\0", "n": 5, "b": True, "none": None}) == {"a�": "�", "n": 5, "b": True, "none": None}
