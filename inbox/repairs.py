"""What a person does to the payload of a row: a repaired value beside the received one, and a payload erased for good.

Neither changes the row's state, and so nothing of its lane. Both name the version that the row was read at. The
database refuses a row that was erased and could still be run.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from .event import Headers
from .identity import digest16
from .lanes import Seen
from .record_bytes import EMPTY, encode_headers
from .tables import Tables


def edit_id16(event_id: bytes, value: bytes) -> bytes:
    """Which repair it is: the same of the same event and the same bytes, also after a database was put back."""
    return digest16(b"tidegate-edit", event_id, value)


async def edit(conn: AsyncConnection, t: Tables, row: Seen, value: bytes, edit_id: bytes) -> bool:
    """Lock order 6: what a dead row is handled with from now on. False: it was changed meanwhile, or may not be."""
    return await _edit(conn, t, row, value, edit_id)


async def unedit(conn: AsyncConnection, t: Tables, row: Seen) -> bool:
    """Lock order 6: a dead row is handled with what was received again. False: it was changed meanwhile."""
    return await _edit(conn, t, row, None, None)


async def _edit(conn: AsyncConnection, t: Tables, row: Seen, value: bytes | None, edit_id: bytes | None) -> bool:
    f = t.failure.c
    changed = await conn.execute(
        sa.update(t.failure)
        .where(
            f.id == row[0], f.row_version == row[1], f.state == "dead", f.redacted_at.is_(None), f.value.is_not(None)
        )
        .values(edited_value=value, edit_id=edit_id, row_version=f.row_version + 1)
    )
    return changed.rowcount == 1


async def redact(conn: AsyncConnection, t: Tables, rows: Collection[Seen]) -> frozenset[int]:
    """Lock order 2 and 6: erase key, value, headers, repaired value and message of rows that nothing will run.

    Hashes and ids stay: a repeat is still known as one. A row that does not come back was changed meanwhile, or waits.
    """
    ordered = sorted(rows)
    numbers = {"ids": [row[0] for row in ordered], "row_versions": [row[1] for row in ordered]}
    await conn.execute(t.sql(_KEYS), {"ids": numbers["ids"]})
    changed = await conn.execute(t.sql(_REDACT), {**numbers, "none": EMPTY})
    return frozenset(changed.scalars())


_KEYS: Final = """
    UPDATE {parked_key} p SET key = ''
     WHERE (p.handler, p.topic, p.key_hash) IN
           (SELECT q.handler, q.topic, q.key_hash FROM {parked_key} q
             WHERE (q.handler, q.topic, q.key_hash) IN
                   (SELECT handler, topic, lane FROM {failure}
                     WHERE id = ANY (CAST(:ids AS bigint[])) AND NOT alone AND redacted_at IS NULL)
             ORDER BY q.handler, q.topic COLLATE "C", q.key_hash FOR UPDATE OF q)
"""
"""A lane's hash tells it; its key is only there to be read."""

_REDACT: Final = """
    WITH mine AS (
      SELECT f.id FROM {failure} f
        JOIN unnest(CAST(:ids AS bigint[]), CAST(:row_versions AS bigint[])) u (id, row_version)
          ON u.id = f.id AND u.row_version = f.row_version
       WHERE f.state IN ('dead', 'discarded', 'linked') AND f.redacted_at IS NULL ORDER BY f.id FOR UPDATE OF f)
    UPDATE {failure} f
       SET key = NULL, value = NULL, headers = :none, edited_value = NULL, edit_id = NULL, message = '',
           redacted_at = clock_timestamp(), row_version = f.row_version + 1
      FROM mine WHERE f.id = mine.id RETURNING f.id
"""


async def redact_results(conn: AsyncConnection, t: Tables, effects: Collection[int]) -> int:
    """Behind lock order 6: erase what these calls returned. That they were made, and under which ids, stays."""
    changed = await conn.execute(t.sql(_FORGET), {"ids": sorted(effects)})
    return changed.rowcount


_FORGET: Final = """
    WITH mine AS (SELECT id FROM {effect} WHERE id = ANY (CAST(:ids AS bigint[])) AND result IS NOT NULL
                   ORDER BY id FOR NO KEY UPDATE)
    UPDATE {effect} e SET result = NULL, row_version = e.row_version + 1 FROM mine WHERE e.id = mine.id
"""


async def withdraw(conn: AsyncConnection, t: Tables, outbox_ids: Collection[bytes], headers: Headers) -> int:
    """Lock order 7: erase published records; those that wait to be sent never are. How many of them waited.

    Their rows stay, so that a repeat of their cause puts nothing new.
    """
    changed = await conn.execute(t.sql(_WITHDRAW), {"ids": sorted(outbox_ids), "headers": encode_headers(headers)})
    return sum(changed.scalars())


_WITHDRAW: Final = """
    WITH mine AS (SELECT id, published_at IS NULL AS waits FROM {outbox}
                   WHERE id = ANY (CAST(:ids AS bytea[])) AND kind = 'publish' ORDER BY id FOR NO KEY UPDATE)
    UPDATE {outbox} o
       SET key = NULL, payload = NULL, headers = :headers,
           published_at = coalesce(o.published_at, clock_timestamp())
      FROM mine WHERE o.id = mine.id RETURNING CAST(mine.waits AS int)
"""


async def redact_message(conn: AsyncConnection, t: Tables, outbox_id: bytes, headers: Headers) -> None:
    """Lock order 7: erase key and payload of an outbox row; `headers` stand in place of its own."""
    o = t.outbox
    await conn.execute(
        sa.update(o).where(o.c.id == outbox_id).values(key=None, payload=None, headers=encode_headers(headers))
    )
