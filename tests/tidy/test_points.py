"""Every point of the path is passed by the code, and no writing transaction of a worker is without its points."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import cast

from tests.tidy.source import ROOT, Module, product
from tidegate.inbox.points import Point, Writes

POINTS = "inbox/points.py"

PATHS = ("inbox/", "projections/", "consumers/worker/", "consumers/client/")
"""What a worker runs. The acts of the command line are one transaction each, on rows that nobody handles meanwhile."""

GROUND = {"inbox/store.py", "inbox/database.py", "inbox/migrate.py", "inbox/fence.py"}
"""Where transactions are made, or opened without a store."""


def test_every_point_is_passed() -> None:
    named = {name for module in product() if module.name != POINTS for name in _members(module.text, "Point")}
    passed = named | {point.name for name in _written() for point in Writes[name].value}
    assert passed | {Point.IN_CALL.name} == {point.name for point in Point}


def test_the_point_inside_a_call_is_passed_by_the_matrix() -> None:
    """The product cannot stand there: the call is the user's."""
    assert "reach(Point.IN_CALL" in (ROOT / "tests/support/matrix_app.py").read_text(encoding="utf-8")


def test_every_commit_has_a_point_on_both_sides() -> None:
    names = {writes.name: tuple(point.name for point in writes.value) for writes in Writes}
    assert names == {name: (f"BEFORE_{name}", f"AFTER_{name}") for name in names}
    assert set(_written()) == {writes.name for writes in Writes}


def test_a_transaction_that_writes_says_what_for() -> None:
    """`Store.look()` is for those that write nothing."""
    offenders = [
        f"{module.name}:{call.lineno} opens a transaction without its Writes"
        for module in _worker()
        for call in _calls(module, "transaction")
        if "store" in ast.unparse(call.func) and not any(_is_writes(argument) for argument in call.args)
    ]
    assert not offenders, "\n".join(offenders)


def test_transactions_are_opened_through_the_store() -> None:
    offenders = [
        f"{module.name}:{call.lineno}"
        for module in _worker()
        if module.name not in GROUND
        for call in _calls(module, "transaction")
        if "store" not in ast.unparse(call.func)
    ]
    assert not offenders, "\n".join(offenders)


def test_a_commit_by_hand_stands_between_two_points() -> None:
    offenders = [
        f"{module.name}:{line.lineno}"
        for module in _worker()
        if module.name not in GROUND
        for block in _blocks(module)
        for before, line, after in zip([None, *block], block, [*block[1:], None], strict=False)
        if _text(line).endswith("conn.commit()") and not (_reaches(before) and _reaches(after))
    ]
    assert not offenders, "\n".join(offenders)


def _worker() -> list[Module]:
    return [module for module in product() if module.name.startswith(PATHS) and module.name != POINTS]


def _members(text: str, enum: str) -> set[str]:
    return set(re.findall(rf"\b{enum}\.([A-Z_]+)\b", text))


def _written() -> set[str]:
    return {name for module in product() if module.name != POINTS for name in _members(module.text, "Writes")}


def _calls(module: Module, method: str) -> Iterator[ast.Call]:
    for node in module.walk():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _is_writes(argument: ast.expr) -> bool:
    return ast.unparse(argument).startswith("Writes.")


def _blocks(module: Module) -> Iterator[list[ast.stmt]]:
    for node in module.walk():
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield [line for line in cast("list[object]", block) if isinstance(line, ast.stmt)]


def _text(line: ast.stmt) -> str:
    return ast.unparse(line) if isinstance(line, ast.Expr) else ""


def _reaches(line: ast.stmt | None) -> bool:
    return line is not None and _text(line).startswith("reach(")
