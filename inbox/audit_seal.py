"""Seals the audit: a chain of hashes over its lines, in which a changed, removed, inserted or moved line is found.

A seal holds a line's number and the hash of the seal before it together with everything that the line says. Lines are
sealed in the order of the transactions that wrote them (`xid`), not of their numbers, because numbers commit out of
order:

1. A inserts line 7 (xid 100) and stays open. 2. B inserts line 8 (xid 101) and commits. 3. Sealing "up to the highest
number" would seal 8, and 7, which commits later, would stand below the chain's end: left out, or an insertion.

So a pass takes only lines whose transaction is older than every transaction that is still open (`pg_snapshot_xmin`, of
the very statement that reads them): whoever had such an xid has ended, so nobody can add a line below it any more. In 3
nothing is sealed, since A holds the horizon at 100; the pass after A's end seals 7, then 8. An open transaction delays
the seal, and never more. This gives the rule that finds an insertion: behind a seal of xid n, every line with a lower
xid has its seal, or was put there by somebody who wrote the xid by hand.

A database that was dumped and loaded into another cluster counts its transactions anew. A seal therefore names the
cluster (`system_identifier`), xids are compared within one cluster only, and a visible line whose xid this cluster has
not reached yet is an old one: its transaction has ended.

What if two passes run at once? Both hold the lease in turn, and the number of a seal is a key: the second finds the
row that it wanted to write, and is rolled back. What if it stops in the middle? A pass is one transaction.

What it cannot find: the last lines removed together with their seals. For that the chain's head (its number and hash)
is noted down outside of the database: the sealer logs it, and `verify` takes it.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .arrays import arrays, insert_arrays
from .errors import ConfigurationError
from .tables import Tables

LINES_MAX: Final = 1_000
"""Lines in one pass: some milliseconds of hashing; the next pass goes on at once where there are more."""

PROBLEMS_MAX: Final = 100
"""A chain that breaks early breaks everywhere behind: what is named first is what matters."""

_BEGIN: Final = hashlib.sha256(b"tidegate audit 1").digest()
"""What the first seal follows."""


class Head(NamedTuple):
    """The chain's end: how many seals it has, and the hash of the last."""

    n: int
    digest: bytes

    def __str__(self) -> str:
        return f"{self.n}:{self.digest.hex()}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """What `str` wrote. Raises ConfigurationError."""
        found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
        if found is None:
            raise ConfigurationError.of(
                "--head", f"{text!r} is no head of the audit's chain", "give what `verify` or the log said: 17:3fa2..."
            )
        return cls(int(found[1]), bytes.fromhex(found[2]))


EMPTY: Final = Head(0, _BEGIN)


@final
@dataclass(frozen=True, slots=True)
class Verified:
    """What a check found: problems, how much is sealed, and what is not yet."""

    head: Head
    sealed: int
    unsealed: tuple[int, ...]
    """Numbers of lines that wait for their seal, `PROBLEMS_MAX` at most."""
    problems: tuple[str, ...]


class _Seal(NamedTuple):
    n: int
    audit_id: int
    xid: int
    system: int
    digest: bytes
    line: dict[str, Any] | None


def digest_of(before: bytes, n: int, xid: int, system: int, line: dict[str, Any]) -> bytes:
    """The hash of a seal: of the one before it, all else that it says, and all that the line says."""
    says = [n, xid, system, {name: _plain(value) for name, value in line.items()}]
    return hashlib.sha256(before + json.dumps(says, sort_keys=True, separators=(",", ":")).encode()).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="microseconds")
    return value.hex() if isinstance(value, bytes) else value


# --------------------------------------------------------------------------------------------------------------- seal


async def seal(conn: AsyncConnection, t: Tables) -> tuple[Head, int]:
    """Lock order 7, under the sealer's lease: seal up to `LINES_MAX` lines; the head, and how many were sealed."""
    last = await _last(conn, t)
    system = await _system(conn)
    head = EMPTY if last is None else Head(last.n, last.digest)
    seals: list[dict[str, Any]] = []
    for xid, line in await _ripe(conn, t, system, last):
        n = head.n + 1
        head = Head(n, digest_of(head.digest, n, xid, system, line))
        seals.append({"n": n, "audit_id": line["id"], "xid": xid, "system": system, "digest": head.digest})
    if seals:
        rows = [tuple(one.values()) for one in seals]
        await conn.execute(insert_arrays(t.audit_seal, tuple(seals[0])), arrays(tuple(seals[0]), rows))
    return head, len(seals)


async def _ripe(conn: AsyncConnection, t: Tables, system: int, last: Any) -> list[tuple[int, dict[str, Any]]]:
    """Lines without a seal whose transactions have ended, as have all that are older; each with its seal's xid."""
    a, s = t.audit.c, t.audit_seal.c
    oldest, newest = _bound(sa.func.pg_snapshot_xmin), _bound(sa.func.pg_snapshot_xmax)
    xid = sa.case((a.xid >= newest, 0), else_=a.xid)
    chosen = sa.select(xid, *a).where(sa.or_(a.xid < oldest, a.xid >= newest), ~sa.exists().where(s.audit_id == a.id))
    if last is not None and last.system == system:
        chosen = chosen.where(a.xid >= last.xid)  # all below it has its seal: the index finds what is new
    rows = (await conn.execute(chosen.order_by(xid, a.id).limit(LINES_MAX))).all()
    names = [column.name for column in a]
    return [(row[0], dict(zip(names, row[1:], strict=True))) for row in rows]


def _bound(of: Any) -> sa.ColumnElement[int]:
    """A transaction's number out of this statement's own snapshot."""
    return sa.cast(sa.cast(of(sa.func.pg_current_snapshot()), sa.Text), sa.BigInteger)


async def _last(conn: AsyncConnection, t: Tables) -> Any:
    s = t.audit_seal.c
    chosen = sa.select(s.n, s.digest, s.xid, s.system).order_by(s.n.desc()).limit(1)
    return (await conn.execute(chosen)).one_or_none()


async def _system(conn: AsyncConnection) -> int:
    number: int = await conn.scalar(sa.text("SELECT system_identifier FROM pg_control_system()"))
    return number


# ------------------------------------------------------------------------------------------------------------- verify


async def verify(conn: AsyncConnection, t: Tables, known: Head | None = None) -> Verified:
    """Read everything and say what does not stand as it was sealed; memory is flat.

    `known` is a head that was noted down before: the chain must still lead through it.
    """
    await conn.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    problems: list[str] = []
    head, last, met = EMPTY, None, known is None or known == EMPTY
    async for found in _chain(conn, t):
        problems += _judge(found, head, last)
        met = met or (known is not None and (found.n, found.digest) == known)
        head, last = Head(found.n, found.digest), found
    if not met:
        problems.insert(0, f"the chain does not lead through {known}: seals were removed, or made anew")
    waiting, forged = await _without_seal(conn, t, last)
    problems += [f"line {number} was inserted: its transaction is older than the chain's end" for number in forged]
    return Verified(head, head.n, tuple(waiting), tuple(problems[:PROBLEMS_MAX]))


def _judge(found: _Seal, before: Head, last: _Seal | None) -> list[str]:
    if found.n != before.n + 1:
        return [f"seals {before.n + 1} to {found.n - 1} are missing"]
    if found.line is None:
        return [f"line {found.audit_id} was removed (seal {found.n})"]
    if last is not None and last.system == found.system and found.xid < last.xid:
        return [f"seal {found.n} is out of order"]
    if digest_of(before.digest, found.n, found.xid, found.system, found.line) != found.digest:
        return [f"line {found.audit_id} is not as it was sealed (seal {found.n}): it or the seal was changed or moved"]
    return []


async def _chain(conn: AsyncConnection, t: Tables) -> AsyncGenerator[_Seal]:
    a, s = t.audit, t.audit_seal
    own = [s.c.n, s.c.audit_id, s.c.xid, s.c.system, s.c.digest]
    width, names = len(own), [column.name for column in a.c]
    after = 0
    while True:
        chosen = sa.select(*own, *a.c).select_from(s.outerjoin(a, a.c.id == s.c.audit_id)).where(s.c.n > after)
        page = (await conn.execute(chosen.order_by(s.c.n).limit(LINES_MAX))).all()
        for row in page:
            values: Sequence[Any] = tuple(row)
            line = None if values[width] is None else dict(zip(names, values[width:], strict=True))
            after = values[0]
            n, audit_id, xid, system, digest = values[:width]
            yield _Seal(n, audit_id, xid, system, digest, line)
        if len(page) < LINES_MAX:
            return


async def _without_seal(conn: AsyncConnection, t: Tables, last: _Seal | None) -> tuple[list[int], list[int]]:
    """Numbers of lines without a seal: those that wait for it, and those that cannot have come by themselves."""
    a, s = t.audit.c, t.audit_seal.c
    chosen = sa.select(a.id, a.xid).where(~sa.exists().where(s.audit_id == a.id)).order_by(a.id).limit(PROBLEMS_MAX)
    rows = (await conn.execute(chosen)).all()
    bound = last.xid if last is not None and last.system == await _system(conn) else 0
    return [row.id for row in rows if row.xid >= bound], [row.id for row in rows if row.xid < bound]
