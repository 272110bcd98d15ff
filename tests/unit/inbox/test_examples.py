"""The examples in the docstrings of the inbox hold."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["exception_slots", "faults", "secrets_in_text"])
def test_examples_in_docstrings_hold(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"tidegate.inbox.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
