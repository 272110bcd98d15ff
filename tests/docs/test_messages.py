"""Messages that the recovery page quotes are the ones that the product prints, word for word."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.support.pages import Block, page
from tests.tidy.source import product

QUOTED = [block for name in ("recovery", "dead-letters") for block in page(f"docs/guides/{name}.md").blocks("text")]


def pattern(node: ast.expr | None) -> str:
    """A regular expression for what the expression may say; what is worked out elsewhere may be anything."""
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(pattern(part) for part in node.values)
    return ".+"


def said_by(call: ast.Call) -> str | None:
    """What a call prints once it reaches the terminal; None where it prints nothing."""
    name = ast.unparse(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    arguments = dict(enumerate(call.args))
    if name == "FatalError":
        return f"fatal: {pattern(arguments.get(0))}\\. Fix: {pattern(keywords.get('fix'))}"
    if name in ("Problem", "ConfigurationError.of"):
        key, what, fix = (pattern(arguments.get(n)) for n in range(3))
        return None if what == fix == ".+" else f"{key}: {what}\\. Fix: {fix}"
    if name == "OUT.print":
        return pattern(arguments.get(0))
    return None


@functools.cache
def spoken() -> list[re.Pattern[str]]:
    """Everything that the product can say, but what it takes whole from elsewhere."""
    calls = (node for module in product() for node in module.walk() if isinstance(node, ast.Call))
    said = {text for call in calls if (text := said_by(call)) is not None}
    return [
        re.compile(text) for text in said if len(text.replace(".+", "").replace("\\", "")) > len("fatal: . Fix: : ")
    ]


@pytest.mark.parametrize("block", QUOTED, ids=lambda block: block.text[:40].strip())
def test_a_quoted_message_is_printed(block: Block) -> None:
    known = spoken()
    for line in block.text.splitlines():
        if line.strip().startswith("refused "):
            assert "times already: repair the cause, or force it" in line
            continue
        assert any(said.fullmatch(line) for said in known), f"nothing prints: {line}"


def test_every_way_out_of_a_partitions_start_is_explained() -> None:
    """Each fatal error of the worker that asks for a person stands on the page."""
    text = page("docs/guides/recovery.md").text
    for words in ("it went back in time", "beyond the log's end", "retention took", "was deleted and made anew"):
        assert words in text
