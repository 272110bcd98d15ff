"""What stood in the failure table before lanes were counted: its keys are parked, its heads found, its order kept."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from tidegate.inbox import failure, lanes, migrate
from tidegate.inbox.claim import lock_generations
from tidegate.inbox.database import Database
from tidegate.inbox.event import Event, Partition, Record
from tidegate.inbox.failure_rows import Place, Verdict, queued
from tidegate.inbox.identity import digest16, key_hash16, position_id16
from tidegate.inbox.tables import Tables, tables

NOW = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
H = 7
PUT = """
    INSERT INTO tidegate.failure (handler, version, origin, topic, incarnation, partition, record_offset, home_topic,
           home_partition, event_id, payload_hash8, lane, seq, state, reason, due, duplicate_of, attempts,
           first_failed_at, last_failed_at, exception_type, message, stack_digest, id_text, type, correlation_id,
           operation_id, key, headers, timestamp_ms, timestamp_type)
    VALUES (:handler, 0, 'event', 'orders', 0, 1, :offset, 'orders', 1, :event_id, 0, :lane, :seq, :state, 'x', :due,
            :duplicate_of, 1, :now, :now, '', '', '', '', '', '', '', :key, '', 0, 0) RETURNING id
"""
PARK = (
    "INSERT INTO tidegate.parked_key (handler, topic, key_hash, key, next_seq) VALUES (:h, 'orders', :hash, :key, :n)"
)
ROWS: list[tuple[bytes | None, int, str]] = [
    (b"queued", 1, "dead"),
    (b"queued", 2, "queued"),
    (b"queued", 3, "unknown"),
    (b"queued", 4, "queued"),
    (b"asked", 1, "unknown"),
    (b"asked", 2, "queued"),
    (b"dead", 1, "dead"),
    (b"dead", 2, "discarded"),
    (None, 1, "queued"),
    (None, 1, "dead"),
]
"""(key, seq, state) as the first release wrote them."""


def _to_0001(connection: sa.Connection, t: Tables) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["tables"] = t
    command.upgrade(config, "0001")


async def _first_release(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        await conn.execute(t.sql("CREATE SCHEMA {schema}"))
        await conn.execute(t.sql("SET LOCAL search_path TO {schema}"))
        await conn.run_sync(_to_0001, t)
    async with db.transaction() as conn:
        for offset, (key, seq, state) in enumerate(ROWS):
            lane = position_id16("orders", 0, 1, offset) if key is None else key_hash16(key)
            await conn.execute(sa.text(PUT), _row(offset, key, lane, seq, state))
        original = await conn.scalar(sa.text("SELECT max(id) FROM tidegate.failure"))
        link = _row(len(ROWS), b"dead", key_hash16(b"dead"), 1, "linked")
        await conn.execute(sa.text(PUT), {**link, "duplicate_of": original})
        for key, following in ((b"queued", 5), (b"asked", 3), (b"dead", 3)):
            await conn.execute(sa.text(PARK), {"h": H, "hash": key_hash16(key), "key": key, "n": following})


def _row(offset: int, key: bytes | None, lane: bytes, seq: int, state: str) -> dict[str, Any]:
    due = NOW if state == "queued" else None
    event_id = digest16(b"t", b"%d" % offset)
    known = {"handler": H, "offset": offset, "event_id": event_id, "lane": lane, "seq": seq, "state": state}
    return {**known, "due": due, "duplicate_of": None, "now": NOW, "key": key}


async def test_rows_of_the_first_release_park_their_keys_and_are_worked_in_their_order(database_url: str) -> None:
    t = tables()
    db = Database(database_url, member="test")
    try:
        await _first_release(db, t)
        await migrate.upgrade(database_url)
        async with db.transaction() as conn:
            rows = await conn.execute(
                sa.text("""
                    SELECT convert_from(key, 'UTF8'), waiting, head_seq, head_due, head_home_topic, head_home_partition
                      FROM tidegate.parked_key
                """)
            )
            assert {tuple(row) for row in rows} == {
                ("queued", 3, 2, NOW, "orders", 1),
                ("asked", 2, 1, None, None, None),
                ("dead", 0, None, None, None, None),
            }
            alone = await conn.execute(sa.text("SELECT record_offset FROM tidegate.failure WHERE alone ORDER BY 1"))
            assert list(alone.scalars()) == [8, 9, 10], "those without a key, and the repeat"
            picked = await failure.pick(conn, t, [H], [Partition("orders", 1)], {}, NOW, 10)
            assert [row.record_offset for row in picked] == [1, 8]
            assert (await lock_generations(conn, t, [H])).failing == {H}
            new = Event("v", Record("orders", 5, 1, b"queued", b"v"), event_id=digest16(b"new"), id_text="new")
            await failure.put(conn, t, [queued(Place(H, 0, 0), new, Verdict("x"), due=NOW, attempts=1, now=NOW)])
            lane = (H, "orders", key_hash16(b"queued"))
            assert await lanes.waiting_in(conn, t, [lane]) == {lane: 4}
            await failure.complete(conn, t, [(picked[0].id, picked[0].row_version)])
            assert await lanes.waiting(conn, t, [H]) == {H: 3 + 2 + 1}
    finally:
        await db.close()
