"""The terminal: what happens, line by line, and one table that grows by a column with each chapter."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self, final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from .facts import LINES, Facts, Line, differs

RIGHT: Final = "[green]✓[/green]"
WRONG: Final = "[red]✗[/red]"


@final
class Screen:
    """Live on a terminal; elsewhere plain lines, and the table once, at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._chapters: list[tuple[str, Facts, Facts | None]] = []
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._live.transient = True  # what broke off has no result to show
        self._live.stop()

    def say(self, text: str) -> None:
        """A line, in Rich's markup."""
        self._console.print(text, soft_wrap=True)

    def chapter(self, title: str, *lines: str) -> None:
        """A new chapter begins."""
        self.say(f"\n[bold]{title}[/bold]")
        for line in lines:
            self.say(f"  {line}")

    def quote(self, command: str, output: str) -> None:
        """A command as a user would type it, and what it said."""
        self.say(f"  [cyan]$ {escape(command)}[/cyan]")
        for line in output.splitlines():
            self.say(f"    [dim]{escape(line)}[/dim]")

    def show(self, title: str, found: Facts, expected: Facts | None = None) -> None:
        """Show facts in the chapter's column; with `expected` they are final, and compared."""
        if self._chapters and self._chapters[-1][0] == title:
            self._chapters.pop()
        self._chapters.append((title, found, expected))
        self._live.update(self._table(), refresh=self._console.is_terminal)

    def _table(self) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("read from database and topics", no_wrap=True)
        for title, *_ in self._chapters:
            table.add_column(f"{title}  ", justify="right", no_wrap=True)
        for line in LINES:
            table.add_row(line.title, *(_cell(line, found, expected) for _, found, expected in self._chapters))
        return table


def _cell(line: Line, found: Facts, expected: Facts | None) -> str:
    shown = line.shown(found)
    if expected is None:
        return f"{shown}  "
    return f"{shown} {WRONG if differs(line, found, expected) else RIGHT}"
