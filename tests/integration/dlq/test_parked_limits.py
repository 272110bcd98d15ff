"""How many events may wait: of a key exactly, of a handler by counts that are seconds old."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.integration.dlq.conftest import Graveyard
from tidegate.dlq.parked_limits import Newcomer, ParkedLimits
from tidegate.dlq.policy import FailurePolicy
from tidegate.inbox.store import Store

BILL, SHIP = 1, 2
A, B = b"a" * 16, b"b" * 16


def of(key: bytes | None, handler_id: int = BILL) -> Newcomer:
    return Newcomer(handler_id, None if key is None else (handler_id, "orders", key))


@pytest.fixture
def store(graveyard: Graveyard) -> Store:
    """The inbox."""
    return Store(graveyard.db, graveyard.t)


class Desk:
    """Limits of two handlers, and what they said."""

    def __init__(self, store: Store, **policy: object) -> None:
        self.store = store
        self.said: list[str] = []
        declared = FailurePolicy(**policy)  # pyright: ignore[reportArgumentType] - the policy's own fields
        self.limits = ParkedLimits(
            {BILL: ("bill", declared), SHIP: ("ship", FailurePolicy())},
            lambda name: self.said.append(f"away {name}"),
            lambda name: self.said.append(f"back {name}"),
        )

    async def waits(self, key: bytes, n: int) -> None:
        """So many rows hold the key's lane."""
        async with self.store.transaction() as conn:
            await conn.execute(
                sa.text(
                    "INSERT INTO tidegate.parked_key (handler, topic, key_hash, key, next_seq, waiting, head_seq)"
                    " VALUES (:handler, 'orders', :key, 'k', 1, :n, 1)"
                    " ON CONFLICT (handler, topic, key_hash) DO UPDATE SET waiting = excluded.waiting"
                ),
                {"handler": BILL, "key": key, "n": n},
            )

    async def look(self, now_s: float = 0.0) -> dict[str, int]:
        async with self.store.transaction() as conn:
            return dict(await self.limits.look(conn, self.store.tables, now_s))

    async def beyond(self, *newcomers: Newcomer) -> list[str | None]:
        """What is asked is undone."""
        async with self.store.transaction() as conn:
            return list(await self.limits.beyond(conn, self.store.tables, newcomers))

    async def come(self, *newcomers: Newcomer) -> list[str | None]:
        """Those for which there is room get their rows."""
        answers = await self.beyond(*newcomers)
        self.limits.added(one.handler_id for one, answer in zip(newcomers, answers, strict=True) if answer is None)
        return answers


async def test_a_key_at_its_limit_takes_no_newcomer_and_the_others_do(store: Store) -> None:
    desk = Desk(store, key_parked_max=3, at_limit="dead")
    await desk.waits(A, 2)
    await desk.waits(B, 1)
    await desk.look()
    assert await desk.beyond(of(A), of(A), of(B), of(B), of(B), of(None)) == [None, "dead", None, None, "dead", None]


async def test_what_was_added_since_the_last_count_counts(store: Store) -> None:
    desk = Desk(store, parked_max=5, at_limit="pause")
    await desk.waits(A, 2)
    assert await desk.look() == {"bill": 2, "ship": 0}
    assert await desk.come(of(B), of(None)) == [None, None]
    assert await desk.come(of(B), of(B), of(B, SHIP)) == [None, "pause", None]
    assert await desk.look() == {"bill": 2, "ship": 0}
    assert await desk.beyond(of(B)) == [None]


async def test_a_transaction_that_is_undone_and_comes_again_does_not_use_the_room_twice(store: Store) -> None:
    desk = Desk(store, parked_max=5, at_limit="dead")
    await desk.waits(A, 2)
    await desk.look()
    for _ in range(10):
        assert await desk.beyond(of(B), of(B), of(B), of(B)) == [None, None, None, "dead"]
    assert desk.said == []


async def test_reading_pauses_before_the_limit_under_the_handlers_name(store: Store) -> None:
    desk = Desk(store, parked_max=10)
    for n in (7, 8, 9, 7, 6, 8):
        await desk.waits(A, n)
        await desk.look()
    assert desk.said == ["away parked:bill", "back parked:bill", "away parked:bill"]


async def test_reading_pauses_with_the_event_that_is_one_too_many_and_not_at_the_next_count(store: Store) -> None:
    """A count is up to five seconds old: what is added here in that time would be half a window.

    Case: B35
    Parts: real (PostgreSQL)
    Red when: dlq/parked_limits.py `added` does not `_press`
    """
    desk = Desk(store, parked_max=10)
    await desk.waits(A, 6)
    await desk.look()
    assert await desk.come(of(B)) == [None]
    assert desk.said == []
    assert await desk.come(of(B)) == [None]
    assert desk.said == ["away parked:bill"]
    await desk.look()
    assert desk.said == ["away parked:bill", "back parked:bill"], "they are gone again"


async def test_a_key_is_looked_up_only_where_its_handler_has_so_many_rows(store: Store) -> None:
    desk = Desk(store, key_parked_max=100)
    await desk.waits(A, 50)
    await desk.look()
    await desk.waits(A, 100)
    assert await desk.beyond(of(A)) == [None], "seconds old: nobody asked"
    await desk.look()
    assert await desk.beyond(of(A)) == ["pause"]
