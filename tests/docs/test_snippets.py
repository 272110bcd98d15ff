"""The pages' Python is run: blocks of one page one after the other, and the tests that a page shows."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

import pytest

from tests.support.pages import Page, pages
from tidegate.consumers import App

WITH_PYTHON = [page for page in pages() if page.blocks("python") and page.name != "CONTRIBUTING.md"]
"""CONTRIBUTING shows the form of a docstring, which is no program."""


def run(page: Page, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run the blocks in one namespace; an error names the page's line."""
    module = ModuleType(page.name.replace("/", "_").removesuffix(".md").lower())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in page.blocks("python"):
        source = "\n" * block.line + block.text
        exec(compile(source, page.name, "exec", dont_inherit=True), vars(module))
    return module


def test_the_guides_hold_snippets() -> None:
    assert {"README.md", "docs/guides/handlers.md", "docs/guides/running.md"} <= {page.name for page in WITH_PYTHON}


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.name)
async def test_a_pages_python_runs(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    module = run(page, monkeypatch)
    for name, shown in sorted(vars(module).items()):
        if name.startswith("test_") and callable(shown):
            ended = shown()
            if inspect.isawaitable(ended):
                await ended


@pytest.mark.parametrize("name", ["README.md", "docs/guides/handlers.md", "docs/guides/failures.md"])
def test_the_apps_that_are_shown_are_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = (page for page in WITH_PYTHON if page.name == name)
    app = vars(run(page, monkeypatch))["app"]
    assert isinstance(app, App)
    assert app.problems() == []
