"""The examples in the docstrings of backfills hold."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module", ["consumers.backfill.order", "consumers.backfill.held", "inbox.backfills", "inbox.versions"]
)
def test_examples_in_docstrings_hold(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"tidegate.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
