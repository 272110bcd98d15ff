"""Rooms: imports go down only, the engine and the rules are pure, and every package is shipped."""

from __future__ import annotations

import ast
import tomllib

import pytest

from tests.tidy.source import ROOMS, ROOT, Module, product

IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "subprocess", "threading", "selectors", "socket", "ssl", "signal"),
    *("os", "pathlib", "random", "secrets", "shutil", "tempfile", "time", "logging", "urllib", "http"),
    *("asyncpg", "structlog", "typer", "uvloop"),
}
"""What does IO, or hides the time or chance."""

OUTSIDE = {
    "alembic",
    "confluent_kafka",
    "fastavro",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "rich",
    "sqlalchemy",
}
"""The outside world: a pure rule elsewhere may take or make its values, the engine may not know it."""

MIGRATIONS = "/migrations/"
"""Alembic loads these by their path: they are in no package, so that nothing relative is there."""

PROMISE = "No IO; time is an argument."


@pytest.mark.parametrize("module", product(), ids=lambda module: module.name)
def test_imports_go_down_only(module: Module) -> None:
    below = ROOMS[: ROOMS.index(module.room) + 1]
    for found in module.imports():
        parts = found.module.split(".")
        if parts[0] == "tidegate":
            assert parts[1] in below, f"{module.name}:{found.line} imports {found.module}, which stands above it"


@pytest.mark.parametrize("module", product(), ids=lambda module: module.name)
def test_the_product_imports_itself_by_relative_imports_only(module: Module) -> None:
    if MIGRATIONS in module.name:
        return
    for node in module.walk():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        outside = [name for name in names if name.split(".")[0] in {"tidegate", "tests", "examples", *ROOMS}]
        assert not outside, f"{module.name} imports {outside}"


@pytest.mark.parametrize("module", product(), ids=lambda module: module.name)
def test_the_inbox_knows_no_kafka_client(module: Module) -> None:
    if module.room == "inbox":
        assert not [found for found in module.imports() if found.module.split(".")[0] == "confluent_kafka"]


@pytest.mark.parametrize("module", product(), ids=lambda module: module.name)
def test_what_promises_purity_is_pure(module: Module) -> None:
    """The engine, and every module whose docstring promises it."""
    engine = module.name.startswith("consumers/engine/")
    if not engine and PROMISE not in (ast.get_docstring(module.tree) or ""):
        return
    forbidden = IMPURE | OUTSIDE if engine else IMPURE
    impure = [found.module for found in module.imports() if found.module.split(".")[0] in forbidden]
    assert not impure, f"{module.name} imports {impure}"
    clocks = [
        node for node in module.walk() if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}
    ]
    calls = [
        node
        for node in clocks
        if isinstance(node.value, ast.Name | ast.Attribute) and "date" in ast.unparse(node.value)
    ]
    assert not calls, f"{module.name} asks the clock"


def test_every_engine_module_promises_purity() -> None:
    for module in product():
        if module.name.startswith("consumers/engine/") and not module.name.endswith("__init__.py"):
            assert PROMISE in (ast.get_docstring(module.tree) or ""), f"{module.name} does not say: {PROMISE}"


def test_every_folder_with_modules_is_listed_to_be_shipped() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {module.path.parent.relative_to(ROOT) for module in product()}
    assert sorted(listed) == sorted("tidegate." + ".".join(folder.parts) for folder in there)


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {module.path.parent for module in product() if MIGRATIONS not in module.name}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_ships_its_types(room: str) -> None:
    assert (ROOT / room / "py.typed").exists()
