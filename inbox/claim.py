"""Claims: what was handled, one narrow row for each (handler, version, event id), and the probes that ask for it.

In this cut there is one generation. The generation lock is taken all the same, so that a later release that rotates
never meets a claiming transaction that does not hold it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, LiteralString, NamedTuple, cast

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .arrays import arrays
from .database import raw
from .event import Partition
from .failing import FEW, FailingIds, IdFilter
from .outcome import FailureState
from .tables import Tables

_SAVEPOINT: Final = "tidegate_claim"
_COLUMNS: Final = ("handler", "version", "event_id", "payload_hash8")


ADVISED_MIN: Final = 200
"""Ids of which a look at the filters first costs less than looking each of them up: 2 microseconds each."""


class ClaimKey(NamedTuple):
    """What is claimed: an event, for a version of a handler."""

    handler_id: int
    version: int
    event_id: bytes


class FailureFound(NamedTuple):
    """A failure row that a probe met."""

    failure_id: int
    state: FailureState
    partition: Partition
    incarnation: int
    offset: int
    payload_hash: int
    duplicate_of: int | None


@dataclass(frozen=True, slots=True)
class Generations:
    """What a look before the probes showed: which ids of which handlers are worth looking up among the failure rows."""

    filters: Mapping[int, IdFilter | None] = field(default_factory=dict[int, IdFilter | None])
    """The handlers' filters; None where every id has to be looked up. Handlers that are left out have no failures."""

    @property
    def failing(self) -> frozenset[int]:
        """The handlers that may have failure rows at all."""
        return frozenset(handler for handler, known in self.filters.items() if known is None or known.taken)

    def suspects(self, handler_id: int, ids: Sequence[bytes]) -> Sequence[bytes]:
        """Those of `ids` that may have a failure row of the handler."""
        if handler_id not in self.filters:
            return ()
        known = self.filters[handler_id]
        return ids if known is None else known.suspects(ids)


NOTHING_FAILS: Final = Generations()
"""For a probe of claims alone."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What the inbox knows of the ids asked for."""

    claims: Mapping[ClaimKey, int] = field(default_factory=dict[ClaimKey, int])
    """Claimed: the payload hash of the one that was handled."""
    failures: Mapping[ClaimKey, tuple[FailureFound, ...]] = field(
        default_factory=dict[ClaimKey, tuple[FailureFound, ...]]
    )
    """Not done: the rows in the order of their ids."""

    def __bool__(self) -> bool:
        return bool(self.claims or self.failures)


@dataclass(frozen=True, slots=True)
class Claimed:
    """`new` holds the ids that are ours now, None meaning all; `taken` the payload hashes of those claimed before."""

    new: frozenset[bytes] | None
    taken: Mapping[bytes, int]


async def lock_generations(
    conn: AsyncConnection, t: Tables, handler_ids: Collection[int] = (), known: FailingIds | None = None
) -> Generations:
    """Lock order 3, once in a claiming transaction, just before its probes: no rotation until it ends.

    Also tells what of the handlers' events may stand in the failure table, so that a probe of what is not there costs
    nothing. `known` is what the process has learned before; without it a handler with many rows has each id looked up.
    A row that is put after this statement is not seen, exactly as one that is put after a probe.
    """
    return Generations(await (known or FailingIds(FEW)).read(conn, t, handler_ids, lock=True))


async def advise(
    conn: AsyncConnection, t: Tables, handlers: Sequence[tuple[int, int]], ids: Sequence[bytes], known: FailingIds
) -> Probe:
    """A probe without the lock. Of claims it is advice; what it meets in the failure table is remembered."""
    generations = None
    if len(ids) >= ADVISED_MIN:
        generations = Generations(await known.read(conn, t, [handler for handler, _ in handlers], lock=False))
    found = await probe(conn, t, handlers, ids, generations)
    for handler, _, event_id in found.failures:
        known.met(handler, event_id)
    return found


async def probe(
    conn: AsyncConnection,
    t: Tables,
    handlers: Sequence[tuple[int, int]],
    ids: Sequence[bytes],
    generations: Generations | None = None,
    *,
    newest: bool = True,
) -> Probe:
    """Lock order 3: look the ids up for each of `handlers` (id, version) in all generations and the failure rows.

    One statement, so that a row that moves from failure to claim meanwhile is seen in one of them. Without
    `generations` (no lock held) the answer is advice.

    `newest=False` leaves out the generation that is claimed into: for a transaction that claims the same ids next, and
    learns of their claims by its unique key. A row that moves there after the probe was seen here as a failure.
    """
    asked = [
        (*handler, event_id)
        for handler in handlers
        for event_id in (ids if generations is None else generations.suspects(handler[0], ids))
    ]
    parts: list[LiteralString] = [*([_PROBE_CLAIMS] if newest and ids else []), *([_PROBE_FAILURES] if asked else [])]
    if not parts:
        return Probe()
    claims = {"handlers": [h for h, _ in handlers], "versions": [v for _, v in handlers], "ids": list(ids)}
    failures = arrays(("f_handlers", "f_versions", "f_ids"), asked) if asked else {}
    rows = await conn.execute(t.sql(" UNION ALL ".join(parts)), {**(claims if newest and ids else {}), **failures})
    return _probe_of(rows.all())


# LATERAL with LIMIT or OFFSET keeps the plan at one index look-up for each id, however the planner's statistics stand:
# a join could turn into a scan of millions of claims.
_PROBE_CLAIMS: Final = """
    SELECT h.handler, h.version, i.event_id, c.payload_hash8, NULL::bigint AS id, NULL::text AS state,
           NULL::text AS topic, NULL::int AS partition, NULL::bigint AS incarnation, NULL::bigint AS record_offset,
           NULL::bigint AS duplicate_of
      FROM unnest(CAST(:handlers AS bigint[]), CAST(:versions AS int[])) h (handler, version)
     CROSS JOIN unnest(CAST(:ids AS bytea[])) i (event_id)
     CROSS JOIN LATERAL (SELECT payload_hash8 FROM {claim_1} c
             WHERE c.handler = h.handler AND c.version = h.version AND c.event_id = i.event_id LIMIT 1) c
"""

_PROBE_FAILURES: Final = """
    SELECT i.handler, i.version, i.event_id, f.payload_hash8, f.id, f.state,
           f.topic, f.partition, f.incarnation, f.record_offset, f.duplicate_of
      FROM unnest(CAST(:f_handlers AS bigint[]), CAST(:f_versions AS int[]), CAST(:f_ids AS bytea[]))
           i (handler, version, event_id)
     CROSS JOIN LATERAL (SELECT * FROM {failure} f
             WHERE f.event_id = i.event_id AND f.handler = i.handler AND f.version = i.version OFFSET 0) f
"""


def is_claimed(
    t: Tables, handler: sa.ColumnElement[int], version: sa.ColumnElement[int], event_id: sa.ColumnElement[bytes]
) -> sa.ColumnElement[bool]:
    """Whether there is a claim, asked inside of another statement: a look-up for each of its rows, never a join."""
    c = t.claim_1.c
    mine = sa.select(sa.true()).where(c.handler == handler, c.version == version, c.event_id == event_id).limit(1)
    return mine.scalar_subquery().is_not(None)


def _probe_of(rows: Sequence[sa.Row[Any]]) -> Probe:
    claims: dict[ClaimKey, int] = {}
    failures: dict[ClaimKey, list[FailureFound]] = {}
    for row in rows:
        key = ClaimKey(row.handler, row.version, row.event_id)
        if row.id is None:
            claims[key] = row.payload_hash8
        else:
            failures.setdefault(key, []).append(_found(row))
    return Probe(claims, {key: tuple(sorted(found)) for key, found in failures.items()})


def _found(row: sa.Row[Any]) -> FailureFound:
    return FailureFound(
        failure_id=row.id,
        state=FailureState(row.state),
        partition=Partition(row.topic, row.partition),
        incarnation=row.incarnation,
        offset=row.record_offset,
        payload_hash=row.payload_hash8,
        duplicate_of=row.duplicate_of,
    )


async def claim(
    conn: AsyncConnection,
    t: Tables,
    handler_id: int,
    version: int,
    ids: Sequence[tuple[bytes, int]],
    *,
    optimistic: bool,
    savepoint: str | None = None,
) -> Claimed:
    """Lock order 4: claim `ids` (id, payload hash), which are sorted and without repeats.

    `optimistic` expects that all are new, as they are but after a crash or a producer's repeat, and tries a COPY in a
    savepoint first: half the time of an insert that looks for conflicts (benchmarks/README.md). The savepoint is not
    released: that would be a round trip for nothing. Where the caller has just set one and done nothing since, it
    gives its name as `savepoint` and spares another.

    A claim of another open transaction is waited for (`lock_timeout`); if that one rolls back, the id is ours. So is an
    id whose claim is deleted before it was looked at: without a claim nothing was handled.
    """
    if not ids:
        return Claimed(None, {})
    if optimistic and await _copy(conn, t, handler_id, version, ids, savepoint):
        return Claimed(None, {})
    new: frozenset[bytes] = frozenset()
    taken: dict[bytes, int] = {}
    while left := [row for row in ids if row[0] not in new and row[0] not in taken]:
        new |= await _insert(conn, t, handler_id, version, left)
        if len(new) == len(ids):
            return Claimed(None, {})
        # A statement of its own: what another transaction committed while the insert waited is not in its snapshot.
        met = [event_id for event_id, _ in left if event_id not in new]
        known = await probe(conn, t, [(handler_id, version)], met, NOTHING_FAILS) if met else Probe()
        taken |= {key.event_id: payload_hash for key, payload_hash in known.claims.items()}
    return Claimed(new, taken)


async def _copy(
    conn: AsyncConnection,
    t: Tables,
    handler_id: int,
    version: int,
    ids: Sequence[tuple[bytes, int]],
    savepoint: str | None,
) -> bool:
    connection = raw(conn)
    if savepoint is None:
        savepoint = _SAVEPOINT
        await connection.execute(f"SAVEPOINT {savepoint}")
    buffer = copy_buffer(handler_id, version, ids)
    try:
        await connection.copy_to_table(
            t.claim_1.name,
            schema_name=t.schema,
            columns=_COLUMNS,
            source=cast("BinaryIO", memoryview(buffer)),  # any buffer is taken as the whole source
            format="binary",
        )
    except asyncpg.UniqueViolationError:
        await connection.execute(f"ROLLBACK TO SAVEPOINT {savepoint}")
        return False
    return True


async def _insert(
    conn: AsyncConnection, t: Tables, handler_id: int, version: int, ids: Sequence[tuple[bytes, int]]
) -> frozenset[bytes]:
    rows = await conn.execute(
        t.sql("""
            INSERT INTO {claim_1} (handler, version, event_id, payload_hash8)
            SELECT :handler, :version, * FROM unnest(CAST(:ids AS bytea[]), CAST(:hashes AS bigint[]))
            ON CONFLICT DO NOTHING RETURNING event_id
        """),
        {"handler": handler_id, "version": version, "ids": [i for i, _ in ids], "hashes": [h for _, h in ids]},
    )
    return frozenset(rows.scalars())


_COPY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + b"\0\0\0\0" + b"\0\0\0\0"
_COPY_TAIL: Final = b"\xff\xff"
_ROW_START: Final = struct.Struct(">hiqiii")
_ROW: Final = struct.Struct(f">{_ROW_START.size}s16siq")


def copy_buffer(handler_id: int, version: int, ids: Sequence[tuple[bytes, int]]) -> bytes:
    """The rows in PostgreSQL's binary COPY format, whole: no timeout of the server fires in a half-sent COPY.

    Every row has the same size (four fields, each behind its length), so one packed struct makes it: a third less
    Python than asyncpg's own encoder takes.
    """
    start = _ROW_START.pack(4, 8, handler_id, 4, version, 16)
    pack = _ROW.pack
    return b"".join(
        [_COPY_HEAD, *[pack(start, event_id, 8, payload_hash) for event_id, payload_hash in ids], _COPY_TAIL]
    )
