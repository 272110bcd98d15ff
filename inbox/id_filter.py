"""The ids of one handler's failure rows, kept so that a stranger is told quickly and one of them never. No IO.

Beside the ids, sorted, there is a table of marked places: an id whose place is not marked is none of them, and nearly
no stranger's is. Next to nothing is done to each id in Python, where they are taken up and where they are asked for.
"""

from __future__ import annotations

import datetime
import operator
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import compress
from operator import itemgetter
from typing import Final, NamedTuple, cast, final

from .identity import ID_BYTES

NEWER_MIN, NEWER_MAX = 10_000, 250_000
"""Ids put since that begin a new filter, at least and at most: they stand in a set, at some 85 bytes each, and what was
done meanwhile leaves with the old filter. In between it is a quarter of what was sorted, so that reading anew costs
four times what was put."""

SMALL_MAX: Final = 4_000
"""So many ids mark places in 8 KiB, more of them in 4 MiB: with 4,000 one stranger in 40 is at a marked place, with a
million one in 120, and is searched for. Larger tables have fewer, but do not stay in a processor's caches."""

_NUMBER_BYTES: Final = 8
"""An id is a hash, of which the first half is kept: it tells a stranger from all others."""

_SIX_BITS: Final = bytes(byte & 0x3F for byte in range(256))
_FIVE_BITS: Final = bytes(byte & 0x1F for byte in range(256))
_BITS: Final = bytes(([byte for byte in range(256) if byte.bit_count() == 3] * 5)[:256])
"""A place is a byte of the table, told by the first bytes of an id, and three bits of it, told by the fourth: a search,
among eight megabytes, takes twenty times as long as a look at a place, and with one bit there are four times as many.
The third byte counts most in where it is, so that ids in their order mark places in a few orderly rows: that halves the
time."""

_LOW, _MIDDLE, _HIGH = (0, 1, 2) if sys.byteorder == "little" else (3, 2, 1)
"""Where a word of four bytes has its lower three."""

_AND: Final = cast("Callable[[int, int], int]", operator.and_)
_EQUAL: Final = cast("Callable[[int, int], bool]", operator.eq)
"""Not `int.__and__`, which takes thrice as long."""

Cursor = tuple[int, int]
"""(transaction number, row id), in this order rows are read that were put since."""


class Reached(NamedTuple):
    """What was read: everything up to the cursor, but what those transactions put that were open then."""

    cursor: Cursor
    open: frozenset[int]


START: Final = Reached((-1, 0), frozenset())


@final
class IdFilter:
    """The ids of one handler's rows, as one server has told them."""

    def __init__(self, *, too_many: bool = False) -> None:
        self.reached: Reached = START
        self.server: datetime.datetime | None = None
        self.page: bytes | None = b""
        """The last id of the pages so far; None once there are no more."""
        self.too_many = too_many
        """Nothing is kept: each id is looked up."""
        self.came_first = False
        """Whatever is handled here came, and was looked up, behind its pages."""
        self._sorted = array("Q")
        self._newer: set[bytes] = set()
        self._places = bytearray()

    @property
    def taken(self) -> int:
        """How many ids are in it, some of them twice."""
        return len(self._sorted) + len(self._newer)

    @property
    def is_worn(self) -> bool:
        """So much was put since the pages were read that they are to be read anew."""
        return len(self._newer) > max(NEWER_MIN, min(len(self._sorted) // 4, NEWER_MAX))

    def add_page(self, ids: bytes, *, there_is_more: bool) -> None:
        """Take up the next ids, one behind the other, in their order."""
        if not self._places:
            large = there_is_more or len(ids) > SMALL_MAX * ID_BYTES
            self._places = bytearray(2**22 if large else 2**13)
        self._mark(ids)
        self._sorted.extend(_numbers(ids))
        self.page = ids[-ID_BYTES:] if there_is_more else None

    def add(self, ids: bytes) -> None:
        """Take up ids that were put since, in any order."""
        self._mark(ids)
        self._newer.update([ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)])

    def suspects(self, ids: Sequence[bytes]) -> list[bytes]:
        """Those that may stand in the table. Of the others none does."""
        if not self._sorted or not ids:
            return self.since(ids)
        at, bits = self._places_of(b"".join(ids))
        marked = map(_EQUAL, map(_AND, itemgetter(*at, 0)(self._places), bits), bits)
        return [event_id for event_id in compress(ids, marked) if self._has(event_id)]

    def since(self, ids: Sequence[bytes]) -> list[bytes]:
        """Those that were put behind the pages, or met: of ids that were looked up behind the pages, no other may stand
        in the table.
        """
        if self._newer.isdisjoint(ids):  # nearly always
            return []
        return [event_id for event_id in ids if event_id in self._newer]

    def _has(self, event_id: bytes) -> bool:
        number = int.from_bytes(event_id[:_NUMBER_BYTES])
        at = bisect_left(self._sorted, number)
        return (at < len(self._sorted) and self._sorted[at] == number) or event_id in self._newer

    def _mark(self, ids: bytes) -> None:
        places = self._places
        for at, bits in zip(*self._places_of(ids), strict=True):
            places[at] |= bits

    def _places_of(self, ids: bytes) -> tuple[array[int], bytes]:
        """Which byte and which bits. Nothing is done to each id in Python: a microsecond more is 3 % of an event."""
        first, words = ids[::ID_BYTES], bytearray(len(ids) // ID_BYTES * 4)
        words[_LOW::4] = ids[1::ID_BYTES]
        if len(self._places) > 2**16:
            words[_MIDDLE::4], words[_HIGH::4] = first, ids[2::ID_BYTES].translate(_SIX_BITS)
        else:
            words[_MIDDLE::4] = first.translate(_FIVE_BITS)
        return array("I", words), ids[3::ID_BYTES].translate(_BITS)


def _numbers(ids: bytes) -> array[int]:
    """The first half of each id, as a number in the order of its bytes."""
    numbers = array("Q", ids)[:: ID_BYTES // _NUMBER_BYTES]
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
