"""`--app`: each wrong shape has a message that names what is wrong and the fix."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.consumers.cli.loading import load_app
from tidegate.inbox.errors import ConfigurationError, Problem

Write = Callable[[str, str], None]

GOOD = """
from tidegate.consumers.app import App
app = App("billing", owner="payments")
class nested:
    inner = app
number = 5
def make_app():
    return app
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into the working directory, and forgets them afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write_module(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    yield write_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def problem(path: str | None) -> Problem:
    with pytest.raises(ConfigurationError) as caught:
        load_app(path)
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


def test_the_working_directory_is_searched(write: Write) -> None:
    write("shop_good.py", GOOD)
    assert load_app("shop_good:app").name == "billing"
    assert load_app("shop_good:nested.inner").name == "billing"


@pytest.mark.parametrize(
    ("path", "what", "fix"),
    [
        (None, "not given", "TIDEGATE_APP"),
        ("shop_good", "does not name a module and an attribute", "package.module:app"),
        ("shop_good:", "does not name", "package.module:app"),
        ("shop good:app", "does not name", "package.module:app"),
        ("shop_good.py:app", "is a file", "shop_good:app"),
        ("./sub/shop.py", "is a file", "sub.shop:app"),
        ("nowhere_at_all:app", "no module 'nowhere_at_all'", "directory"),
        ("shop_good.missing:app", "no module 'shop_good.missing'", "correct the name"),
        ("shop_good:api", "has no 'api'", "use shop_good:app"),
        ("shop_good:number", "of type int, not an App", "use shop_good:app"),
        ("shop_good:make_app", "the function make_app, not an App", "use shop_good:app"),
        ("shop_good:nested", "the class nested, not an App", "use shop_good:app"),
    ],
)
def test_each_wrong_shape_has_its_own_message(write: Write, path: str | None, what: str, fix: str) -> None:
    write("shop_good.py", GOOD)
    found = problem(path)
    assert found.key == "--app"
    assert what in found.what
    assert fix in found.fix


def test_a_module_without_an_app_says_how_to_make_one(write: Write) -> None:
    write("shop_empty.py", "x = 1\n")
    assert "app = App(...)" in problem("shop_empty:app").fix


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("import json\nraise RuntimeError('no licence')\n", 2, "RuntimeError: no licence"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError"),
        ("x = 1\ny = (\n", 2, "SyntaxError"),
        ("import not_installed_at_all\n", 1, "No module named 'not_installed_at_all'"),
        ("class Odd(Exception): ...\n\n\nraise Odd\n", 4, "Odd"),
        ("from json import nothing_like_it\n", 1, "ImportError"),
    ],
)
def test_an_import_that_fails_names_file_and_line(
    write: Write, tmp_path: Path, text: str, line: int, says: str
) -> None:
    write("shop_broken.py", text)
    found = problem("shop_broken:app")
    assert f"{tmp_path / 'shop_broken.py'}:{line}" in found.what
    assert says in found.what


def test_problems_that_the_module_raises_as_such_are_kept(write: Write) -> None:
    write(
        "shop_strict.py",
        "from tidegate.inbox.errors import ConfigurationError\n"
        "raise ConfigurationError.of('SHOP_KEY', 'missing', 'set it')\n",
    )
    assert problem("shop_strict:app") == Problem("SHOP_KEY", "missing", "set it")


def test_a_module_that_exits_exits(write: Write) -> None:
    write("shop_exits.py", "raise SystemExit(3)\n")
    with pytest.raises(SystemExit):
        load_app("shop_exits:app")
