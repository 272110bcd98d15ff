"""`tidegate explain`: what is told fits the terminal, and what nobody knows is an error that says what there is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tidegate.consumers import App, Json, position
from tidegate.consumers.cli.explaining import exception_class, find_handler, lines_of, sections
from tidegate.dlq.in_words import Item, Section
from tidegate.dlq.policy import FailurePolicy, retry_on
from tidegate.inbox.errors import ConfigurationError, Problem


def shop() -> App:
    app = App("shop", owner="sellers")
    for name, handlers in (("orders", ("seen", "billed")), ("returns", ("seen", "refunded"))):
        consumer = app.consumer(name, topics=["t"], codec=Json(), event_id=position())
        for handler in handlers:
            consumer.projection(handler)(project)
    return app


async def project(events: Sequence[Any], tx: Any) -> None: ...


def problem(look: Any, *arguments: Any) -> Problem:
    with pytest.raises(ConfigurationError) as refused:
        look(*arguments)
    (found,) = refused.value.problems
    return found


def test_a_handler_is_found_by_its_name() -> None:
    assert find_handler(shop(), "billed", None).name == "orders"
    assert find_handler(shop(), "seen", "returns").name == "returns"


@pytest.mark.parametrize(
    ("handler", "consumer", "key", "fix"),
    [
        ("biled", None, "HANDLER", "take billed"),
        ("xyz", None, "HANDLER", "take billed or refunded or seen"),
        ("seen", None, "HANDLER", "name one: --consumer (orders, returns)"),
        ("billed", "returns", "HANDLER", "take"),
        ("billed", "nowhere", "--consumer", "name one of: orders, returns"),
    ],
)
def test_a_handler_that_cannot_be_told_is_an_error(handler: str, consumer: str | None, key: str, fix: str) -> None:
    found = problem(find_handler, shop(), handler, consumer)
    assert found.key == key
    assert fix in found.fix


@pytest.mark.parametrize(
    "name", ["ValueError", "builtins.ValueError", "json.JSONDecodeError", "json.decoder.JSONDecodeError"]
)
def test_an_exception_is_found_by_its_name(name: str) -> None:
    assert issubclass(exception_class(name), ValueError)


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("Nope", "'Nope' is no full name", "module.Class"),
        ("json.", "'json.' is no full name", "module.Class"),
        ("json.JSONDecodError", "json has no 'JSONDecodError'", "take JSONDecodeError"),
        ("json.loads", "json.loads is a function, not an exception class", "name an exception class"),
        ("nowhere.at.All", "there is no module 'nowhere' here or installed", "correct the name"),
        ("json.nowhere.All", "json has no 'nowhere'", "take JSONDecodeError"),
        ("int", "'int' is no full name", "module.Class"),
    ],
)
def test_an_exception_that_nobody_knows_is_an_error(name: str, what: str, fix: str) -> None:
    found = problem(exception_class, name)
    assert found.key == "--exception"
    assert found.what == what
    assert fix in found.fix


def test_a_module_is_imported_and_its_own_failure_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "bank_one.py").write_text("class Outer:\n    class Closed(Exception): ...\n")
    (tmp_path / "bank_two.py").write_text("import bank_zero\n")
    (tmp_path / "bank_three.py").write_text("raise SystemExit(1)\n")
    assert exception_class("bank_one.Outer.Closed").__name__ == "Closed"
    assert problem(exception_class, "bank_two.Closed").what.startswith("importing bank_two failed: ModuleNotFoundError")
    assert problem(exception_class, "bank_three.Closed").what.startswith("importing bank_three failed: HandlerLeft")
    sys.modules.pop("bank_one")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    rules = (retry_on("a." + "very_" * 20 + "long.Name", because="x" * 300),)
    for section in [*sections(FailurePolicy(rules=rules), None), *sections(FailurePolicy(rules=rules), "ValueError")]:
        lines = list(lines_of(section, width))
        assert lines
        assert max(map(len, lines)) <= width


def test_terms_stand_on_the_left_and_what_is_said_beside() -> None:
    section = Section("A retry", (Item("tries", "5 of them " * 3), Item("a term that is too long", "so")))
    assert list(lines_of(section, 50)) == [
        "  tries               5 of them 5 of them 5 of",
        "                      them",
        "  a term that is too long",
        "                      so",
    ]
