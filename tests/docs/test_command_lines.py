"""Every `tidegate ...` that a page shows is one that the command line takes. Nothing is carried out."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.exceptions import TyperException

from tests.support.cli import tidegate
from tests.support.pages import Page, page, pages
from tidegate.consumers.cli.entry import app

PAGES = [page for page in pages() if [*page.command_lines(), *page.inline_commands()]]


def parse(words: list[str]) -> None:
    """Parse as the program would, down to the verb and its options. Raises TyperException."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="tidegate")
    while isinstance(command, TyperGroup):
        name = words[0] if words else ""
        found = command.get_command(context, name)
        if found is None:
            raise TyperException(f"no such command: {name or '(none)'}")
        command, words = found, words[1:]
        context = typer.Context(command, parent=context, info_name=name)
    command.make_context(command.name, words, parent=context.parent)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_of_blocks_are_whole(page: Page) -> None:
    for line in page.command_lines():
        try:
            parse(shlex.split(line)[1:])
        except TyperException as error:
            pytest.fail(f"{page.name}: {line}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_running_text_exist(page: Page) -> None:
    """They may leave arguments out (`tidegate restored`), but neither verb nor option may be made up."""
    lines = [line for code in page.inline_commands() for line in alternatives(code.replace("...", ""))]
    refused = {line: why for line in lines if (why := refusal(shlex.split(line)[1:])) is not None}
    assert not refused


def refusal(words: list[str]) -> str | None:
    """Why the program would not take these words, apart from what is left out."""
    try:
        parse(words)
    except TyperException as error:
        is_short = type(error).__name__ == "MissingParameter" or words in ([], ["topic"], ["dlq"])
        return None if is_short else error.format_message()
    return None


def alternatives(code: str) -> list[str]:
    """`tidegate dlq list|show` is two commands."""
    lines = [""]
    for word in code.split():
        lines = [f"{line} {choice}".strip() for line in lines for choice in word.split("|")]
    return lines


@pytest.mark.parametrize(
    "line", ["dlq discard 17", "run --fast", "dlq list --limit x", "config extra", "dlq redact 17"]
)
def test_what_does_not_exist_is_refused(line: str) -> None:
    with pytest.raises(TyperException):
        parse(line.split())


def test_the_problems_that_are_shown_are_printed_so() -> None:
    (block,) = page("docs/guides/running.md").blocks("text")
    mistakes = {
        "TIDEGATE_WORKER_COMMIT_INTERVALL_S": "5",
        "TIDEGATE_WORKER_WINDOW_RECORDS_MAX": "1.2e+06",
        "TIDEGATE_KAFKA_CLIENT_ENABLE_AUTO_COMMIT": "true",
    }
    ended = tidegate("config", variables=mistakes)
    assert (ended.code, ended.err) == (78, block.text)
