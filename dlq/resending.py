"""Sends dead records to their source topic once more: only where that was asked for, for all of its groups see them.

The record's row goes and its copy is in the outbox, in one transaction, so it is always in one of the two; the worker
that owns its home sends it. It comes back as a new record with the same event id: whoever handled the event knows it,
and here, where it was not handled, it runs like any other. Its order is lost, except within the new ones of its key:
it goes where Kafka's own clients would send its key (murmur2). A header counts the replays, so that a loop through the
topic is stopped like any other. Where the value was repaired, the repaired one is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import failure, outbox
from ..inbox.failure_rows import Failure
from ..inbox.finding import failure_of
from ..inbox.identity import outbox_id16
from ..inbox.outbox import NewOutgoing
from ..inbox.tables import Tables
from .letter import own_headers
from .letter_headers import REPLAYS
from .selection import Entry

RECORDS_MAX: Final = 100
"""Records with their payloads in one transaction: at a megabyte each they still fit into memory."""


async def send(conn: AsyncConnection, t: Tables, fit: Sequence[Entry]) -> frozenset[int]:
    """Lock order 2, 6 and 7: the rows go, their records go out. Gives the rows that were as they had been read."""
    if not fit:
        return frozenset()
    rows = {row.id: row for row in await _rows(conn, t, fit)}
    seen = [(entry.id, entry.row_version) for entry in fit if entry.id in rows]
    done = await failure.send(conn, t, seen)
    await outbox.put(conn, t, [_outgoing(rows[entry.id], entry) for entry in fit if entry.id in done])
    return done


async def _rows(conn: AsyncConnection, t: Tables, fit: Sequence[Entry]) -> list[Failure]:
    """As they were seen: of another version there is nothing to send."""
    f, versions = t.failure, {entry.id: entry.row_version for entry in fit}
    found = await conn.execute(sa.select(f).where(f.c.id.in_(sorted(versions))))
    return [row for row in map(failure_of, found.mappings()) if row.row_version == versions[row.id]]


def _outgoing(row: Failure, entry: Entry) -> NewOutgoing:
    record, replays = row.repaired, row.replay_count + 1
    handler = f"{entry.consumer}/{entry.handler}/{row.version}"
    return NewOutgoing(
        id=outbox_id16(handler, row.event_id.hex(), row.topic, record.key, "to-source", replays),
        kind="publish",
        topic=row.topic,
        key=record.key,
        payload=record.value,
        headers=(*own_headers(record.headers), (REPLAYS, str(replays).encode())),
        correlation_id=row.correlation_id,
        consumer=entry.consumer,
        home=row.home,
    )
