"""Which page says what to do about a letter or a case, by its reason. No IO.

A test holds pages and reasons together: each has the other.
"""

from __future__ import annotations

from typing import Final

from ..inbox.outcome import Reason
from .fates import REVIEW, UNKNOWN_EFFECT

FOLDER: Final = "docs/runbooks"

INDEX: Final = f"{FOLDER}/README.md"
"""For what has no reason of ours: another system's letter."""

WORDS: Final = frozenset({*(reason.value for reason in Reason), REVIEW, UNKNOWN_EFFECT})
"""The reasons of dead letters, and of what waits for a person's word."""


def runbook_of(reason: str | None) -> str:
    """The page, as a path in the documentation.

    >>> runbook_of("rejected"), runbook_of(None)
    ('docs/runbooks/rejected.md', 'docs/runbooks/README.md')
    """
    return f"{FOLDER}/{reason}.md" if reason in WORDS else INDEX
