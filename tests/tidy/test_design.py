"""DESIGN.md names a test for each thing that is true and not obvious: every one of them exists."""

from __future__ import annotations

import ast
import re

from tests.tidy.source import ROOT

DESIGN = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DESIGN)


def test_every_named_test_exists() -> None:
    assert NAMED
    missing = [f"{path}::{name}" for path, name in NAMED if name not in functions(path)]
    assert not missing, "\n".join(missing)


def test_every_point_names_its_test() -> None:
    points = DESIGN.partition("## Non-obvious, and true\n")[2].partition("\n## ")[0].split("\n* ")[1:]
    assert points
    assert not [point for point in points if "`tests/" not in point]


def functions(path: str) -> set[str]:
    """Names of the test functions of a file; none where there is no such file."""
    file = ROOT / path
    if not file.exists():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
