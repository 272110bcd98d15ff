"""The project's pages as tests read them: their code blocks, their command lines, their links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language (empty where none is said), its text, the line of the page that it begins on."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    def blocks(self, *languages: str) -> list[Block]:
        """Its fenced blocks in these languages, or all."""
        found = [_block(self.text, match) for match in _BLOCK.finditer(self.text)]
        return [block for block in found if not languages or block.language in languages]

    def prose(self) -> str:
        """What stands outside of fenced blocks."""
        return _BLOCK.sub("", self.text)

    def command_lines(self) -> Iterator[str]:
        """Lines of blocks that run `tidegate`, without prompt and comment."""
        for block in self.blocks("", "sh", "bash", "console"):
            for line in block.text.splitlines():
                command = line.strip().removeprefix("$ ").partition(" #")[0].rstrip()
                if command.startswith("tidegate "):
                    yield command

    def inline_commands(self) -> Iterator[str]:
        """`tidegate ...` in running text."""
        return (code for code in _INLINE.findall(self.prose()) if code.startswith("tidegate "))

    def inline_code(self) -> list[str]:
        """All code in running text."""
        return _INLINE.findall(self.prose())

    def links(self) -> list[str]:
        """Targets of its links."""
        return _LINK.findall(self.prose())

    def anchors(self) -> set[str]:
        """The names by which its headings can be linked to."""
        return {_anchor(heading) for heading in _HEADING.findall(self.prose())}


def pages() -> list[Page]:
    """Every page for users and for who reads the code."""
    patterns = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
    return [Page(path) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def page(name: str) -> Page:
    """One page by its path in the repository."""
    return Page(ROOT / name)


def _block(text: str, match: re.Match[str]) -> Block:
    indent = len(match["indent"])
    body = "".join(line[indent:] if not line[:indent].strip() else line for line in match["body"].splitlines(True))
    return Block(match["language"], body, text.count("\n", 0, match.start()) + 1)


def _anchor(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
