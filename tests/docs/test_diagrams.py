"""The diagrams are those of the tables in the code."""

from __future__ import annotations

from tests.support.diagrams import made
from tests.support.pages import page


def test_the_diagrams_are_current() -> None:
    assert page("docs/diagrams.md").text == made(), "python -m tests.support.diagrams > docs/diagrams.md"
