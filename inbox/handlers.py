"""The numbers of handlers: every key in the inbox carries one, so that two consumers never share a claim.

A number outlives its name. `renamed_from=` gives the row of the old name the new one, and remembers the old: 1. v2
renames `a` to `b`; 2. it is rolled back, v1 has `a` and no `b`; 3. v1 finds that `b` was called `a`, and renames it
back. In each of them it is the same number with the same claims, checkpoints and rows, so nothing is handled twice, and
replicas of both that run side by side share it. What the app no longer has stays until somebody says what it is.

A number is of one kind, projection or command: each claims under versions that the other never asks for, so under the
other's number either would handle its history again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .errors import ConfigurationError, Problem
from .tables import Tables

RESERVED: Final = ""
"""The handler of records without one of their own: undecodable and unmatched ones."""

Kind = Literal["command", "projection"]

NOT_RENAMED: Final[Mapping[str, str]] = MappingProxyType({})
NOT_TOLD: Final[Mapping[str, Kind]] = MappingProxyType({})


async def register_handlers(
    conn: AsyncConnection,
    t: Tables,
    consumer: str,
    names: Iterable[str],
    renamed: Mapping[str, str] = NOT_RENAMED,
    kinds: Mapping[str, Kind] = NOT_TOLD,
) -> dict[str, int]:
    """The ids of the consumer's handlers, made where new; with the reserved one. Any number may do this at once.

    `renamed` says which of `names` had which name before, `kinds` what they are. One that was discarded and is back
    counts again.

    Raises:
        ConfigurationError: a new name and its old one both have a row of their own, or one was of the other kind.
    """
    wanted = sorted({RESERVED, *names})
    await _refuse_two(conn, t, consumer, renamed)
    await _refuse_other_kind(conn, t, consumer, kinds, renamed)
    await _rename(conn, t, consumer, renamed)
    await _rename_back(conn, t, consumer, wanted)
    await conn.execute(
        t.sql("""
            INSERT INTO {handler} (consumer, name)
            SELECT :consumer, u.name FROM unnest(CAST(:names AS text[])) u (name)
             WHERE NOT EXISTS (SELECT FROM {handler} h WHERE h.consumer = :consumer AND h.name = u.name)
             ORDER BY u.name COLLATE "C"
            ON CONFLICT DO NOTHING
        """),
        {"consumer": consumer, "names": wanted},
    )
    await _tell_kinds(conn, t, consumer, kinds)
    await _count_again(conn, t, consumer, wanted)
    known = await known_handlers(conn, t, consumer)
    return {name: known[name] for name in wanted}


async def _refuse_two(conn: AsyncConnection, t: Tables, consumer: str, renamed: Mapping[str, str]) -> None:
    rows = await _rows(conn, t, consumer) if renamed else ()
    known, live = {row.name for row in rows}, {row.name for row in rows if row.discarded_at is None}
    problems = [two_problem(consumer, new, old) for new, old in sorted(renamed.items()) if new in known and old in live]
    if problems:
        raise ConfigurationError(problems)


def two_problem(consumer: str, new: str, old: str) -> Problem:
    """What is said where a renamed handler would have to be two."""
    return Problem(
        f"handler {new!r} of {consumer!r}",
        f"it is renamed from {old!r}, but the database has both, each with claims and checkpoints of its own",
        f"take renamed_from={old!r} out, and discard what {old!r} left with `tidegate handlers discard {old}`",
    )


async def _rename(conn: AsyncConnection, t: Tables, consumer: str, renamed: Mapping[str, str]) -> None:
    """Who comes second waits for the row and finds no `old` any more: nothing is renamed twice."""
    for new, old in sorted(renamed.items()):
        await conn.execute(
            t.sql("""
                UPDATE {handler} SET name = :new, former_name = :old, discarded_at = NULL
                 WHERE consumer = :consumer AND name = :old
                   AND NOT EXISTS (SELECT FROM {handler} o WHERE o.consumer = :consumer AND o.name = :new)
            """),
            {"consumer": consumer, "new": new, "old": old},
        )


async def _rename_back(conn: AsyncConnection, t: Tables, consumer: str, wanted: Collection[str]) -> None:
    """An app from before a renaming has the old name and not the new one."""
    await conn.execute(
        t.sql("""
            UPDATE {handler} h SET name = h.former_name, former_name = h.name
             WHERE h.consumer = :consumer AND h.former_name = ANY (CAST(:names AS text[]))
               AND NOT h.name = ANY (CAST(:names AS text[]))
               AND NOT EXISTS (SELECT FROM {handler} o WHERE o.consumer = :consumer AND o.name = h.former_name)
        """),
        {"consumer": consumer, "names": list(wanted)},
    )


async def _tell_kinds(conn: AsyncConnection, t: Tables, consumer: str, kinds: Mapping[str, Kind]) -> None:
    """Behind the insert, which waits for whoever makes the same row: of two at once one finds the other's."""
    await conn.execute(
        t.sql("""
            WITH mine AS (
              SELECT h.id, u.kind FROM unnest(CAST(:names AS text[]), CAST(:kinds AS text[])) u (name, kind)
                JOIN {handler} h ON h.consumer = :consumer AND h.name = u.name
               WHERE h.kind IS NULL ORDER BY h.id FOR NO KEY UPDATE OF h)
            UPDATE {handler} h SET kind = mine.kind FROM mine WHERE h.id = mine.id
        """),
        {"consumer": consumer, "names": list(kinds), "kinds": list(kinds.values())},
    )
    await _refuse_other_kind(conn, t, consumer, kinds, NOT_RENAMED)


async def _refuse_other_kind(
    conn: AsyncConnection, t: Tables, consumer: str, kinds: Mapping[str, Kind], renamed: Mapping[str, str]
) -> None:
    if problems := await kind_problems(conn, t, consumer, kinds, renamed):
        raise ConfigurationError(problems)


async def kind_problems(
    conn: AsyncConnection, t: Tables, consumer: str, kinds: Mapping[str, Kind], renamed: Mapping[str, str] = NOT_RENAMED
) -> list[Problem]:
    """Handlers that the database knows as the other kind, under their name or the one that a start would take."""
    rows = await _rows(conn, t, consumer)
    named = {row.name: row for row in rows}
    formerly = {row.former_name: row for row in rows if row.former_name is not None and row.name not in kinds}
    problems: list[Problem] = []
    for name, kind in kinds.items():
        old = renamed.get(name, name)
        row = named.get(name) or named.get(old) or formerly.get(name)
        if row is not None and row.kind not in (None, kind):
            problems.append(_kind_problem(consumer, name, kind, row.name))
    return problems


def _kind_problem(consumer: str, name: str, kind: Kind, was: str) -> Problem:
    other: Kind = "command" if kind == "projection" else "projection"
    return Problem(
        f"handler {name!r} of {consumer!r}",
        f"the app declares a {kind}, but the database knows {was!r} as a {other}: a {kind} does not see what a {other} "
        "has done, and would handle its history again",
        f"declare the {other} again, or give the {kind} a name of its own, without renamed_from= (it begins where the "
        f"consumer's other handlers are), and discard what the {other} left with "
        f"`tidegate handlers discard {was} --consumer {consumer}`",
    )


async def _count_again(conn: AsyncConnection, t: Tables, consumer: str, wanted: Collection[str]) -> None:
    await conn.execute(
        t.sql("""
            UPDATE {handler} SET discarded_at = NULL
             WHERE consumer = :consumer AND name = ANY (CAST(:names AS text[])) AND discarded_at IS NOT NULL
        """),
        {"consumer": consumer, "names": list(wanted)},
    )


async def known_handlers(conn: AsyncConnection, t: Tables, consumer: str) -> dict[str, int]:
    """Every handler that the consumer ever had and nobody discarded, the reserved one included: name -> id."""
    return {row.name: row.id for row in await _rows(conn, t, consumer) if row.discarded_at is None}


async def gone_handlers(
    conn: AsyncConnection, t: Tables, consumer: str, names: Collection[str], renamed: Mapping[str, str] = NOT_RENAMED
) -> dict[str, int]:
    """Known handlers that an app with `names` does not have, and that its start would not rename: name -> id."""
    rows = await _rows(conn, t, consumer)
    there = {row.name for row in rows}
    kept = {RESERVED, *names, *(old for new, old in renamed.items() if new not in there)}
    back = {row.name for row in rows if row.former_name in names and row.former_name not in there}
    return {row.name: row.id for row in rows if row.discarded_at is None and row.name not in kept | back}


async def _rows(conn: AsyncConnection, t: Tables, consumer: str) -> Sequence[sa.Row[Any]]:
    return (await conn.execute(sa.select(t.handler).where(t.handler.c.consumer == consumer).order_by("name"))).all()


async def mark_discarded(conn: AsyncConnection, t: Tables, handler_id: int) -> None:
    """What it left is not wanted any more; its number and its claims stay, should it ever come back."""
    await conn.execute(
        t.sql("UPDATE {handler} SET discarded_at = clock_timestamp() WHERE id = :id AND discarded_at IS NULL"),
        {"id": handler_id},
    )
