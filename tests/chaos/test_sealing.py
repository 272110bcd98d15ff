"""The sealer is killed between its lines: no seal is half there, and the next one goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.cli import environment
from tidegate.consumers.worker.sealing import Sealer
from tidegate.inbox import audit, audit_seal
from tidegate.inbox.audit import AuditLine
from tidegate.inbox.clock import SteadyClock
from tidegate.inbox.database import Database
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

SEALER = """
import asyncio, sys
from tidegate.consumers.worker.sealing import Sealer
from tidegate.inbox.clock import SteadyClock
from tidegate.inbox.database import Database
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

async def seal():
    sealer = Sealer(Store(Database(sys.argv[1], member="sealer"), tables()), SteadyClock(), "one")
    while not await sealer.round():
        pass

asyncio.run(seal())
"""


@pytest.mark.parametrize(("point", "sealed"), [("before_seal", 0), ("after_seal", 3)])
async def test_a_killed_pass_is_whole_or_not_there(migrated_url: str, point: str, sealed: int) -> None:
    store = Store(Database(migrated_url, member="test"), tables())
    try:
        async with store.transaction() as conn:
            for n in range(3):
                await audit.write(conn, store.tables, AuditLine(act="replay", actor=f"a{n}"))
        ended = subprocess.run(
            [sys.executable, "-c", SEALER, migrated_url],
            env=environment({"TIDEGATE_TEST_CRASH_AT": point}),
            cwd=Path(__file__).parents[2], timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == -signal.SIGKILL
        assert await _seals(store) == sealed
        await _expire(store)  # as time would: the dead one's lease runs out

        sealer = Sealer(store, SteadyClock(), "two")
        while await _seals(store) < 3:
            await sealer.round()
        async with store.transaction() as conn:
            found = await audit_seal.verify(conn, store.tables)
        assert (found.sealed, found.unsealed, found.problems) == (3, (), ())
    finally:
        await store.database.close()


async def _seals(store: Store) -> int:
    async with store.look() as conn:
        return await conn.scalar(sa.text("SELECT count(*) FROM tidegate.audit_seal")) or 0


async def _expire(store: Store) -> None:
    async with store.transaction() as conn:
        await conn.execute(sa.text("UPDATE tidegate.lease SET expires_at = '-infinity'"))
