"""What tables are made of: types, columns, keys and rules. No IO."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

NAME_CHARS_MAX: Final = 255
"""For names in unique keys: four bytes a character, twice, stay below the 2,704 bytes of a btree row."""

ID_TEXT_CHARS_MAX: Final = 512
"""How much of a readable id is kept; the key is its hash."""

INDEXED_TEXT_CHARS_MAX: Final = 300
"""For text in an index of its own: four bytes a character stay below the 2,704 bytes of a btree row."""

Text: Final = sa.Text()
Bytes: Final = sa.LargeBinary()
Long: Final = sa.BigInteger()
Int: Final = sa.Integer()
Time: Final = sa.DateTime(timezone=True)


def column(name: str, type_: sa.types.TypeEngine[Any], default: str | None = None) -> sa.Column[Any]:
    """A column that is never NULL."""
    server_default = None if default is None else sa.text(default)
    return sa.Column(name, type_, nullable=False, server_default=server_default, autoincrement=False)


def nullable(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    """A column that may be NULL, which stands in no unique key."""
    return sa.Column(name, type_, nullable=True)


def identity(name: str) -> sa.Column[Any]:
    """A number that the database hands out."""
    return sa.Column(name, Long, sa.Identity(always=True), nullable=False)


def check(table: str, name: str, rule: str) -> sa.CheckConstraint:
    """A rule that the database keeps."""
    return sa.CheckConstraint(rule, name=f"{table}_{name}")


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    """The primary key."""
    return sa.PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


def unique(table: str, *columns: str) -> sa.UniqueConstraint:
    """The unique key."""
    return sa.UniqueConstraint(*columns, name=f"{table}_key")


def index(
    name: str, *columns: str, where: str | None = None, unique: bool = False, fillfactor: int | None = None
) -> sa.Index:
    """An index, of all rows or of some; how full its pages become at its end, where that is not 90 percent."""
    some = None if where is None else sa.text(where)
    room = {} if fillfactor is None else {"fillfactor": fillfactor}
    return sa.Index(name, *columns, unique=unique, postgresql_where=some, postgresql_with=room)


def short(table: str, *names: str) -> sa.CheckConstraint:
    """Names are neither empty nor too long for a key."""
    rule = " AND ".join(f"{name} <> '' AND char_length({name}) <= {NAME_CHARS_MAX}" for name in names)
    return check(table, "names", rule)
