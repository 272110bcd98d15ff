"""Inserts of many rows in one statement with one bound array for each column. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, Insert, insert

Typed: TypeAlias = tuple[LiteralString, LiteralString]
"""A column's name and its type."""


def insert_text(table: LiteralString, columns: Sequence[Typed]) -> LiteralString:
    """The same as text, for a statement that is sent often: composed anew each time it costs more than to run it.

    >>> insert_text("t", (("a", "int"), ("b", "text")))
    'INSERT INTO t (a, b) SELECT * FROM unnest(CAST(:a AS int[]), CAST(:b AS text[]))'
    """
    names = ", ".join([name for name, _ in columns])
    values = ", ".join([f"CAST(:{name} AS {type_}[])" for name, type_ in columns])
    return f"INSERT INTO {table} ({names}) SELECT * FROM unnest({values})"  # noqa: S608 - of the source, as the types say


def insert_arrays(table: sa.Table, names: Sequence[str]) -> Insert:
    """`INSERT INTO table (names) SELECT unnest(:name), ...`: rows come in the arrays' order."""
    columns = [table.c[name] for name in names]
    rows = sa.select(*[sa.func.unnest(sa.bindparam(c.name, type_=ARRAY(c.type))).label(c.name) for c in columns])
    return insert(table).from_select(list(names), rows, include_defaults=False)


def arrays(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """The parameters of such an insert: `rows` hold values in the order of `names`."""
    return {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
