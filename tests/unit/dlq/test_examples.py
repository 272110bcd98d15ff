"""The examples in the docstrings of the dead-letter room hold."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "decisions",
        "failure_text",
        "foreign",
        "in_words",
        "letter",
        "letter_headers",
        "outcomes",
        "retry",
        "retry_after",
        "rule_match",
    ],
)
def test_examples_in_docstrings_hold(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"tidegate.dlq.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
