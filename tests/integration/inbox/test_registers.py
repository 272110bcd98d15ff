"""Handlers, consumers, topics, restored bounds, checkpoints, audit: what is known once and for all."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tests.support.locks import until_blocked
from tidegate.inbox import audit, checkpoint, restored
from tidegate.inbox.audit import AuditLine
from tidegate.inbox.checkpoint import Checkpoint, Mismatch, Move
from tidegate.inbox.consumers import ever_started, first_start
from tidegate.inbox.database import Database
from tidegate.inbox.event import Partition
from tidegate.inbox.handlers import RESERVED, known_handlers, register_handlers
from tidegate.inbox.tables import Tables
from tidegate.inbox.topics import TopicChange, TopicIdentity, adopt_topic, raise_incarnation

P0, P1 = Partition("orders", 0), Partition("orders", 1)


async def test_workers_that_start_at_once_agree_on_the_handlers_numbers(db: Database, t: Tables) -> None:
    async def register(*names: str) -> dict[str, int]:
        async with db.transaction() as conn:
            return await register_handlers(conn, t, "billing", names)

    first, second, third = await asyncio.gather(register("a", "b"), register("b", "a"), register("b", "c"))
    assert first == second
    assert third["b"] == first["b"]
    assert set(first) == {RESERVED, "a", "b"}
    async with db.transaction() as conn:
        other = await register_handlers(conn, t, "shipping", ["a"])
        assert await known_handlers(conn, t, "billing") == {**first, **third}
    assert other["a"] != first["a"]
    assert other[RESERVED] != first[RESERVED]


async def test_a_consumer_starts_for_the_first_time_once(db: Database, t: Tables) -> None:
    async def start() -> bool:
        async with db.transaction() as conn:
            return await first_start(conn, t, "billing")

    assert sorted(await asyncio.gather(*[start() for _ in range(4)])) == [False, False, False, True]
    async with db.transaction() as conn:
        assert await ever_started(conn, t, "billing")
        assert not await ever_started(conn, t, "shipping")


async def test_a_topics_id_is_learned_once_kept_and_compared(db: Database, t: Tables) -> None:
    async def adopt(topic_id: str | None) -> TopicIdentity:
        async with db.transaction() as conn:
            return await adopt_topic(conn, t, "orders", topic_id)

    assert await adopt(None) == TopicIdentity("orders", None, 0, TopicChange.NEW)
    assert await adopt(None) == TopicIdentity("orders", None, 0, TopicChange.SAME)
    assert await adopt("A") == TopicIdentity("orders", "A", 0, TopicChange.ADOPTED)
    assert await adopt("A") == TopicIdentity("orders", "A", 0, TopicChange.SAME)
    assert await adopt(None) == TopicIdentity("orders", "A", 0, TopicChange.KEPT)
    assert await adopt("B") == TopicIdentity("orders", "A", 0, TopicChange.RECREATED)
    assert (await adopt("B")).change is TopicChange.RECREATED, "adopting never raises the incarnation"


async def test_of_owners_who_notice_at_once_that_a_topic_is_new_one_raises_its_incarnation(
    db: Database, t: Tables
) -> None:
    async with db.transaction() as conn:
        await adopt_topic(conn, t, "orders", "A")

    async def notice(topic_id: str | None) -> int:
        async with db.transaction() as conn:
            return await raise_incarnation(conn, t, "orders", topic_id)

    assert await asyncio.gather(*[notice("B") for _ in range(4)]) == [1, 1, 1, 1]
    assert await notice(None) == 2
    assert await notice(None) == 3
    async with db.transaction() as conn:
        assert await adopt_topic(conn, t, "orders", "C") == TopicIdentity("orders", "C", 3, TopicChange.ADOPTED)


async def test_a_restored_bound_is_only_raised(db: Database, t: Tables) -> None:
    for until in (10, 20, 5):
        async with db.transaction() as conn:
            await restored.declare_restored(conn, t, "billing", {P0: until, P1: 1}, "ann")
    async with db.transaction() as conn:
        assert await restored.read(conn, t, "billing", [P0, P1, Partition("orders", 2)]) == {P0: 20, P1: 1}
        assert await restored.read(conn, t, "shipping", [P0]) == {}


# -------------------------------------------------------------------------------------------------------- checkpoints


async def _handlers(db: Database, t: Tables) -> tuple[int, int]:
    async with db.transaction() as conn:
        ids = await register_handlers(conn, t, "billing", ["a", "b"])
        await checkpoint.create(conn, t, [(ids["a"], 1), (ids["b"], 0)], P0, 2, 10)
    return ids["a"], ids["b"]


async def test_checkpoints_are_made_once_and_read_by_consumer_and_partition(db: Database, t: Tables) -> None:
    a, b = await _handlers(db, t)
    async with db.transaction() as conn:
        await checkpoint.create(conn, t, [(a, 1), (b, 7)], P0, 3, 99)
        assert await checkpoint.read(conn, t, "billing", P0) == {
            (a, 1): Checkpoint(10, 2),
            (b, 0): Checkpoint(10, 2),
            (b, 7): Checkpoint(99, 3),
        }
        assert await checkpoint.read(conn, t, "shipping", P0) == {}
        assert await checkpoint.read(conn, t, "billing", P1) == {}


async def test_a_checkpoint_moves_only_from_where_it_is_expected(db: Database, t: Tables) -> None:
    a, b = await _handlers(db, t)
    good, wrong, missing = Move(b, 0, "orders", 0, 10, 12), Move(a, 1, "orders", 0, 9, 12), Move(a, 1, "x", 0, 0, 1)
    async with db.transaction() as conn:
        assert await checkpoint.move(conn, t, [wrong, good, missing]) == [Mismatch(wrong, 10), Mismatch(missing, None)]
        assert await checkpoint.move(conn, t, [good]) == [Mismatch(good, 12)]
        assert await checkpoint.move(conn, t, []) == []


async def test_of_two_moves_from_the_same_value_one_wins_and_the_other_learns_where_it_is(
    db: Database, t: Tables
) -> None:
    a, _ = await _handlers(db, t)

    async def move(new: int) -> list[Mismatch]:
        async with db.transaction() as conn:
            return await checkpoint.move(conn, t, [Move(a, 1, "orders", 0, 10, new)])

    async with db.transaction() as conn:
        assert await checkpoint.move(conn, t, [Move(a, 1, "orders", 0, 10, 11)]) == []
        second = asyncio.create_task(move(15))
        await until_blocked(db)
    assert await second == [Mismatch(Move(a, 1, "orders", 0, 10, 15), 11)]


async def test_a_reset_sets_what_it_is_told_and_a_detached_checkpoint_says_so(db: Database, t: Tables) -> None:
    a, b = await _handlers(db, t)
    async with db.transaction() as conn:
        await checkpoint.reset(conn, t, [(a, 1)], P0, 3, 0)
        assert await checkpoint.detach(conn, t, [(b, 0)]) == 1
        assert await checkpoint.detach(conn, t, [(b, 0)], P0) == 0
        assert await checkpoint.read(conn, t, "billing", P0) == {
            (a, 1): Checkpoint(0, 3),
            (b, 0): Checkpoint(10, 2, detached=True),
        }


# -------------------------------------------------------------------------------------------------------------- audit


async def test_audit_lines_are_written_with_any_text_and_found_by_what_they_concern(db: Database, t: Tables) -> None:
    async with db.transaction() as conn:
        first = await audit.write(
            conn, t, AuditLine(act="replay", actor="ann\0", failure_id=5, details={"k\0": "\ud800", "n": 1, "x": None})
        )
        await audit.write(conn, t, AuditLine(act="discard", actor="bob", allowed=False, event_id=b"e" * 16))
        (entry,) = await audit.read(conn, t, failure_id=5)
        assert (entry.id, entry.line.actor, entry.line.details) == (first, "ann�", {"k�": "�", "n": 1, "x": None})
        (denied,) = await audit.read(conn, t, event_id=b"e" * 16)
        assert not denied.line.allowed
        assert [e.line.act for e in await audit.read(conn, t, after=first)] == ["discard"]


@pytest.mark.parametrize("statement", ["UPDATE {} SET actor = 'eve'", "DELETE FROM {}", "TRUNCATE {}"])
async def test_an_audit_line_is_never_changed_or_removed(db: Database, t: Tables, statement: str) -> None:
    async with db.transaction() as conn:
        await audit.write(conn, t, AuditLine(act="replay", actor="ann"))
    with pytest.raises(exc.DBAPIError, match="never changed or removed"):
        async with db.transaction() as conn:
            await conn.execute(sa.text(statement.format("tidegate.audit")))
