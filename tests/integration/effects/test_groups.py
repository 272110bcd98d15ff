"""Intents and endings go in groups; what the database does meanwhile neither loses a call nor doubles one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa

from tests.services import database
from tests.support.calling import count, do, keyed, of, pass_by, probed, reviewed, value, whose
from tests.support.losing_proxy import COMMIT, losing_proxy
from tests.support.provider import Behaviour, Provider
from tidegate.inbox import effects, fence
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.effect_rows import Home
from tidegate.inbox.effect_rules import Effect, idempotent_key
from tidegate.inbox.effects import Ending, Intent
from tidegate.inbox.errors import (
    DependencyError,
    EffectMisused,
    EffectPending,
    EffectUnknown,
    OwnershipLost,
    TransientError,
)
from tidegate.inbox.event import Partition
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables

HERE = Partition("shop.orders", 0)


async def test_what_is_asked_meanwhile_goes_together(ledger: Ledger, service: Provider) -> None:
    service.slowly(0.005)
    await asyncio.gather(*[do(ledger, keyed(deadline_s=5), service, f"op-{n}") for n in range(200)])
    assert set(service.done.values()) == {1}
    intents, endings = ledger.statements
    assert intents < 20
    assert endings < 150


async def test_one_call_costs_one_statement_before_and_one_behind(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    await do(ledger, keyed(), service)
    assert ledger.statements == (1, 1)
    assert store.database.in_use() == (0, 0), "neither takes a place in a pool"


async def test_of_many_who_want_one_operation_at_once_one_calls(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    """Also those of another process, and those in one group."""
    other = Ledger(store)
    service.slowly(0.02)
    doing = [do(book, reviewed(deadline_s=5), service) for book in (ledger, other) for _ in range(20)]
    ended = await asyncio.gather(*doing, return_exceptions=True)
    await other.close()
    assert service.requests == {"op-1": 1}
    assert ended.count({"id": "x-op-1-1"}) >= 1
    assert {type(end) for end in ended} <= {dict, EffectPending}


async def test_groups_of_the_same_operations_never_deadlock(store: Store, service: Provider) -> None:
    ledgers = [Ledger(store) for _ in range(4)]
    operations = [f"op-{n}" for n in range(50)]
    for round_ in range(5):
        doing = [
            do(ledger, reviewed(deadline_s=5), service, f"{round_}-{operation}")
            for n, ledger in enumerate(ledgers)
            for operation in (operations if n % 2 else reversed(operations))
        ]
        ended = await asyncio.gather(*doing, return_exceptions=True)
        assert {type(end) for end in ended} <= {dict, EffectPending}
    for ledger in ledgers:
        await ledger.close()
    assert set(service.requests.values()) == {1}


async def test_one_that_is_known_never_harms_its_neighbours(store: Store, ledger: Ledger, service: Provider) -> None:
    """Until then all are taken to be new, and behind it none is."""
    known = await do(ledger, keyed(deadline_s=5), service, "op-3")
    for first in (0, 8):
        doing = [do(ledger, keyed(deadline_s=5), service, f"op-{n}") for n in (3, *range(first, first + 8))]
        assert (await asyncio.gather(*doing, return_exceptions=True))[0] == known
    assert service.requests == {f"op-{n}": 1 for n in range(16)}
    assert await count(store) == 16


async def test_one_bad_intent_never_harms_its_neighbours(
    store: Store, ledger: Ledger, service: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the database refuses of one row."""
    async with store.transaction() as conn:
        await conn.execute(store.tables.sql("ALTER TABLE {effect} ADD CHECK (operation_id <> 'op-3')"))
    doing = [do(ledger, keyed(deadline_s=5), service, f"op-{n}") for n in range(8)]
    ended = await asyncio.gather(*doing, return_exceptions=True)
    assert [n for n, end in enumerate(ended) if isinstance(end, Exception)] == [3]
    assert "op-3" not in service.requests
    assert await count(store) == 7


async def test_a_result_that_the_database_refuses_does_not_undo_its_call(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    """The call was made: it is completed without its result, and its neighbours have theirs."""
    async with store.transaction() as conn:
        await conn.execute(
            store.tables.sql('ALTER TABLE {effect} ADD CHECK (result <> \'{{"id": "x-op-3-1"}}\'::jsonb)')
        )
    doing = [do(ledger, reviewed(deadline_s=5), service, f"op-{n}") for n in range(8)]
    await asyncio.gather(*doing)
    assert [await value(store, "state", f"op-{n}") for n in range(8)] == ["completed"] * 8
    assert await value(store, "result", "op-3") is None
    assert "refused the result" in await value(store, "error", "op-3")
    assert await value(store, "result", "op-4") == {"id": "x-op-4-1"}


# ------------------------------------------------------------------------------------------------ answers that get lost


@asynccontextmanager
async def lossy(url: str, marker: bytes, to_lose: int, spared: int = 0) -> AsyncGenerator[tuple[Ledger, Store]]:
    """A ledger whose statements with `marker` lose their answers so many times, once they are durable."""
    async with losing_proxy(url, marker, spared) as (through, proxy):
        store = Store(Database(through, member="lossy"), tables())
        ledger = Ledger(store)
        proxy.to_lose = to_lose
        yield ledger, store
        assert proxy.to_lose == 0
        await ledger.close()
        await store.database.close()


async def test_the_lost_answer_to_an_intent_is_read_again(store: Store, migrated_url: str, service: Provider) -> None:
    async with lossy(migrated_url, b"op-lost", 1) as (ledger, _):
        doing = [do(ledger, reviewed(deadline_s=5), service, f"op-{what}") for what in ("lost", "a", "b")]
        await asyncio.gather(*doing)
    assert service.requests == {"op-lost": 1, "op-a": 1, "op-b": 1}
    assert await value(store, "attempts", "op-lost") == 1


async def test_an_intent_whose_answers_all_get_lost_was_never_called_and_stands_in_nobodys_way(
    store: Store, migrated_url: str, service: Provider
) -> None:
    """The row says that a call may be under way; this process knows that none is."""
    async with lossy(migrated_url, b"op-lost", 2) as (ledger, _):
        with pytest.raises(DependencyError):
            await do(ledger, reviewed(deadline_s=60), service, "op-lost")
        assert service.requests == {}
        assert await value(store, "state", "op-lost") == "intended"
        assert await do(ledger, reviewed(deadline_s=60), service, "op-lost") == {"id": "x-op-lost-1"}
    assert service.requests == {"op-lost": 1}


@pytest.mark.parametrize(
    ("later_s", "cents", "ended", "requests"),
    [(0, 1, "done", 2), (3600, 1, "too old", 1), (0, 2, "another request", 1)],
    ids=["in time", "with an old key", "with another request"],
)
async def test_a_takeover_that_never_called_leaves_in_doubt_what_was(
    store: Store,
    ledger: Ledger,
    migrated_url: str,
    service: Provider,
    later_s: float,
    cents: int,
    ended: str,
    requests: int,
) -> None:
    """The answer to its commit got lost. Nobody waits for it, but the call before it may have been done."""
    service.script = lambda operation, n: Behaviour(resets=n == 1)
    effect = Effect("charge", idempotent_key(valid_s=60), 5.0, margin_s=0.0)
    with pytest.raises(ConnectionResetError):
        await do(ledger, effect, service, request={"cents": 1})
    async with lossy(migrated_url, COMMIT, 1, spared=1) as (other, _):
        with pytest.raises(DependencyError):
            await do(other, effect, service, request={"cents": 1})
        assert await value(store, "state") == "intended"
        assert await value(store, "attempts") == 2
        await pass_by(store, later_s)
        if ended == "done":
            assert await do(other, effect, service, request={"cents": cents}) == {"id": "x-op-1-1"}
        else:
            with pytest.raises(EffectUnknown, match=ended):
                await do(other, effect, service, request={"cents": cents})
    assert service.requests == {"op-1": requests}
    assert service.done == {"op-1": 1}


async def test_the_lost_answer_to_an_ending_is_asked_for_again(
    store: Store, migrated_url: str, service: Provider
) -> None:
    async with lossy(migrated_url, b"x-op-lost-1", 3) as (ledger, _):
        doing = [do(ledger, reviewed(deadline_s=5), service, f"op-{what}") for what in ("lost", "a")]
        await asyncio.gather(*doing)
    assert await value(store, "state", "op-lost") == "completed"
    assert await value(store, "second_external_id", "op-lost") is None


# ---------------------------------------------------------------------------------------------- a database that is away


@asynccontextmanager
async def away(url: str, postgres_url: str) -> AsyncGenerator[None]:
    """Nobody is connected, and nobody can connect."""
    name = urlsplit(url).path[1:]
    database.execute(
        postgres_url,
        f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false',
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'",
    )
    try:
        yield
    finally:
        database.execute(postgres_url, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


async def test_a_database_that_is_away_before_a_call_lets_nothing_out(
    store: Store, ledger: Ledger, service: Provider, migrated_url: str, postgres_url: str
) -> None:
    await do(ledger, keyed(), service, "op-0")
    async with away(migrated_url, postgres_url):
        for effect in (keyed(), probed(service), reviewed()):
            with pytest.raises(DependencyError) as error:
                await do(ledger, effect, service)
            assert error.value.dependency == "postgresql"
    assert service.requests == {"op-0": 1}
    assert await do(ledger, reviewed(), service) == {"id": "x-op-1-1"}


async def test_a_database_that_is_away_behind_a_call_is_waited_for(
    store: Store, ledger: Ledger, service: Provider, migrated_url: str, postgres_url: str
) -> None:
    await do(ledger, keyed(), service, "op-0")
    gate = service.gates["op-1"] = asyncio.Event()
    doing = asyncio.ensure_future(do(ledger, reviewed(deadline_s=10), service))
    await service.seen.wait()
    while "op-1" not in service.requests:
        await asyncio.sleep(0.001)
    async with away(migrated_url, postgres_url):
        gate.set()
        while service.done["op-1"] == 0:
            await asyncio.sleep(0.001)
        over, _ = await asyncio.wait((doing,), timeout=0.3)
        assert not over
    assert await doing == {"id": "x-op-1-1"}
    assert await value(store, "state") == "completed"


async def test_a_ledger_that_is_closed_while_the_database_is_away_leaves_the_effect_open(
    store: Store, service: Provider, migrated_url: str, postgres_url: str
) -> None:
    """What is not durable is not guessed."""
    ledger = Ledger(store)
    effect = await ledger.effect(reviewed(deadline_s=10), "op-1", owner="tests").__aenter__()
    effect.complete({"id": 1})
    async with away(migrated_url, postgres_url):
        leaving = asyncio.ensure_future(effect.__aexit__(None, None, None))
        await asyncio.sleep(0)
        await ledger.close(0.1)
        await asyncio.wait((leaving,))
        assert leaving.cancelled()
    assert await value(store, "state") == "intended"
    again = Ledger(store)
    with pytest.raises(EffectPending):
        await do(again, reviewed(), service)
    await again.close()


# --------------------------------------------------------------------------------------------------------- cancellation


async def test_who_is_cancelled_while_asking_has_surely_not_called(store: Store, ledger: Ledger) -> None:
    asking = asyncio.ensure_future(ledger.effect(reviewed(deadline_s=60), "op-1", owner="tests").__aenter__())
    while ledger.statements[0] == 0:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait((asking,))
    assert asking.cancelled()
    while await value(store, "state") != "failed":
        await asyncio.sleep(0.01)
    assert await value(store, "error") == "cancelled before the call"


async def test_who_is_cancelled_inside_a_call_leaves_a_doubt(store: Store, ledger: Ledger, service: Provider) -> None:
    service.gates["op-1"] = asyncio.Event()
    calling = asyncio.ensure_future(do(ledger, keyed(deadline_s=60), service))
    await service.seen.wait()
    calling.cancel()
    await asyncio.wait((calling,))
    assert calling.cancelled()
    while await value(store, "state") != "unknown":
        await asyncio.sleep(0.01)
    service.gates["op-1"].set()
    assert await do(ledger, keyed(deadline_s=60), service) == {"id": "x-op-1-1"}
    assert service.done == {"op-1": 1}


# ------------------------------------------------------------------------------------------------------------ the fence


async def somebody_waits(store: Store) -> bool:
    """Some session of this database waits for another one's lock."""
    async with store.look() as conn:
        return bool(
            await conn.scalar(
                sa.text(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
            )
        )


async def taken(store: Store, token: str = "w1") -> int:
    return await fence.take_over(store.database, store.tables, "tests", HERE, token, 5.0)


async def test_an_intent_needs_the_fence_and_an_ending_does_not(
    store: Store, ledger: Ledger, service: Provider
) -> None:
    """A partition that is lost between check and call: the call goes on, and its answer counts from whoever made it."""
    old = whose(Home("tests", HERE, await taken(store)))
    async with ledger.call(of(reviewed(deadline_s=60), "op-1", old)) as effect:
        new = whose(Home("tests", HERE, await taken(store, "w2")))
        with pytest.raises(OwnershipLost):
            await ledger.call(of(reviewed(), "op-2", old)).__aenter__()
        with pytest.raises(EffectPending):
            await ledger.call(of(reviewed(), "op-1", new)).__aenter__()
        effect.complete({"id": 1}, "x-1")
    async with ledger.call(of(reviewed(), "op-1", new)) as effect:
        assert effect.is_done
    assert await value(store, "state", "op-2") is None


async def test_the_new_owner_takes_over_only_when_the_call_is_over(store: Store, ledger: Ledger) -> None:
    """Never because the epoch changed: whoever made the call may still be at it."""
    old = whose(Home("tests", HERE, await taken(store)))
    await ledger.call(of(keyed(deadline_s=0.2), "op-1", old)).__aenter__()
    new = whose(Home("tests", HERE, await taken(store, "w2")))
    with pytest.raises(EffectPending):
        await ledger.call(of(keyed(deadline_s=0.2), "op-1", new)).__aenter__()
    async with store.look() as conn:
        await conn.execute(sa.text("SELECT pg_sleep(0.2)"))
    with pytest.raises(OwnershipLost):
        await ledger.call(of(keyed(deadline_s=0.2), "op-1", old)).__aenter__()
    async with ledger.call(of(keyed(deadline_s=0.2), "op-1", new)) as effect:
        assert effect.attempt == 2
        effect.complete()


async def test_a_partition_that_somebody_wants_takes_no_new_intent(store: Store, ledger: Ledger) -> None:
    mine = whose(Home("tests", HERE, await taken(store)))
    async with store.transaction() as conn:
        await fence.want(conn, store.tables, "tests", HERE, "w2")
    with pytest.raises(OwnershipLost):
        await ledger.call(of(keyed(), "op-1", mine)).__aenter__()
    assert await count(store) == 0


async def test_a_takeover_waits_for_an_intent_that_is_being_written(store: Store, ledger: Ledger) -> None:
    """In one statement: either the new epoch is seen, or the row is there before the partition is anybody else's."""
    epoch = await taken(store)
    mine = whose(Home("tests", HERE, epoch))
    async with store.trial() as conn:
        same = Intent(of(keyed(), "op-1", mine), b"t" * 16)
        assert await effects.open_after_restore(conn, store.tables, same, None)
        entering = asyncio.ensure_future(ledger.call(of(keyed(), "op-1", mine)).__aenter__())
        while not await somebody_waits(store):
            await asyncio.sleep(0.001)
        taking = asyncio.ensure_future(taken(store, "w2"))
        over, _ = await asyncio.wait((taking,), timeout=0.2)
        assert not over
    assert (await entering).attempt == 1
    assert await taking == epoch + 1


async def test_a_bad_neighbour_in_a_group_of_fences_is_left_out(store: Store, ledger: Ledger) -> None:
    mine, gone = whose(Home("tests", HERE, await taken(store))), whose(Home("tests", Partition("shop.orders", 1), 9))
    calls = [ledger.call(of(keyed(), f"op-{n}", mine if n % 2 else gone)) for n in range(6)]
    ended = await asyncio.gather(*[call.__aenter__() for call in calls], return_exceptions=True)
    assert [isinstance(end, OwnershipLost) for end in ended] == [True, False] * 3
    assert await count(store) == 3
    assert ledger.statements[0] == 1


async def test_an_ending_of_nobodys_attempt_changes_nothing(store: Store, ledger: Ledger) -> None:
    async with ledger.effect(keyed(deadline_s=60), "op-1", owner="tests") as effect:
        assert effect.begun is not None
        driver = await store.database.connection()
        stranger = Ending(effect.begun.made.effect_id, b"s" * 16, effects.EffectState.COMPLETED)
        assert await effects.end(await driver.prepare(effects.end_sql(store.tables)), [stranger]) == [False]
        await driver.close()
        assert await value(store, "state") == "intended"
        effect.complete()
    with pytest.raises(EffectMisused):
        effect.complete()


async def test_a_lock_on_the_row_is_waited_for_and_then_bad_luck(migrated_url: str, store: Store) -> None:
    impatient = Store(Database(migrated_url, settings=DatabaseSettings(lock_timeout_s=0.05)), tables())
    ledger = Ledger(impatient)
    async with store.transaction() as conn:
        await conn.execute(store.tables.sql("LOCK TABLE {effect}"))
        with pytest.raises(TransientError):
            await ledger.effect(keyed(), "op-1", owner="tests").__aenter__()
    await ledger.close()
    await impatient.database.close()
