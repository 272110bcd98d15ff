"""A dead-letter table with very many rows is still looked at in a moment: plans are read, not hoped for."""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tests.integration.dlq.conftest import Graveyard
from tidegate.dlq import audit_trail
from tidegate.dlq.audit_trail import AuditFilter
from tidegate.dlq.burial import Burial
from tidegate.dlq.grouping import USUAL, By, grouped, named
from tidegate.dlq.selection import Filter, entries
from tidegate.inbox import audit, failure, finding
from tidegate.inbox.outcome import FailureState

LETTERS = 100_000

FILL = """
    INSERT INTO tidegate.failure (handler, version, origin, topic, incarnation, partition, record_offset, home_topic,
           home_partition, event_id, payload_hash8, lane, alone, seq, state, reason, attempts, first_failed_at,
           last_failed_at, exception_type, message, stack_digest, id_text, type, tenant, correlation_id, operation_id,
           key, value, headers, timestamp_ms, timestamp_type)
    SELECT :handler, 1, 'event', 'shop.orders', 0, n % 12, n, 'shop.orders', n % 12, decode(md5(n::text), 'hex'), n,
           decode(md5(n::text), 'hex'), true, 1,
           CASE WHEN n = :letters THEN 'unknown' WHEN n % 10 = 0 THEN 'discarded' ELSE 'dead' END,
           (ARRAY['rejected', 'timeout', 'exhausted'])[1 + n % 3], 3, now() - n * interval '1 second',
           now() - n * interval '1 second', 'billing.Error' || n % 40, 'no credit', '0123456789abcdef', 'o-' || n,
           'shop.Order', 'tenant-' || n % 7, 'c-' || n, 'o-' || n, convert_to('k-' || n, 'utf8'),
           decode(repeat(md5(n::text), 20), 'hex'), '\\x0100000000', 0, 1
      FROM generate_series(1, :letters) n
"""


@pytest.fixture
async def crowded(graveyard: Graveyard, migrated_url: str) -> Graveyard:
    """A hundred thousand letters, of a few kinds."""
    async with graveyard.db.transaction() as conn:
        await conn.execute(sa.text(FILL), {"handler": graveyard.handlers["revenue"], "letters": LETTERS})
    plain = await asyncpg.connect(migrated_url)
    try:
        await plain.execute("VACUUM (ANALYZE) tidegate.failure")  # as autovacuum does it
    finally:
        await plain.close()
    return graveyard


async def test_a_hundred_thousand_letters_are_grouped_within_two_seconds(crowded: Graveyard) -> None:
    """Grouping reads the index of the dead, not the letters."""
    async with crowded.db.transaction() as conn:
        plan = await explained(conn, crowded)
        assert "failure_dead" in plan, plan
        started = time.monotonic()
        groups = await grouped(conn, crowded.t, Filter(), USUAL)
        assert sum(group.letters for group in groups) <= LETTERS * 9 // 10
        await grouped(conn, crowded.t, Filter(), tuple(By))
        again = await named(conn, crowded.t, groups[-1].name)
        assert time.monotonic() - started < 3 * 2.0
        assert (again.letters, again.filter) == (groups[-1].letters, groups[-1].filter)
        found = await entries(conn, crowded.t, again.filter, limit=LETTERS)
        assert len(found) == again.letters


async def explained(conn: Any, graveyard: Graveyard) -> str:
    """The plan of the count by handler, reason and exception."""
    f = graveyard.t.failure.c
    keys = (f.handler, f.reason, f.exception_type)
    counted = sa.select(*keys, sa.func.count(), sa.func.min(f.first_failed_at), sa.func.max(f.last_failed_at))
    query = counted.where(f.state == "dead").group_by(*keys)
    text = str(query.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True}))
    return "\n".join((await conn.execute(sa.text(f"EXPLAIN {text}"))).scalars())


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Filter(state=FailureState.UNKNOWN), "failure_state"),
        (Filter(state=None, key=b"k-500"), "failure_key"),
        (Filter(correlation_id="c-77"), "failure_correlation_id"),
    ],
)
async def test_letters_are_found_by_an_index(crowded: Graveyard, wanted: Filter, index: str) -> None:
    async with crowded.db.transaction() as conn:
        before = await scans(conn, index)
        assert await entries(conn, crowded.t, wanted, limit=10)
    async with crowded.db.transaction() as conn:
        await conn.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    async with crowded.db.transaction() as conn:
        assert await scans(conn, index) > before


async def scans(conn: Any, index: str) -> int:
    """How often an index was read."""
    query = f"SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = '{index}'"
    return (await conn.execute(sa.text(query))).scalar_one()


async def test_an_act_on_rows_reads_these_rows_whatever_the_statistics_say(graveyard: Graveyard) -> None:
    """A replay turns dead rows into queued ones, of which the planner knows none: it would read the whole table."""
    async with graveyard.db.transaction() as conn:
        await conn.execute(sa.text(FILL), {"handler": graveyard.handlers["revenue"], "letters": 30_000})
        await conn.execute(sa.text("ANALYZE tidegate.failure"))
        rows = [(row.id, row.row_version) for row in await entries(conn, graveyard.t, Filter(), limit=20_000)]
    before = await whole_reads(graveyard)
    for start in range(0, 20_000, 1_000):
        async with graveyard.db.transaction() as conn:
            step = rows[start : start + 1_000]
            queued = await failure.requeue(conn, graveyard.t, step, graveyard.clock.now())
            assert len(queued) == len(step)
    async with graveyard.db.transaction() as conn:
        assert await failure.complete(conn, graveyard.t, [(id_, version + 1) for id_, version in rows[:1_000]])
    assert await whole_reads(graveyard) == before


async def whole_reads(graveyard: Graveyard) -> int:
    """How often the table was read whole."""
    async with graveyard.db.transaction() as conn:
        await conn.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    query = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'failure'"
    async with graveyard.db.transaction() as conn:
        return (await conn.execute(sa.text(query))).scalar_one()


async def test_queued_rows_are_found_by_the_indexes_of_the_queue(crowded: Graveyard) -> None:
    """They stand in none of an operator's own, which a replay would have to write twice for each letter."""
    async with crowded.db.transaction() as conn:
        await conn.execute(
            sa.text("UPDATE tidegate.failure SET state = 'queued', due = now() WHERE correlation_id = 'c-77'")
        )
    before = await whole_reads(crowded)
    async with crowded.db.transaction() as conn:
        for wanted in (
            Filter(state=None, correlation_id="c-77"),
            Filter(state=FailureState.QUEUED, operation_id="o-77"),
        ):
            (found,) = await entries(conn, crowded.t, wanted, limit=10)
            assert found.state is FailureState.QUEUED
        assert not await entries(conn, crowded.t, Filter(correlation_id="c-77"), limit=10)
    assert await whole_reads(crowded) == before


async def test_a_line_of_many_is_found_by_the_event_of_one_that_is_gone(graveyard: Graveyard) -> None:
    """A worker's line on a whole batch is as good as a line for each.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: dlq/burial.py leaves the events' ids out of a shared line
    """
    numbers = await graveyard.bury(graveyard.event(1), graveyard.event(2, key=b"l"))
    async with graveyard.db.transaction() as conn:
        rows = [row for number in numbers if (row := await finding.get(conn, graveyard.t, number)) is not None]
        await conn.execute(sa.text("DELETE FROM tidegate.failure"))
        burial = Burial("billing", graveyard.clock)
        await audit.write_many(conn, graveyard.t, burial.audit_lines(rows, "revenue", "completed"))
    by_event = AuditFilter(event_id=rows[1].event_id.hex())
    by_correlation = AuditFilter(correlation_id=rows[1].correlation_id)
    for wanted in (by_event, by_correlation):
        (entry,) = await audit_trail.lines(graveyard.gate(), wanted)
        assert (entry.line.act, entry.line.details["failure_ids"]) == ("completed", numbers)
    assert not await audit_trail.lines(graveyard.gate(), AuditFilter(correlation_id="another"))
