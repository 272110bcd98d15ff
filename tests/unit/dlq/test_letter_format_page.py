"""docs/dead-letter-format.md and the code say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

from tidegate.dlq.letter import Letter, replay_instruction, write_letter
from tidegate.dlq.letter_headers import DERIVED_HEADERS, LETTER_HEADERS, REPLAY, SHARE_GROUP_HEADERS, SHARE_GROUP_PREFIX
from tidegate.inbox.outcome import Reason

PAGE = (Path(__file__).parents[3] / "docs" / "dead-letter-format.md").read_text(encoding="utf-8")

LETTER = Letter(
    key=None,
    value=b"",
    dead_letter_id="ab",
    reason=Reason.REJECTED,
    consumer="c",
    handler="h",
    handler_version=0,
    event_id="1",
    replay_count=0,
    origin_topic="t",
    origin_incarnation=0,
    origin_partition=0,
    origin_offset=1,
)

TYPES = {"string": str, "integer": int, "null": type(None), "object": dict}


def table(heading_row: str) -> list[tuple[str, str]]:
    """All rows of the tables under `heading_row`, as pairs of name and text."""
    rows: list[tuple[str, str]] = []
    rule = "|---" * (heading_row.count("|") - 1) + "|"
    for part in PAGE.split(f"{heading_row}\n{rule}\n")[1:]:
        for line in part.splitlines():
            found = re.fullmatch(r"\| `([^`]+)` \| (.*) \|", line)
            if found is None:
                break
            rows.append((found[1], found[2]))
    return rows


def schema() -> dict[str, Any]:
    found = re.search(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_page_lists_every_header_and_no_other() -> None:
    documented = table("| header | what it says |")
    assert documented == [(row.name, row.meaning) for row in LETTER_HEADERS] + list(DERIVED_HEADERS)


def test_the_page_lists_kafka_s_own_names() -> None:
    names = {row.field: row.name for row in LETTER_HEADERS}
    assert table("| header | same as |") == [
        (SHARE_GROUP_PREFIX + suffix, f"`{names[field]}`") for suffix, field in SHARE_GROUP_HEADERS
    ]


def test_the_page_lists_the_closed_vocabulary_of_reasons() -> None:
    """Exactly the words that the code has, each with its meaning and what a person does about it."""
    listed = table("| reason | meaning | what to do |")
    assert [reason for reason, _ in listed] == [reason.value for reason in Reason]
    for _, told in listed:
        meaning, what_to_do = told.split(" | ")
        assert meaning.endswith(".")
        assert what_to_do.endswith(".")


def test_the_schema_knows_the_vocabulary_and_every_field_of_the_instruction() -> None:
    described = schema()
    assert described["properties"]["reason"]["enum"] == [*(reason.value for reason in Reason), None]
    assert described["required"] == list(described["properties"]) == list(replay_instruction(LETTER))


def test_the_instruction_in_a_letter_keeps_the_schema() -> None:
    """A full one, and one of which nothing is known."""
    for letter in (LETTER, Letter(key=None, value=b"", dead_letter_id="ab")):
        check(json.loads(dict(write_letter(letter).headers)[REPLAY] or b""), schema())


def check(value: object, rule: dict[str, Any]) -> None:
    """The part of JSON Schema that the page uses."""
    assert set(rule) <= {
        "$schema",
        "title",
        "description",
        "type",
        "required",
        "properties",
        "const",
        "enum",
        "minimum",
    }
    if "const" in rule:
        assert value == rule["const"]
    if "enum" in rule:
        assert value in rule["enum"]
    if "type" in rule:
        types = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
        assert isinstance(value, tuple(TYPES[name] for name in types))
    if "minimum" in rule and value is not None:
        assert isinstance(value, int)
        assert value >= rule["minimum"]
    if isinstance(value, dict):
        assert set(rule["required"]) <= set(cast("dict[str, object]", value))
        for name, inner in rule["properties"].items():
            check(cast("dict[str, object]", value)[name], inner)
