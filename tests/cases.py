"""Lists the known failures of other projects (cases), the test that guards each, and the change that turns it red.

A test says which case it is for in its docstring, in lines of this form:

    Case: B21
    Parts: real (fastavro)
    Red when: codecs/avro.py reads decimals with fastavro's own reader instead of ours
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

TESTS: Final = Path(__file__).parent
LABELS: Final[tuple[str, ...]] = ("Case", "Parts", "Red when")
LABEL: Final = re.compile(r"^(Case|Parts|Red when):[ \t]*(.*)$")
NUMBER: Final = re.compile(r"B\d{2}")
PARTS: Final = re.compile(r"\b(real|mock|fake|none)\b|^-$")
"""`none`, or a dash: the guard is a pure function, and the test calls it."""

SHORTEST: Final = 15
"""Characters that the name of a change needs at least."""


@dataclass(frozen=True, slots=True)
class Case:
    """What one test says about the case that it guards. Fields are empty where it says nothing."""

    numbers: tuple[str, ...]
    test: str
    promise: str
    parts: str
    red_when: str

    def problems(self) -> Iterator[str]:
        """What is missing in it."""
        if not self.numbers:
            yield "`Case:` names no case like B21"
        if not PARTS.search(self.parts):
            yield "`Parts:` says neither real nor mock nor fake nor none"
        if len(self.red_when) < SHORTEST:
            yield "`Red when:` names no change"
        if not self.promise:
            yield "the docstring does not begin with the behaviour"


def collect(folder: Path = TESTS) -> list[Case]:
    """Every test below `folder` that names a case, in the order of the cases."""
    modules = sorted(folder.rglob("test_*.py"))
    return sorted(
        (case for module in modules for case in _of_module(module)), key=lambda case: (case.numbers, case.test)
    )


def _of_module(path: Path) -> Iterator[Case]:
    place = path.relative_to(TESTS.parent).as_posix() if path.is_relative_to(TESTS) else path.name
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            said = ast.get_docstring(node) or ""
            if any(LABEL.match(line) for line in said.splitlines()):
                name = "" if isinstance(node, ast.Module) else f"::{node.name}"
                yield _case(f"{place}{name}", said)


def _case(test: str, said: str) -> Case:
    found = _labelled(said)
    return Case(
        numbers=tuple(match[0] for match in NUMBER.finditer(found["Case"])),
        test=test,
        promise="" if LABEL.match(said) else said.splitlines()[0],
        parts=found["Parts"],
        red_when=found["Red when"],
    )


def _labelled(said: str) -> dict[str, str]:
    """Each label with its text, which goes on over further lines up to an empty one or the next label."""
    found: dict[str, str] = dict.fromkeys(LABELS, "")
    current: str | None = None
    for line in said.splitlines():
        if match := LABEL.match(line):
            current = str(match[1])
            found[current] = match[2].strip()
        elif not line.strip():
            current = None
        elif current:
            found[current] = f"{found[current]} {line.strip()}".strip()
    return found


def main() -> None:
    """Print the table."""
    table = Table(show_lines=True)
    for heading in ("case", "test", "parts", "red when"):
        table.add_column(heading, overflow="fold")
    cases = collect()
    for case in cases:
        table.add_row(", ".join(case.numbers), f"{case.test}\n{case.promise}", case.parts, case.red_when)
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)
    console.print(f"{len({number for case in cases for number in case.numbers})} cases, {len(cases)} tests")


if __name__ == "__main__":
    main()
