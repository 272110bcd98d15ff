"""Every reason has its page and every page a reason; each page says the same four things; letters name theirs."""

from __future__ import annotations

import json

import pytest

from tests.support.pages import ROOT, page
from tidegate.dlq.letter import Letter, write_letter
from tidegate.dlq.letter_headers import REPLAY, RUNBOOK
from tidegate.dlq.runbooks import FOLDER, INDEX, WORDS, runbook_of
from tidegate.inbox.outcome import Reason

HEADINGS = {"what-it-means", "how-to-see-it", "what-to-do"}


def test_every_reason_has_its_page_and_every_page_a_reason() -> None:
    """A word joins the vocabulary with its page, or not at all."""
    written = {path.stem for path in (ROOT / FOLDER).glob("*.md")} - {"README"}
    assert written == WORDS


@pytest.mark.parametrize("word", sorted(WORDS))
def test_a_page_says_what_it_means_how_to_see_it_and_what_to_do(word: str) -> None:
    runbook = page(runbook_of(word))
    assert runbook.text.startswith(f"# {word}\n")
    assert runbook.anchors() >= HEADINGS
    assert list(runbook.command_lines()), "a page has commands to copy"


def test_the_index_leads_to_every_page() -> None:
    assert {link.removesuffix(".md") for link in page(INDEX).links()} == WORDS


@pytest.mark.parametrize("reason", [*Reason, None, "../../etc/passwd"])
def test_a_letter_names_its_runbook(reason: str | None) -> None:
    """In a header for people, in the instruction for machines; whatever stands as its reason."""
    headers = dict(write_letter(Letter(key=None, value=b"", dead_letter_id="ab", reason=reason)).headers)
    named = (headers[RUNBOOK] or b"").decode()
    assert (ROOT / named).exists()
    assert json.loads(headers[REPLAY] or b"")["runbook"] == named
    assert named == (f"{FOLDER}/{reason}.md" if reason in WORDS else INDEX)
