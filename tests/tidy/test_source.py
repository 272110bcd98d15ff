"""The source's own manners: sizes, names, promises, and what must never be committed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

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
SOURCE = re.compile(
    r"(?:pythonhosted|pypi|npmjs|proxy\.golang|repo1?\.maven|maven-central|crates|registry-1\.docker)"
    r"\.(?:org|com|io|apache)|(?:extra-)?index-url|--find-links=?\s*\S",
)

NAMES_WHAT_IS_FORBIDDEN = (Path(__file__), ROOT / "Makefile")

PAPERS = ("README.md", "DESIGN.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", ".ci/run")
PAPER_BYTES_MIN = 200


def test_a_module_fits_in_a_head() -> None:
    lines = {module.name: len(module.text.splitlines()) for module in product()}
    assert not {name: length for name, length in lines.items() if length > MODULE_LINES_MAX}


def test_a_function_fits_on_a_screen() -> None:
    offenders = [
        f"{module.name}:{node.lineno} {node.name}: {_length(node)} lines"
        for module in product()
        for node in module.walk()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > FUNCTION_LINES_MAX
    ]
    assert not offenders, "\n".join(offenders)


def test_a_module_begins_with_what_it_promises() -> None:
    offenders = [module.name for module in ours() if not module.docstring.split("\n")[0].strip()]
    assert not offenders, "\n".join(offenders)


def test_a_class_is_named_by_what_it_is() -> None:
    offenders = [
        f"{module.name}:{node.lineno} {node.name}"
        for module in product()
        for node in module.walk()
        if isinstance(node, ast.ClassDef) and set(re.findall(r"[A-Z][a-z]*", node.name)) & set(EMPTY_NAMES)
    ]
    assert not offenders, "\n".join(offenders)


def test_a_silenced_check_says_why() -> None:
    offenders = [
        f"{module.name}:{line} gives no reason: {comment}"
        for module in ours()
        for line, comment in _comments(module)
        if (found := SILENCER.search(comment)) and not _is_reason(CODES.sub("", found["rest"]))
    ]
    assert not offenders, "\n".join(offenders)


def test_only_two_places_catch_every_exception() -> None:
    places = [f"{module.name}:{node.lineno}" for module in product() for node in _catches(module, "Exception")]
    assert len(places) <= BLIND_MAX, places


def test_what_catches_cancellation_raises_it_again() -> None:
    """`except BaseException` and a bare `except` also catch a cancellation, which must never get lost."""
    offenders = [
        f"{module.name}:{node.lineno}"
        for module in product()
        for node in _catches(module, "BaseException")
        if not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    ]
    assert not offenders, "\n".join(offenders)


def test_no_test_is_skipped() -> None:
    offenders = [
        f"{module.name}:{node.lineno}"
        for module in ours()
        for node in module.walk()
        if isinstance(node, ast.Attribute)
        and node.attr in {"skip", "skipif", "xfail"}
        and ast.unparse(node.value) in {"pytest", "pytest.mark"}
    ]
    assert not offenders, "\n".join(offenders)


def test_no_file_names_a_machine_or_a_package_source() -> None:
    """Whoever clones this has other folders, and gets packages from elsewhere."""
    offenders = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in files()
        if path not in NAMES_WHAT_IS_FORBIDDEN
        for number, line in enumerate(_text(path).splitlines(), 1)
        if MACHINE.search(line) or SOURCE.search(line)
    ]
    assert not offenders, "\n".join(offenders)


def test_the_house_has_its_papers() -> None:
    sizes = {name: path.stat().st_size if (path := ROOT / name).exists() else 0 for name in PAPERS}
    assert not {name: size for name, size in sizes.items() if size < PAPER_BYTES_MIN}


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="ignore")


def _is_reason(text: str) -> bool:
    """At least two words."""
    return len(re.findall(r"[a-z]{2,}", text)) >= 2


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
