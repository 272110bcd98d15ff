"""Each test that guards a case says which, with what parts, and what turns it red; `make cases` lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import Case, collect

COMPLETE = '''
def test_it():
    """It holds.

    Case: B21, B22
    Parts: real (fastavro)
    Red when: the reader of decimals
      is fastavro's own
    """
'''


@pytest.mark.parametrize("case", collect(), ids=lambda case: case.test)
def test_a_case_is_named_completely(case: Case) -> None:
    assert not list(case.problems())


def test_a_docstring_is_read_in_full(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(COMPLETE)
    (case,) = collect(tmp_path)
    assert case.numbers == ("B21", "B22")
    assert case.promise == "It holds."
    assert case.parts == "real (fastavro)"
    assert case.red_when == "the reader of decimals is fastavro's own"


@pytest.mark.parametrize("gone", ["Case: B21, B22", "real (fastavro)", "the reader of decimals"])
def test_what_is_missing_is_said(tmp_path: Path, gone: str) -> None:
    (tmp_path / "test_it.py").write_text(COMPLETE.replace("is fastavro's own", "").replace(gone, ""))
    (case,) = collect(tmp_path)
    assert list(case.problems())
