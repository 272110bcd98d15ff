"""Where claims begin: written with the first checkpoint, once, for the topic as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa

from tidegate.inbox import births, migrate
from tidegate.inbox.database import Database
from tidegate.inbox.event import Partition
from tidegate.inbox.tables import Tables, tables

T0, T1 = Partition("orders", 0), Partition("orders", 1)
H = (7, 0)


@pytest.fixture
def t() -> Tables:
    return tables()


@pytest.fixture
async def db(database_url: str, t: Tables) -> AsyncIterator[Database]:
    await migrate.upgrade(database_url, t.schema)
    database = Database(database_url, member="test")
    yield database
    await database.close()


async def note(db: Database, t: Tables, partition: Partition, incarnation: int, next_offset: int) -> None:
    async with db.transaction() as conn:
        await births.note(conn, t, [H], partition, incarnation, next_offset)


async def read(db: Database, t: Tables, handler: tuple[int, int] = H) -> dict[Partition, int]:
    async with db.transaction() as conn:
        return await births.read(conn, t, *handler)


async def execute(db: Database, statement: str) -> None:
    async with db.transaction() as conn:
        await conn.execute(sa.text(statement))


async def test_a_birth_is_written_once_and_stays(db: Database, t: Tables) -> None:
    """Where claims begin does not move up when a checkpoint is made once more.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: births.py replaces what stands there whatever its incarnation is
    """
    await note(db, t, T0, 0, 5)
    await note(db, t, T0, 0, 9)
    await note(db, t, T1, 0, 3)
    assert await read(db, t) == {T0: 5, T1: 3}
    assert await read(db, t, (8, 0)) == {}
    assert await read(db, t, (7, 1)) == {}


async def test_a_topic_that_was_made_anew_has_another_birth(db: Database, t: Tables) -> None:
    """Offsets of the former topic say nothing of the new one's records.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: births.py reads births of any incarnation
    """
    await execute(db, "INSERT INTO tidegate.topic (name) VALUES ('orders')")
    await note(db, t, T0, 0, 500)
    await note(db, t, T1, 0, 400)
    await execute(db, "UPDATE tidegate.topic SET incarnation = 1")
    assert await read(db, t) == {}
    await note(db, t, T0, 1, 2)
    assert await read(db, t) == {T0: 2}


async def test_the_oldest_generation_that_is_kept_counts(db: Database, t: Tables) -> None:
    """A handler that begins while there are several is born in each of them; one that came before keeps its places.

    Case: B40
    Parts: real (PostgreSQL)
    Red when: births.py writes into the newest generation only, or reads the newest
    """
    await note(db, t, T0, 0, 5)
    await execute(db, "INSERT INTO tidegate.generation (n, table_name, state) VALUES (2, 'claim_2', 'open')")
    places = "n, handler, version, topic, partition, next_offset"
    await execute(db, f"INSERT INTO tidegate.generation_birth ({places}) VALUES (2, 7, 0, 'orders', 0, 90)")
    await note(db, t, T1, 0, 3)
    assert await read(db, t) == {T0: 5, T1: 3}
    await execute(db, "DELETE FROM tidegate.generation WHERE n = 1")
    assert await read(db, t) == {T0: 90, T1: 3}
