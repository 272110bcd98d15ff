"""Each test that guards a case says which, with what parts, and what turns it red; `make cases` lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import Case, collect, stale

CASES = collect()

COMPLETE = '''
def test_it():
    """It holds.

    Case: B21, B22
    Parts: real (fastavro)
    Red when: the reader of decimals
      is fastavro's own
    """
'''


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.test)
def test_a_case_is_named_completely(case: Case) -> None:
    assert not list(case.problems())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.test)
def test_what_turns_it_red_is_there_under_its_name(case: Case) -> None:
    """Code moves, and gets other names: whoever wants to see the test red has to find the line."""
    assert not list(stale(case.red_when))


@pytest.mark.parametrize(
    ("red_when", "said"),
    [
        ("dlq/attempt.py `decide` forgets the rules", "there is no dlq/attempt.py"),
        ("dlq/rules.py `decided` forgets the rules", "decided stands in none of rules.py"),
        ("dlq/rules.py's decided forgets the rules", "decided stands in none of rules.py"),
        ("dlq/rules.py's _Walk.decided forgets the rules", "_Walk.decided stands in none of rules.py"),
        ("dlq/rules.py `decide` leaves out `decided`", "decided stands in none of rules.py"),
        ("dlq/rules.py `decide` calls `self._decided(rule)`", "_decided stands in none of rules.py"),
        ("rules.decided forgets the rules", "decided stands in none of rules.py"),
        ("Engine.decided forgets the rules", "decided stands in none of engine.py"),
        ("the rules are forgotten", "it names no place"),
    ],
)
def test_what_is_gone_is_said(red_when: str, said: str) -> None:
    assert said in list(stale(red_when))


@pytest.mark.parametrize(
    "red_when",
    [
        "dlq/rules.py's `decide` gives `SkipNow()`",
        "rules.py's _Walk.of gives None",
        "rules._own, or in_words.path_section, does nothing",
        "Engine._current returns the life whatever its epoch",
    ],
)
def test_nothing_is_said_of_what_is_there(red_when: str) -> None:
    assert not list(stale(red_when))


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
