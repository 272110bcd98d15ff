"""The outbox: what goes out to Kafka is committed with its cause and relayed later, in order, at least once.

An id is derived from what made the row, so a repeat of that (a redelivery, a restored database) puts nothing new.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, LiteralString, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .arrays import Typed, arrays, insert_text
from .event import Headers, Partition
from .failure_rows import indexed_text
from .record_bytes import decode_headers, encode_headers
from .tables import Tables

Kind = Literal["letter", "publish"]


@final
@dataclass(slots=True, kw_only=True)
class NewOutgoing:
    """A record to be sent.

    Whoever holds the fence of `home` for `consumer` relays it; both are None for the rows of web requests, which one
    leased relay sends. Nobody changes one; it is not frozen, because that makes it three times as slow to make.
    """

    id: bytes
    kind: Kind
    topic: str
    key: bytes | None
    payload: bytes | None
    headers: Headers
    correlation_id: str
    consumer: str | None
    home: Partition | None
    failure_id: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A record that is not known to be sent yet."""

    id: bytes
    seq: int
    kind: Kind
    topic: str
    key: bytes | None
    payload: bytes | None
    headers: Headers
    home: Partition | None
    """As it was when the row was written."""


@final
@dataclass(frozen=True, slots=True)
class Pending:
    """What waits to be sent: consumption pauses when it is too much or too old."""

    count: int
    oldest_age_s: float


_TYPED: Final[tuple[Typed, ...]] = (
    *(("id", "bytea"), ("kind", "text"), ("consumer", "text"), ("home_topic", "text"), ("home_partition", "int")),
    *(("topic", "text"), ("key", "bytea"), ("payload", "bytea"), ("headers", "bytea"), ("correlation_id", "text")),
    ("failure_id", "bigint"),
)
_COLUMNS: Final = tuple(name for name, _ in _TYPED)

_PUT: Final[LiteralString] = insert_text("{outbox}", _TYPED) + " ON CONFLICT (id) DO NOTHING"


async def put(conn: AsyncConnection, t: Tables, rows: Sequence[NewOutgoing]) -> None:
    """Lock order 7: insert `rows` in their order; an id that is there already stays as it is."""
    if rows:
        await conn.execute(t.sql(_PUT), arrays(_COLUMNS, [_values(row) for row in rows]))


def _values(row: NewOutgoing) -> tuple[Any, ...]:
    home_topic, home_partition = (None, None) if row.home is None else row.home
    return (
        *(row.id, row.kind, row.consumer, home_topic, home_partition, row.topic, row.key, row.payload),
        *(encode_headers(row.headers), indexed_text(row.correlation_id), row.failure_id),
    )


@final
@dataclass(frozen=True, slots=True)
class Blocked:
    """What a look leaves out: whole topics, keys of a topic, single rows."""

    topics: Collection[str] = ()
    keys: Collection[tuple[str, bytes]] = ()
    ids: Collection[bytes] = ()


NOTHING_BLOCKED: Final = Blocked()
NOTHING_KNOWN: Final[Mapping[bytes, Headers]] = MappingProxyType({})
NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


async def unpublished(
    conn: AsyncConnection,
    t: Tables,
    consumer: str,
    homes: Collection[Partition],
    partition_counts: Mapping[str, int] = NO_COUNTS,
    *,
    limit: int,
    blocked: Blocked = NOTHING_BLOCKED,
    known: Mapping[bytes, Headers] = NOTHING_KNOWN,
) -> list[Outgoing]:
    """The rows at home in `homes` that are not sent, in the order of `seq`; no lock.

    What is `blocked` is left out, and counts for nothing in the `limit`, so that it never stops what stands behind it.
    A home's partition is taken modulo its topic's count, where that is given. `known`: the headers of rows that need
    not be decoded.
    """
    if not homes:
        return []
    places = sorted(homes)
    rows = await conn.execute(
        t.sql("""
            SELECT o.id, o.seq, o.kind, o.topic, o.key, o.payload, o.headers, o.home_topic, o.home_partition
              FROM {outbox} o
              JOIN unnest(CAST(:topics AS text[]), CAST(:partitions AS int[]), CAST(:counts AS int[]))
                   u (topic, partition, n) ON u.topic = o.home_topic AND u.partition = o.home_partition % u.n
             WHERE o.published_at IS NULL AND o.consumer = :consumer AND NOT o.topic = ANY (CAST(:blocked AS text[]))
               AND NOT o.id = ANY (CAST(:ids AS bytea[]))
               AND NOT EXISTS (SELECT FROM unnest(CAST(:key_topics AS text[]), CAST(:keys AS bytea[])) k (topic, key)
                                WHERE k.topic = o.topic AND k.key = o.key)
             ORDER BY o.seq LIMIT :limit
        """),
        {
            "consumer": consumer,
            "topics": [home.topic for home in places],
            "partitions": [home.number for home in places],
            "counts": [max(1, partition_counts.get(home.topic, _ANY_COUNT)) for home in places],
            "blocked": list(blocked.topics),
            "ids": list(blocked.ids),
            "key_topics": [topic for topic, _ in blocked.keys],
            "keys": [key for _, key in blocked.keys],
            "limit": limit,
        },
    )
    return [_outgoing(row, known.get(row.id)) for row in rows]


_ANY_COUNT: Final = 2**31 - 1
"""More partitions than any topic has: modulo it, a home stays what it is."""


def _outgoing(row: sa.Row[Any], headers: Headers | None) -> Outgoing:
    home = None if row.home_topic is None else Partition(row.home_topic, row.home_partition)
    return Outgoing(
        id=row.id,
        seq=row.seq,
        kind=row.kind,
        topic=row.topic,
        key=row.key,
        payload=row.payload,
        headers=decode_headers(row.headers) if headers is None else headers,
        home=home,
    )


async def mark_published(conn: AsyncConnection, t: Tables, ids: Collection[bytes]) -> None:
    """Lock order 7, on the delivery reports: these are sent."""
    if ids:
        await conn.execute(
            t.sql("""
                WITH mine AS (SELECT id FROM {outbox} WHERE id = ANY (CAST(:ids AS bytea[])) AND published_at IS NULL
                               ORDER BY id FOR NO KEY UPDATE)
                UPDATE {outbox} o SET published_at = clock_timestamp() FROM mine WHERE o.id = mine.id
            """),
            {"ids": list(ids)},
        )


async def give_up(conn: AsyncConnection, t: Tables, consumer: str, limit: int) -> int:
    """Lock order 7: up to `limit` rows of the consumer that wait are not sent any more; how many.

    They stay as they are, so that a repeat of their cause puts nothing new; what says so is the audit.
    """
    rows = await conn.execute(
        t.sql("""
            WITH mine AS (SELECT id FROM {outbox} WHERE consumer = :consumer AND published_at IS NULL
                           ORDER BY id LIMIT :limit FOR NO KEY UPDATE)
            UPDATE {outbox} o SET published_at = clock_timestamp() FROM mine WHERE o.id = mine.id RETURNING 1
        """),
        {"consumer": consumer, "limit": limit},
    )
    return len(rows.all())


async def pending(conn: AsyncConnection, t: Tables, consumer: str | None = None) -> Pending:
    """How many rows wait (of one consumer, or of all) and how old the oldest is, by the database's clock."""
    row = await conn.execute(
        t.sql("""
            SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
              FROM {outbox} WHERE published_at IS NULL AND (CAST(:consumer AS text) IS NULL OR consumer = :consumer)
        """).bindparams(sa.bindparam("consumer", type_=sa.Text())),
        {"consumer": consumer},
    )
    count, age_s = row.one()
    return Pending(count, max(0.0, age_s))
