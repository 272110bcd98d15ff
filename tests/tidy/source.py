"""The repository's own source, read for the tidy tests."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = ("inbox", "dlq", "projections", "consumers")
"""From the ground up: a room imports only from rooms that stand before it here."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import: the module that is named, in full where it is one of ours."""

    module: str
    line: int


@dataclass(frozen=True)
class Module:
    """One Python file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def room(self) -> str:
        """The folder at the repository's top that it stands in."""
        return self.path.relative_to(ROOT).parts[0]

    @functools.cached_property
    def text(self) -> str:
        """Its source."""
        return self.path.read_text(encoding="utf-8")

    @functools.cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.text, filename=self.name)

    @property
    def docstring(self) -> str:
        """What it says of itself; empty where it says nothing."""
        return ast.get_docstring(self.tree) or ""

    def walk(self) -> Iterator[ast.AST]:
        """Every node of its syntax."""
        return ast.walk(self.tree)

    def imports(self) -> Iterator[Import]:
        """Every import, wherever it stands; a relative one as `tidegate.<room>...`."""
        for node in self.walk():
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from (Import(module, node.lineno) for module in self._from(node))

    def _from(self, node: ast.ImportFrom) -> list[str]:
        if node.level == 0:
            return [node.module or ""]
        package = ["tidegate", *self.path.relative_to(ROOT).parts[:-1]]
        base = package[: len(package) - node.level + 1] + ([node.module] if node.module else [])
        if len(base) > 1:
            return [".".join(base)]
        return [".".join([*base, alias.name]) for alias in node.names]  # from .. import inbox


@functools.cache
def product() -> list[Module]:
    """Every module of the rooms."""
    return [Module(path) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


@functools.cache
def ours() -> list[Module]:
    """Every Python file of the repository."""
    return [Module(path) for path in files() if path.suffix == ".py"]


@functools.cache
def files() -> list[Path]:
    """Every file that is, or is about to be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / name for name in listed.split("\0") if name)
    return sorted(path for path in paths if path.is_file())
