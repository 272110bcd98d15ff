"""The source's own manners: sizes, names, promises, and what must never be committed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source import ROOT, Module, files, ours, product

MODULE_LINES_MAX = 450
FUNCTION_LINES_MAX = 60
"""Without its docstring: what fits on a screen."""

EMPTY_NAMES = ("Manager", "Helper", "Util", "Utils", "Base", "Common", "Impl", "Data", "Info")
"""Words that a class name gains nothing by."""

BLIND_MAX = 2
"""`except Exception` in the whole product: each place says who reports it."""

SILENCER = re.compile(r"#\s*(?:type:\s*ignore|noqa|pyright:\s*ignore|pragma:\s*no cover)(?P<rest>.*)")
CODES = re.compile(r"^\s*(?:\[[\w, -]*\]|:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?")

MACHINE = re.compile(r"(?<![\w.}-])/(?:work|root|home/\w+|Users/\w+|tmp/plan|opt/wheels)/")
REGISTRY = re.compile(
    r"(?:pythonhosted|pypi|npmjs|proxy\.golang|repo1?\.maven|maven-central|crates|registry-1\.docker)"
    r"\.(?:org|com|io|apache)|(?:extra-)?index-url|--find-links=?\s*\S",
)


def _parametrize(modules: list[Module]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("module", modules, ids=lambda module: module.name)


@_parametrize(product())
def test_a_module_fits_in_a_head(module: Module) -> None:
    assert len(module.text.splitlines()) <= MODULE_LINES_MAX


@_parametrize(product())
def test_a_function_fits_on_a_screen(module: Module) -> None:
    for node in module.walk():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert _length(node) <= FUNCTION_LINES_MAX, f"{module.name}:{node.lineno} {node.name}"


@_parametrize(ours())
def test_a_module_begins_with_what_it_promises(module: Module) -> None:
    promise = ast.get_docstring(module.tree) or ""
    assert promise.split("\n")[0].strip(), f"{module.name} has no docstring"


@_parametrize(product())
def test_a_class_is_named_by_what_it_is(module: Module) -> None:
    for node in module.walk():
        if isinstance(node, ast.ClassDef):
            words = re.findall(r"[A-Z][a-z]*", node.name)
            assert not set(words) & set(EMPTY_NAMES), f"{module.name}:{node.lineno} {node.name}"


@_parametrize(ours())
def test_a_silenced_check_says_why(module: Module) -> None:
    for line, comment in _comments(module):
        if found := SILENCER.search(comment):
            reason = CODES.sub("", found["rest"])
            assert len(re.findall(r"[a-z]{2,}", reason)) >= 2, f"{module.name}:{line} gives no reason: {comment}"


def test_only_two_places_catch_every_exception() -> None:
    places = [f"{module.name}:{node.lineno}" for module in product() for node in _catches(module, "Exception")]
    assert len(places) <= BLIND_MAX, places


@_parametrize(product())
def test_what_catches_cancellation_raises_it_again(module: Module) -> None:
    """`except BaseException` and a bare `except` also catch a cancellation, which must never get lost."""
    for node in _catches(module, "BaseException"):
        assert any(isinstance(inner, ast.Raise) for inner in ast.walk(node)), f"{module.name}:{node.lineno}"


@_parametrize(ours())
def test_no_test_is_skipped(module: Module) -> None:
    skips = [
        node for node in module.walk() if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail"}
    ]
    of_pytest = [node for node in skips if ast.unparse(node.value) in {"pytest", "pytest.mark"}]
    assert not of_pytest, f"{module.name} skips a test"


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_names_a_machine_or_a_registry(path: Path) -> None:
    """Whoever clones this has other folders and other package sources."""
    if path == Path(__file__) or path.name == "Makefile":  # these name what is forbidden, or switch it off
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        assert not MACHINE.search(line), f"{path.name}:{number} names a folder of one machine: {line.strip()}"
        assert not REGISTRY.search(line), f"{path.name}:{number} names a package source: {line.strip()}"


@pytest.mark.parametrize(
    "name",
    ["README.md", "DESIGN.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", ".ci/run", "Makefile"],
)
def test_the_house_has_its_papers(name: str) -> None:
    assert (ROOT / name).stat().st_size > 200


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def _comments(module: Module) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _catches(module: Module, name: str) -> Iterator[ast.ExceptHandler]:
    for node in module.walk():
        if isinstance(node, ast.ExceptHandler):
            caught = "BaseException" if node.type is None else ast.unparse(node.type)
            if name in re.findall(r"\w+", caught):
                yield node
