"""Unclean ends are counted at the next takeover: who died twice in a row at one place may have died of a record."""

from __future__ import annotations

import itertools

import pytest

from tidegate.inbox import checkpoint, fence, suspects
from tidegate.inbox.database import Database
from tidegate.inbox.event import Partition
from tidegate.inbox.fence import Fence
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.suspects import Suspect
from tidegate.inbox.tables import Tables

C = "billing"
P = Partition("orders", 2)
TOKENS = (f"owner-{n}" for n in itertools.count())


@pytest.fixture
async def handlers(db: Database, t: Tables) -> dict[str, int]:
    """Two handlers of the consumer, both at 10."""
    async with db.transaction() as conn:
        ids = await register_handlers(conn, t, C, ["quick", "slow"])
        await checkpoint.create(conn, t, [(ids["quick"], 0), (ids["slow"], 0)], P, 0, 10)
    return ids


async def take(db: Database, t: Tables) -> int:
    return await fence.take_over(db, t, C, P, next(TOKENS), 10)


async def row(db: Database, t: Tables) -> Fence:
    async with db.transaction() as conn:
        return (await fence.read(conn, t, C, [P]))[P]


async def release(db: Database, t: Tables, epoch: int) -> None:
    async with db.transaction() as conn:
        await fence.release(conn, t, C, {P: epoch})


async def move(db: Database, t: Tables, handler: int, old: int, new: int) -> None:
    async with db.transaction() as conn:
        assert not await checkpoint.move(conn, t, [checkpoint.Move(handler, 0, *P, old, new)])


async def test_unclean_ends_at_one_place_are_counted_and_anew_where_the_lowest_handler_moved(
    db: Database, t: Tables, handlers: dict[str, int]
) -> None:
    """The handler that is behind is the one that counts: others go on while it dies of its record.

    Case: B34
    Parts: real (PostgreSQL)
    Red when: fence.py reads `max(c.next_offset)` for `min(c.next_offset)`
    """
    await take(db, t)
    assert (await row(db, t)).crashes == 0
    await take(db, t)
    assert ((await row(db, t)).crashes, (await row(db, t)).crash_point) == (1, 10)
    await move(db, t, handlers["quick"], 10, 50)
    await take(db, t)
    assert (await row(db, t)).crashes == 2
    await move(db, t, handlers["slow"], 10, 11)
    await take(db, t)
    assert ((await row(db, t)).crashes, (await row(db, t)).crash_point) == (1, 11)


async def test_a_detached_handler_says_nothing_about_progress(
    db: Database, t: Tables, handlers: dict[str, int]
) -> None:
    await take(db, t)
    await move(db, t, handlers["quick"], 10, 50)
    async with db.transaction() as conn:
        await checkpoint.detach(conn, t, [(handlers["slow"], 0)])
    await take(db, t)
    assert (await row(db, t)).crash_point == 50


async def test_whoever_says_goodbye_is_not_counted(db: Database, t: Tables, handlers: dict[str, int]) -> None:
    await take(db, t)
    await take(db, t)
    await release(db, t, await take(db, t))
    await take(db, t)
    assert (await row(db, t)).crashes == 0


async def test_a_takeover_that_came_to_nothing_neither_counts_nor_ends_the_count(
    db: Database, t: Tables, handlers: dict[str, int]
) -> None:
    """A zombie's, or one that is tried again: the dead owner before it stays counted once."""
    await take(db, t)
    epoch = await fence.take_over(db, t, C, P, "zombie", 10)
    async with db.transaction() as conn:
        await fence.give_back(conn, t, C, P, "zombie", epoch)
    await take(db, t)
    assert (await row(db, t)).crashes == 1
    await take(db, t)
    assert (await row(db, t)).crashes == 2


async def test_who_was_taken_for_dead_takes_the_count_back(db: Database, t: Tables, handlers: dict[str, int]) -> None:
    """A frozen process that wakes up: its own end was none, those after it stay counted.

    Case: B34
    Parts: real (PostgreSQL)
    Red when: fence.py releases only rows whose `f.epoch = u.epoch`
    """
    first = await take(db, t)
    await take(db, t)
    assert (await row(db, t)).crashes == 1
    await release(db, t, first)
    assert (await row(db, t)).crashes == 0
    assert (await row(db, t)).released_at is None, "its successor is at work"
    await take(db, t)
    assert (await row(db, t)).crashes == 1
    await take(db, t)
    await release(db, t, first)
    assert (await row(db, t)).crashes == 2


async def test_the_count_starts_anew_where_the_culprit_is_known(
    db: Database, t: Tables, handlers: dict[str, int]
) -> None:
    former = await take(db, t)
    owner = await take(db, t)
    async with db.transaction() as conn:
        assert not await fence.absolve(conn, t, C, P, former)
        assert await fence.absolve(conn, t, C, P, owner)
    assert (await row(db, t)).crashes == 0
    await take(db, t)
    assert (await row(db, t)).crashes == 1


async def test_a_mark_tells_what_was_in_hand_and_at_how_many_ends_it_was_found(db: Database, t: Tables) -> None:
    """Marked again by the next owner it keeps its count; another one begins at none.

    Case: B34
    Parts: real (PostgreSQL)
    Red when: suspects.py's `mark` sets `deaths = 0` where the same one is marked again
    """
    async with db.transaction() as conn:
        await suspects.mark(conn, t, C, P, 7, None)
        assert await suspects.found(conn, t, C, P) == Suspect(7, None, 0, in_hand=True)
        await suspects.count(conn, t, C, P)
        assert await suspects.found(conn, t, C, P) == Suspect(7, None, 1, in_hand=False), "nobody has it now"
        await suspects.mark(conn, t, C, P, 7, None)
        assert await suspects.found(conn, t, C, P) == Suspect(7, None, 1, in_hand=True), "the same one"
        await suspects.mark(conn, t, C, P, 8, 3)
        assert await suspects.found(conn, t, C, P) == Suspect(8, 3, 0, in_hand=True)
        await suspects.unmark(conn, t, C, P)
        assert await suspects.found(conn, t, C, P) is None
