"""Lists the known failures of other projects (cases), the test that guards each, and the change that turns it red.

A test says which case it is for in its docstring, in lines of this form:

    Case: B21
    Parts: real (fastavro)
    Red when: codecs/avro.py reads decimals with fastavro's own reader instead of ours

What turns it red begins with its place: a file, or `module.function`, or `Class.method`. What is named directly behind
a file (``file.py `name` ``, `file.py's name`), each `identifier` and every `_private` name stand in the file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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

SOURCES: Final[tuple[str, ...]] = ("inbox", "dlq", "projections", "consumers", "docs")
FILE: Final = re.compile(
    r"(?P<file>[\w/]+\.(?:py|md))(?:(?:'s)? `(?P<quoted>[^`]+)`|'s (?P<owned>\w[\w.]*)| (?P<bare>\w*[._A-Z][\w.]*))?"
)
OWNER: Final = re.compile(
    r"(?:^|,? or )`?(?P<owner>[A-Za-z]\w*)(?:'s (?P<owned>\w+)|\.(?!py\b|md\b)(?P<dotted>\w[\w.]*))"
)
"""A module or a class, where the files of both are not named."""
IDENTIFIER: Final = re.compile(r"`([A-Za-z_][\w.]*)`|(?<!\w)(_[A-Za-z]\w+)")

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


def stale(red_when: str) -> Iterator[str]:
    """What it names and is called otherwise now, or stands elsewhere."""
    places: set[Path] = set()
    for match in FILE.finditer(red_when):
        found = {path for path in sources() if path.as_posix().endswith(f"/{match['file']}")}
        places |= found
        if not found:
            yield f"there is no {match['file']}"
        yield from _gone(match["quoted"] or match["owned"] or match["bare"], found)
    for match in OWNER.finditer(red_when):
        found = {path for path, text in sources().items() if _belongs_to(path, text, match["owner"])}
        places |= found
        yield from _gone(match["owned"] or match["dotted"], found)
    if not places:
        yield "it names no place"
    for match in IDENTIFIER.finditer(red_when):
        yield from _gone(match[1] or match[2], places)


def _gone(name: str | None, found: set[Path]) -> Iterator[str]:
    if name and found and not any(_stands_in(name, sources()[path]) for path in found):
        yield f"{name} stands in none of {', '.join(sorted(path.name for path in found))}"


@cache
def sources() -> dict[Path, str]:
    """Every file that a case may name."""
    root = TESTS.parent
    paths = (path for folder in SOURCES for kind in ("*.py", "*.md") for path in (root / folder).rglob(kind))
    return {path: path.read_text(encoding="utf-8") for path in paths}


def _belongs_to(path: Path, text: str, owner: str) -> bool:
    return path.suffix == ".py" and (path.stem == owner or any(f"\nclass {owner}{end}" in text for end in "(:["))


def _stands_in(name: str, text: str) -> bool:
    """Also each part of a dotted one (`Class.method`)."""
    parts = name.split(".") if re.fullmatch(r"\w+(?:\.\w+)*\.?", name) else [name]
    return all(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) for part in parts)


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
