"""The filter of failing ids: it grows in time, starts anew when it is too full, and never says no to what is in it."""

from __future__ import annotations

import random

from tidegate.inbox.failing import FULL, SIZES, IdFilter


def ids(n: int, seed: int = 0) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(16) for _ in range(n)]


def words(of: list[bytes]) -> bytes:
    return b"".join(event_id[:8] for event_id in of)


def test_an_empty_filter_suspects_nobody() -> None:
    assert IdFilter(SIZES[0]).suspects(ids(100)) == []


def test_what_was_added_is_always_suspected_and_little_else_is() -> None:
    known, strangers = ids(1_000), ids(10_000, seed=1)
    filtered = IdFilter(SIZES[0])
    filtered.add(words(known))
    assert filtered.suspects([*strangers[:5], *known, *strangers[5:9]]) == known
    assert len(filtered.suspects(strangers)) < 10_000 / 64 * 1.5


def test_the_order_of_what_is_asked_stays() -> None:
    known = ids(50)
    filtered = IdFilter(SIZES[0])
    filtered.add(words(known))
    assert filtered.suspects(known[::-1]) == known[::-1]
    assert filtered.suspects([]) == []


def test_a_full_filter_has_a_larger_successor_that_has_room() -> None:
    filtered = IdFilter(SIZES[0])
    room = SIZES[0] // (2 * FULL)
    assert filtered.successor(room, there_is_more=False) is None
    successor = filtered.successor(room + 1, there_is_more=False)
    assert successor is not None
    assert successor.successor(room + 1, there_is_more=False) is None
    assert successor.successor(SIZES[1] // (2 * FULL) + 1, there_is_more=False) is not None


def test_where_nobody_knows_how_many_there_are_the_successor_is_the_largest() -> None:
    successor = IdFilter(SIZES[0]).successor(10_000, there_is_more=True)
    assert successor is not None
    assert successor.successor(SIZES[-1] // (2 * FULL), there_is_more=False) is None


def test_the_largest_starts_anew_once_it_has_doubled_since_it_caught_up() -> None:
    filtered = IdFilter(SIZES[-1])
    filtered.taken = SIZES[-1] // 4
    assert filtered.successor(1, there_is_more=True) is None, "it has not caught up: starting anew would never end"
    filtered.taken_when_caught_up = filtered.taken
    assert filtered.successor(filtered.taken // 2, there_is_more=False) is None
    successor = filtered.successor(filtered.taken // 2 + 1, there_is_more=False)
    assert successor is not None
    assert successor.taken == 0
