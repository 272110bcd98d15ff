"""The filter of failing ids: it never says no to what is in it, nearly always to what is not, and wears out in time."""

from __future__ import annotations

import random

import pytest

from tidegate.inbox.id_filter import NEWER_MAX, NEWER_MIN, SMALL_MAX, IdFilter

MANY = SMALL_MAX + 1


def ids(n: int, seed: int = 0) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(16) for _ in range(n)]


def filtered(known: list[bytes], page: int = 1_000) -> IdFilter:
    """A filter that was told the ids page by page, in their order."""
    made, ordered = IdFilter(), sorted(known)
    for first in range(0, len(ordered), page):
        made.add_page(b"".join(ordered[first : first + page]), there_is_more=True)
    made.add_page(b"", there_is_more=False)
    return made


def at_once(known: list[bytes]) -> IdFilter:
    made = IdFilter()
    made.add_page(b"".join(sorted(known)), there_is_more=False)
    return made


def test_an_empty_filter_suspects_nobody() -> None:
    assert filtered([]).suspects(ids(100)) == []


@pytest.mark.parametrize("n", [1, 2, 999, SMALL_MAX, MANY, 3 * MANY])
def test_what_was_read_is_always_suspected_and_nothing_else_is(n: int) -> None:
    known, strangers = ids(n), ids(10_000, seed=1)
    for made in (filtered(known), at_once(known)):
        assert made.suspects([*strangers[:5], *known, *strangers[5:9]]) == known
        assert made.suspects(strangers) == []


@pytest.mark.parametrize("n", [4, MANY])
def test_the_first_and_the_last_of_all_ids_are_found(n: int) -> None:
    edges = [bytes(16), b"\xff" * 16, b"\x80" + bytes(15), b"\x7f" + b"\xff" * 15]
    assert filtered([*edges, *ids(n - 4)]).suspects(edges) == edges
    assert at_once([*edges, *ids(n - 4)]).suspects(edges) == edges
    assert filtered(ids(n)).suspects(edges) == []


@pytest.mark.parametrize("n", [0, 10, MANY])
def test_what_was_put_since_is_suspected_too(n: int) -> None:
    for made in (filtered(ids(n)), at_once(ids(n))):
        newer = ids(50, seed=2)
        made.add(b"".join(newer))
        assert made.suspects([*ids(n), *newer]) == [*ids(n), *newer]


@pytest.mark.parametrize("n", [0, 10, MANY])
def test_what_was_put_behind_the_pages_is_told_apart(n: int) -> None:
    made, newer = at_once(ids(n)), ids(50, seed=2)
    assert made.since([*ids(n), *newer]) == []
    made.add(b"".join([*newer, *ids(n)[:2]]))
    assert made.since([*ids(n), *newer, *ids(50, seed=3)]) == [*ids(n)[:2], *newer]
    assert made.since([]) == []


def test_the_order_of_what_is_asked_stays() -> None:
    known = ids(50)
    made = filtered(known)
    assert made.suspects(known[::-1]) == known[::-1]
    assert made.suspects([]) == []


def test_it_is_worn_once_much_was_put_since_it_was_read() -> None:
    made = filtered(ids(8 * NEWER_MIN), page=NEWER_MIN)
    made.add(b"".join(ids(2 * NEWER_MIN - 100, seed=3)))
    assert not made.is_worn
    made.add(b"".join(ids(200, seed=4)))
    assert made.is_worn
    assert NEWER_MIN < NEWER_MAX
