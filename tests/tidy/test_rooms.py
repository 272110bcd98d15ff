"""Rooms: imports go down only, the engine and the rules are pure, and every package is shipped."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

from tests.tidy.source import ROOMS, ROOT, Module, product

IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "subprocess", "threading", "selectors", "socket", "ssl", "signal"),
    *("os", "pathlib", "random", "secrets", "shutil", "tempfile", "time", "logging", "urllib", "http"),
    *("asyncpg", "structlog", "typer", "uvloop"),
}
"""What does IO, or hides the time or chance."""

OUTSIDE = {
    *("alembic", "confluent_kafka", "fastavro", "opentelemetry", "prometheus_client", "pydantic", "rich", "sqlalchemy"),
}
"""The outside world: a pure rule elsewhere may take or make its values, the engine may not know it."""

MIGRATIONS = "/migrations/"
"""Alembic loads these by their path: they are in no package, so that nothing relative is there."""

PROMISE = "No IO; time is an argument."


def test_imports_go_down_only() -> None:
    offenders = [
        f"{module.name}:{found.line} imports {found.module}, which stands above it"
        for module in product()
        for found in module.imports()
        if (room := _room(found.module)) and ROOMS.index(room) > ROOMS.index(module.room)
    ]
    assert not offenders, "\n".join(offenders)


def test_the_product_imports_itself_by_relative_imports_only() -> None:
    offenders = [
        f"{module.name} imports {name}"
        for module in product()
        if MIGRATIONS not in module.name
        for name in _absolute_imports(module)
        if name.split(".")[0] in {"tidegate", "tests", "examples", "benchmarks", *ROOMS}
    ]
    assert not offenders, "\n".join(offenders)


def test_the_inbox_knows_no_kafka_client() -> None:
    offenders = [
        f"{module.name}:{found.line}"
        for module in product()
        for found in module.imports()
        if module.room == "inbox" and found.module.split(".")[0] == "confluent_kafka"
    ]
    assert not offenders, "\n".join(offenders)


def test_what_promises_purity_is_pure() -> None:
    """The engine, and every module whose docstring promises it."""
    offenders = [
        f"{module.name}:{found.line} imports {found.module}"
        for module in product()
        if _promises_purity(module)
        for found in module.imports()
        if found.module.split(".")[0] in (IMPURE | OUTSIDE if _in_engine(module) else IMPURE)
    ]
    assert not offenders, "\n".join(offenders)


def test_what_promises_purity_does_not_ask_the_clock() -> None:
    offenders = [
        f"{module.name}:{node.lineno} {ast.unparse(node)}"
        for module in product()
        if _promises_purity(module)
        for node in module.walk()
        if isinstance(node, ast.Attribute)
        and node.attr in {"now", "utcnow", "today"}
        and "date" in ast.unparse(node.value)
    ]
    assert not offenders, "\n".join(offenders)


def test_every_engine_module_promises_purity() -> None:
    modules = [module for module in product() if _in_engine(module) and module.path.name != "__init__.py"]
    assert modules
    offenders = [module.name for module in modules if PROMISE not in module.docstring]
    assert not offenders, "\n".join(offenders)


def test_every_folder_with_modules_is_listed_to_be_shipped() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {module.path.parent.relative_to(ROOT) for module in product()}
    assert sorted(listed) == sorted("tidegate." + ".".join(folder.parts) for folder in there)


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {module.path.parent for module in product() if MIGRATIONS not in module.name}
    offenders = [str(folder) for folder in folders if not (folder / "__init__.py").exists()]
    assert not offenders, "\n".join(offenders)


def test_every_room_ships_its_types() -> None:
    offenders = [room for room in ROOMS if not (ROOT / room / "py.typed").exists()]
    assert not offenders, "\n".join(offenders)


def _room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "tidegate" and len(parts) > 1 else None


def _in_engine(module: Module) -> bool:
    return module.name.startswith("consumers/engine/")


def _promises_purity(module: Module) -> bool:
    return _in_engine(module) or PROMISE in module.docstring


def _absolute_imports(module: Module) -> Iterator[str]:
    for node in module.walk():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
