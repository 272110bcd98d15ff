"""Connections: lost ones are told from wrong statements, cancelled ones never go back dirty."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services import database
from tidegate.inbox import claim
from tidegate.inbox.database import Database, DatabaseSettings, Fault, classify, raw
from tidegate.inbox.identity import digest16
from tidegate.inbox.store import STORE_ERRORS
from tidegate.inbox.tables import Tables

H = 7
X = (digest16(b"t", b"x"), 1)


@pytest.fixture
async def other(migrated_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session beside the product's."""
    connection = await asyncpg.connect(migrated_url)
    yield connection
    await connection.close()


async def test_a_cancelled_unit_of_work_never_leaves_a_dirty_connection(
    db: Database, migrated_url: str, other: asyncpg.Connection
) -> None:
    """Whenever a unit is cancelled, the next one gets a clean connection and its commit is a commit.

    Case: B47
    Parts: real (PostgreSQL)
    Red when: inbox/database.py `_transaction` does not check its connection in when it ends
    """
    await other.execute("CREATE TABLE public.work (n int, step int)")
    chance = random.Random(47)
    one = Database(migrated_url, settings=DatabaseSettings(pool_max=1, pool_wait_s=5))

    async def unit(n: int) -> None:
        async with one.transaction() as conn:
            for step in range(3):
                await conn.execute(
                    sa.text("INSERT INTO public.work SELECT :n, :step FROM pg_sleep(0.01)"), {"n": n, "step": step}
                )

    try:
        for n in range(50):
            task = asyncio.create_task(unit(n))
            await asyncio.sleep(chance.random() * 0.05)
            for _ in range(3):  # the later ones hit the rollback and the return to the pool
                task.cancel()
                await asyncio.sleep(chance.random() * 0.002)
            await asyncio.wait((task,))
            assert one.in_use() == (0, 0)
            await unit(1000 + n)
            assert await other.fetchval("SELECT count(*) FROM public.work WHERE n = $1", 1000 + n) == 3
            assert await other.fetchval(_OPEN_TRANSACTIONS) == 0
        halves = await other.fetch("SELECT n FROM public.work GROUP BY n HAVING count(*) <> 3")
        assert halves == []
    finally:
        await one.close()


_OPEN_TRANSACTIONS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND state LIKE 'idle in transaction%'
"""


async def test_a_commit_that_is_cancelled_is_a_commit_all_the_same(db: Database, other: asyncpg.Connection) -> None:
    """Nothing interrupts a COMMIT that is on its way: the cancellation is raised when its answer is there.

    Case: B47
    Parts: real (PostgreSQL)
    Red when: inbox/database.py awaits `conn.commit()` without `to_the_end`
    """
    await other.execute("CREATE TABLE public.work (n int)")
    await other.execute("""
        CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql
          AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON public.work DEFERRABLE INITIALLY DEFERRED
          FOR EACH ROW EXECUTE FUNCTION public.slow()
    """)
    committing = asyncio.Event()

    async def unit() -> None:
        async with db.transaction() as conn:
            await conn.execute(sa.text("INSERT INTO public.work VALUES (1)"))
            committing.set()

    task = asyncio.create_task(unit())
    await committing.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await other.fetchval("SELECT count(*) FROM public.work") == 1
    assert db.in_use() == (0, 0)


async def test_a_pool_that_is_too_small_fails_fast_and_is_transient(migrated_url: str) -> None:
    small = Database(migrated_url, settings=DatabaseSettings(pool_max=1, pool_wait_s=0.05))
    try:
        async with small.transaction():
            with pytest.raises(exc.TimeoutError) as caught:
                await small.ping()
        assert classify(caught.value) is Fault.TRANSIENT
        await small.ping()
    finally:
        await small.close()


async def test_the_users_pool_never_takes_a_connection_from_the_products(db: Database) -> None:
    async with db.user_transaction(), db.user_transaction():
        assert db.in_use() == (0, 2)
        await db.ping()


# ------------------------------------------------------------------------------------------------- lost connections


Unit = Callable[[AsyncConnection], Awaitable[None]]


async def _until_done(db: Database, unit: Unit) -> list[Fault]:
    """What the worker does: run the whole unit again as long as the fault is one that time heals."""
    faults: list[Fault] = []
    while len(faults) < 10:
        try:
            async with db.transaction() as conn:
                await unit(conn)
            return faults
        except STORE_ERRORS as error:
            faults.append(classify(error))
            if faults[-1] not in (Fault.DEPENDENCY, Fault.TRANSIENT):
                raise
    raise AssertionError(faults)


async def _effect_once(conn: AsyncConnection, t: Tables) -> None:
    await claim.lock_generations(conn, t, [H])
    if (await claim.claim(conn, t, H, 0, [X], optimistic=True)).new is None:
        await conn.execute(sa.text("INSERT INTO public.effects VALUES (1)"))


async def _terminate(other: asyncpg.Connection, pid: int) -> None:
    assert await other.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)


@pytest.mark.parametrize("point", ["before the first statement", "between effect and claim", "before COMMIT"])
async def test_a_backend_that_is_killed_at_any_point_costs_an_attempt_and_repeats_no_effect(
    db: Database, t: Tables, other: asyncpg.Connection, point: str
) -> None:
    """A lost connection looks like anything, means nothing but "again", and never doubles an effect.

    Case: B48
    Parts: real (PostgreSQL)
    Red when: inbox/faults.py leaves `_is_connection_lost` out of `classify`
    """
    await other.execute("CREATE TABLE public.effects (n int)")
    killed: list[str] = []

    async def kill(conn: AsyncConnection, at: str) -> None:
        if at == point and not killed:
            killed.append(at)
            sync = conn.sync_connection
            assert sync is not None
            driver = sync.connection.driver_connection
            assert driver is not None
            await _terminate(other, driver.get_server_pid())

    async def unit(conn: AsyncConnection) -> None:
        await kill(conn, "before the first statement")
        await _effect_once(conn, t)
        await kill(conn, "between effect and claim")
        await conn.execute(sa.text("SELECT 1"))
        await kill(conn, "before COMMIT")

    faults = await _until_done(db, unit)
    assert killed
    assert faults == [Fault.DEPENDENCY]
    assert await other.fetchval("SELECT count(*) FROM public.effects") == 1
    assert db.in_use() == (0, 0)
    await db.ping()


@pytest.mark.parametrize("turns", range(5), ids=lambda turns: f"{turns} turns later")
async def test_a_backend_that_said_why_it_ends_and_is_not_gone_yet_is_lost_too(
    db: Database, t: Tables, migrated_url: str, turns: int
) -> None:
    """Its last words and the end of its connection are read in two turns of the loop, and a COPY may fall between.

    The driver does not begin it then, and takes every later statement for one too many, the ROLLBACK first of all.

    Case: B48
    Parts: real (PostgreSQL)
    Red when: inbox/database.py `_check_in` lets what the rollback raises take the place of what went wrong
    """
    killed: list[int] = []

    async def unit(conn: AsyncConnection) -> None:
        await claim.lock_generations(conn, t, [H])
        if not killed:
            killed.append(raw(conn).get_server_pid())
            database.execute(migrated_url, f"SELECT pg_terminate_backend({killed[0]}, 5000)")  # the loop stands still
            for _ in range(turns):
                await asyncio.sleep(0)
        await raw(conn).copy_to_table(
            t.claim_1.name,
            schema_name=t.schema,
            source=io.BytesIO(claim.copy_buffer(H, 0, [X])),
            format="binary",
            columns=["handler", "version", "event_id", "payload_hash8"],
        )

    assert await _until_done(db, unit) == [Fault.DEPENDENCY]
    assert db.in_use() == (0, 0)
    await db.ping()


async def test_a_connection_that_dies_in_the_pool_is_replaced_unnoticed(
    db: Database, other: asyncpg.Connection
) -> None:
    await db.ping()
    pids = await other.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = $1", db.application_name)
    for row in pids:
        await _terminate(other, row["pid"])
    await asyncio.sleep(0)
    await db.ping()


async def test_a_commit_whose_answer_is_lost_is_run_again_and_repeats_no_effect(
    migrated_url: str, db: Database, t: Tables, other: asyncpg.Connection
) -> None:
    """The reply to COMMIT is dropped behind the server's back: the unit runs again and the inbox decides.

    Case: B48
    Parts: real (PostgreSQL), a proxy of the test's own that drops the reply
    Red when: inbox/claim.py returns `Claimed(None, {})` when the insert gave back fewer ids
    """
    await other.execute("CREATE TABLE public.effects (n int)")
    async with _proxy(migrated_url) as (url, dropped):
        through = Database(url)
        try:
            faults = await _until_done(through, lambda conn: _effect_once(conn, t))
        finally:
            await through.close()
        assert dropped.is_set()
    assert faults == [Fault.DEPENDENCY]
    assert await other.fetchval("SELECT count(*) FROM public.effects") == 1


@asynccontextmanager
async def _proxy(url: str) -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """A TCP proxy that forwards everything, but hangs up instead of forwarding the answer to the first COMMIT."""
    parts = urlsplit(url)
    dropped = asyncio.Event()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(parts.hostname, parts.port)
        waiting = asyncio.Event()

        async def up() -> None:
            while data := await reader.read(65536):
                if b"COMMIT" in data and not dropped.is_set():
                    waiting.set()
                up_writer.write(data)
            up_writer.close()

        async def down() -> None:
            while data := await up_reader.read(65536):
                if waiting.is_set() and b"COMMIT" in data:
                    dropped.set()
                    break
                writer.write(data)
            writer.close()
            up_writer.close()

        for work in (up(), down()):
            task = asyncio.create_task(work)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = f"{parts.username}@" if parts.username else ""
    try:
        yield urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}")), dropped
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_table_that_is_altered_meanwhile_costs_an_attempt_at_most(
    db: Database, migrated_url: str, other: asyncpg.Connection
) -> None:
    """A cached statement goes stale once, inside the transaction; the next attempt prepares it anew.

    Case: B48
    Parts: real (PostgreSQL)
    Red when: inbox/faults.py leaves `_is_stale_plan` out of `classify`
    """
    await other.execute("CREATE TABLE public.effects (n int)")
    one = Database(migrated_url, settings=DatabaseSettings(pool_max=1))
    seen: list[int] = []

    async def unit(conn: AsyncConnection) -> None:
        rows = await conn.execute(sa.text("SELECT * FROM public.effects"))
        seen.append(len(rows.keys()))

    try:
        assert await _until_done(one, unit) == []
        await other.execute("ALTER TABLE public.effects ADD COLUMN m int")
        assert set(await _until_done(one, unit)) <= {Fault.TRANSIENT}
        assert await _until_done(one, unit) == []
    finally:
        await one.close()
    assert seen[-1] == 2


async def test_a_database_that_is_away_is_a_dependency(unused_tcp_port: int) -> None:
    away = Database(f"postgresql://postgres@127.0.0.1:{unused_tcp_port}/nowhere")
    with pytest.raises(OSError) as caught:
        await away.ping()
    assert classify(caught.value) is Fault.DEPENDENCY
    await away.close()


async def test_a_copy_joins_the_transaction_and_a_bug_without_one_says_so(db: Database) -> None:
    async with db.transaction() as conn:
        with pytest.raises(AssertionError, match="no transaction is open"):
            raw(conn)
        await conn.execute(sa.text("SELECT 1"))
        assert raw(conn).is_in_transaction()


async def test_the_servers_own_bounds_are_set(db: Database) -> None:
    async with db.transaction() as conn:
        rows = await conn.execute(
            sa.text("""
                SELECT current_setting('statement_timeout'), current_setting('lock_timeout'),
                       current_setting('idle_in_transaction_session_timeout'), current_setting('jit'),
                       current_setting('transaction_isolation'), current_setting('application_name')
            """)
        )
        assert tuple(rows.one()) == ("30s", "10s", "1min", "off", "read committed", "tidegate test")


# ------------------------------------------------------------------------------------------- what cannot be stored


UNSTORABLE = {
    "NUL in text": ("CAST(:v AS text)", "a\0b"),
    "lone surrogate in text": ("CAST(:v AS text)", "\ud800"),
    "NUL in jsonb": ("CAST(CAST(:v AS text) AS jsonb)", '"a\\u0000b"'),
    "lone surrogate in jsonb": ("CAST(CAST(:v AS text) AS jsonb)", '"\\ud800"'),
    "NaN in jsonb": ("CAST(CAST(:v AS text) AS jsonb)", "NaN"),
    "int4 out of range": ("CAST(:v AS int)", 2147483648),
    "int8 out of range": ("CAST(:v AS bigint)", 2**63),
    "varchar too long": ("CAST(CAST(:v AS text) AS numeric(2))", "123"),
    "a timestamp out of range": ("CAST(CAST(:v AS text) AS timestamptz)", "294277-01-01"),
}


@pytest.mark.parametrize("what", UNSTORABLE)
async def test_what_the_database_cannot_hold_is_the_datas_fault_and_the_next_unit_works(
    db: Database, what: str
) -> None:
    """No attempt helps a value that does not fit or cannot be stored, and it harms nobody else.

    Case: B43
    Case: B45
    Parts: real (PostgreSQL)
    Red when: inbox/faults.py leaves class 22 out of SQLSTATE_FAULTS
    """
    expression, value = UNSTORABLE[what]
    with pytest.raises((exc.DBAPIError, exc.StatementError)) as caught:
        async with db.transaction() as conn:
            await conn.execute(sa.text(f"SELECT {expression}"), {"v": value})
    assert classify(caught.value) is Fault.DATA
    await db.ping()


async def test_an_index_entry_that_is_too_large_is_the_datas_fault(db: Database, other: asyncpg.Connection) -> None:
    """A unique key over free text works until one tenant's long id fails for ever: 54000.

    Case: B45
    Parts: real (PostgreSQL)
    Red when: inbox/faults.py leaves class 54 out of SQLSTATE_FAULTS
    """
    await other.execute("CREATE TABLE public.ids (id text PRIMARY KEY)")
    long_id = random.Random(45).randbytes(3000).hex()
    with pytest.raises(exc.DBAPIError) as caught:
        async with db.transaction() as conn:
            await conn.execute(sa.text("INSERT INTO public.ids VALUES (:id)"), {"id": long_id})
    assert classify(caught.value) is Fault.DATA


@pytest.mark.parametrize("text", ["\U0001f600", "\\u0000", "plain"])
async def test_what_looks_bad_but_is_not_is_stored_as_it_is(db: Database, text: str) -> None:
    async with db.transaction() as conn:
        assert (await conn.execute(sa.text("SELECT CAST(:v AS text)"), {"v": text})).scalar_one() == text


async def test_a_commit_that_is_sent_after_the_question_answers_it(db: Database, migrated_url: str) -> None:
    """Whether the database answers is learned from a commit that is made anyway: no connection is free to ask by.

    Case: B35
    Parts: real (PostgreSQL)
    Red when: inbox/database.py `_commit` does not pass through `sending`
    """
    small = Database(migrated_url, settings=DatabaseSettings(pool_max=1, tx_pool_max=1, pool_wait_s=0.2))
    try:
        async with small.transaction() as busy:
            await busy.execute(sa.text("SELECT 1"))
            async with small.user_transaction() as conn:
                await conn.execute(sa.text("SELECT 1"))
                asked = [asyncio.ensure_future(small.ping()) for _ in range(100)]
                await asyncio.sleep(0)
            await asyncio.gather(*asked)
    finally:
        await small.close()


async def test_a_transaction_that_sent_nothing_answers_nothing(db: Database, migrated_url: str) -> None:
    """Without a statement no commit goes to the server, so nothing is known of it.

    Case: B35
    Parts: real (PostgreSQL)
    Red when: inbox/database.py `_commit` passes through `sending` whether or not the driver is in a transaction
    """
    small = Database(migrated_url, settings=DatabaseSettings(pool_max=1, tx_pool_max=1, pool_wait_s=0.2))
    try:
        async with small.transaction() as busy:
            await busy.execute(sa.text("SELECT 1"))
            async with small.user_transaction():
                asked = asyncio.ensure_future(small.ping())
                await asyncio.sleep(0)
            with pytest.raises(exc.TimeoutError):
                await asked
    finally:
        await small.close()
