"""Writes of a read model that an event which comes late cannot spoil: each row lands only if it is newer.

An event may come behind a later one of its key: it failed and was tried again meanwhile, it was replayed, the topic got
more partitions. A projection that goes on behind a failed event (`on_failure="continue"`) must not mind. This is the
guard: a version that only grows with each event of a key, and a write that compares it where it is written. The
database compares, so it does not matter who else writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.arrays import arrays, insert_arrays

Row = Mapping[str, Any]


class Executes(Protocol):
    """A blocking transaction, as a `def` projection has it."""

    def execute(self, statement: Any, parameters: Any = None) -> sa.CursorResult[Any]:
        """Run one statement."""
        ...


class Newest(NamedTuple):
    """Of some rows those with the highest version of each key, in the keys' order; `stale` rows came behind newer ones.

    What was passed by a newer row that came after it is not stale: it came when it should.
    """

    rows: list[Row]
    stale: int


async def write_newer(
    tx: AsyncConnection, table: sa.Table, rows: Sequence[Row], *, key: Sequence[str], version: str
) -> int:
    """Insert `rows`, or update what stands there, each only where its version is higher. One statement.

    Args:
        tx: the batch's transaction.
        table: where to. Its primary key, or a unique constraint, is on `key`.
        rows: column -> value, all with the same columns; several of one key are fine.
        key: the columns that say which row it is.
        version: the column that grows with each event of a key: a count that the producer keeps, say.

    Returns:
        How many rows were out of date and changed nothing. Return it from the projection, and it is counted.

    Raises:
        ValueError: a column holds arrays, which this statement cannot carry.
    """
    newest = newest_of(rows, key, version)
    if not newest.rows:
        return 0
    names = list(newest.rows[0])
    written = await tx.execute(statement_of(table, names, key, version), _parameters(names, newest))
    return newest.stale + len(newest.rows) - written.rowcount


def write_newer_blocking(
    tx: Executes, table: sa.Table, rows: Sequence[Row], *, key: Sequence[str], version: str
) -> int:
    """`write_newer` for a `def` projection."""
    newest = newest_of(rows, key, version)
    if not newest.rows:
        return 0
    names = list(newest.rows[0])
    written = tx.execute(statement_of(table, names, key, version), _parameters(names, newest))
    return newest.stale + len(newest.rows) - written.rowcount


def newest_of(rows: Sequence[Row], key: Sequence[str], version: str) -> Newest:
    """One statement must not meet a row twice, so of each key the highest version is chosen here.

    >>> newest_of([{"id": 1, "v": 2}, {"id": 1, "v": 1}, {"id": 0, "v": 7}], ["id"], "v")
    Newest(rows=[{'id': 0, 'v': 7}, {'id': 1, 'v': 2}], stale=1)
    """
    kept: dict[tuple[Any, ...], Row] = {}
    stale = 0
    for row in rows:
        place = tuple(row[name] for name in key)
        known = kept.get(place)
        if known is None or row[version] > known[version]:
            kept[place] = row
        else:
            stale += 1
    return Newest([kept[place] for place in sorted(kept)], stale)  # in one order, or two workers could block each other


def statement_of(table: sa.Table, names: Sequence[str], key: Sequence[str], version: str) -> sa.Executable:
    """The upsert, with one bound array for each column."""
    if held := [name for name in names if isinstance(table.c[name].type, sa.ARRAY)]:
        raise ValueError(f"{table.name}: {', '.join(held)} holds arrays: write the statement yourself")
    insert = insert_arrays(table, names)
    stands, comes = table.c[version], insert.excluded[version]
    return insert.on_conflict_do_update(
        index_elements=list(key),
        set_={name: insert.excluded[name] for name in names if name not in key},
        where=sa.or_(stands.is_(None), comes > stands),
    )


def _parameters(names: Sequence[str], newest: Newest) -> dict[str, list[Any]]:
    return arrays(names, [[row[name] for name in names] for row in newest.rows])
