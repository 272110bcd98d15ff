"""Which event ids may stand in the failure table: a filter in memory that has never missed one.

A batch asks for each of its ids whether it stands there, and nearly never one does. With a million rows in the table
5,000 look-ups take a fifth of the batch's time, so they are spared for ids of which a filter says no: exact, for it
errs on the other side only. First the ids are read once, page by page in their own order, so that they come sorted out
of an index and nothing is done to each of them here; from then on what was put since the last read, in the statement
that is sent anyway. That nothing is ever missed rests on this:

1. A row carries the number of the transaction that put it (`put_xid`). 2. A read sees what was committed before it,
and tells which transactions were open then (its own too, which a snapshot leaves out), and the first number that was
not given out yet. 3. What a later read sees and this one did not was put by one of those. 4. So whoever reads what
those put misses nothing, in whatever order transactions commit. 5. Of the pages the first one tells: what it could have
seen, had it been all in one, the later pages see too. 6. Each answer holds for what was asked by itself: of reads that
are under way at once it does not matter whose answer comes first.

Numbers go back only where another server answers (a standby that was promoted, a backup that was restored), and each
server tells when it was started: then everything is read anew. So it is when much was put since. Until a filter has
caught up, every id is looked up. Rows that are done stay in it and cost a look-up each.
"""

from __future__ import annotations

import datetime
import sys
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import compress, repeat
from typing import Any, Final, LiteralString, NamedTuple, final

from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import Tables

READ_MAX: Final = 50_000
"""Rows read at once: 20 ms, and 20 reads for a million rows."""

FEW: Final = 500
"""The same for who has no filter to keep (2 KB): what would take longer is looked up."""

KEPT_MAX: Final = 10_000_000
"""Ids of one handler that are kept, four bytes each: 40 MB. Of more each is looked up, which costs time, not memory."""

NEWER_MIN, NEWER_MAX = 10_000, 250_000
"""Ids put since that begin a new filter, at least and at most: they stand in a set, at some 64 bytes each, and what was
done meanwhile leaves with the old filter. In between it is a quarter of what was sorted, so that reading anew costs
four times what was put."""

SMALL_MAX: Final = 4_000
"""So many ids mark the places of their first two bytes (64 KiB), more of them those of their first three (16 MiB). With
4,000, and with a million, one stranger in 16 is at a marked place and searched for, which takes five times as long."""

_WORD_BYTES: Final = 4
_ID_WORDS: Final = 4
"""Of an id, which is a hash, the first word of four bytes is kept: it tells a stranger from a million others but once
in 4,000 times."""

_UPPER: Final = (3, 2) if sys.byteorder == "little" else (0, 1)
"""The bytes of a word that are left out of its place, one or both."""

Cursor = tuple[int, int]
"""(transaction number, row id), in this order rows are read that were put since."""


class Reached(NamedTuple):
    """What was read: everything up to the cursor, but what those transactions put that were open then."""

    cursor: Cursor
    open: frozenset[int]


START: Final = Reached((-1, 0), frozenset())

Look = Callable[[], AbstractAsyncContextManager[AsyncConnection]]
"""Opens a transaction in which nothing is written."""


@final
class IdFilter:
    """The ids of one handler's rows, as one server has told them. No IO."""

    def __init__(self, *, too_many: bool = False) -> None:
        self.reached: Reached = START
        self.server: datetime.datetime | None = None
        self.page: bytes | None = b""
        """The last id of the pages so far; None once there are no more."""
        self.too_many = too_many
        """Nothing is kept: each id is looked up."""
        self._sorted = array("I")
        self._newer: set[int] = set()
        self._places = bytearray()
        self._left_out: Sequence[int] = _UPPER

    @property
    def taken(self) -> int:
        """How many ids are in it, some of them twice."""
        return len(self._sorted) + len(self._newer)

    @property
    def is_worn(self) -> bool:
        """So much was put since the pages were read that they are to be read anew."""
        return len(self._newer) > max(NEWER_MIN, min(len(self._sorted) // 4, NEWER_MAX))

    def add_page(self, words: bytes, last: bytes | None) -> None:
        """Take up the next ids in their order: of each the first four bytes. `last` is None behind the last page."""
        if not self._places:
            large = last is not None or len(words) > SMALL_MAX * _WORD_BYTES
            self._places = bytearray(2**24 if large else 2**16)
            self._left_out = _UPPER[:1] if large else _UPPER
        self._sorted.extend(_numbers(self._mark(words)))
        self.page = last

    def add(self, words: bytes) -> None:
        """Take up ids that were put since, in any order."""
        self._newer.update(_numbers(self._mark(words)))

    def suspects(self, ids: Sequence[bytes]) -> list[bytes]:
        """Those that may stand in the table. Of the others none does."""
        if not self.taken:
            return []
        words = array("I", b"".join(ids))[::_ID_WORDS]
        marked = map(self._places.__getitem__, self._places_of(words))
        return [event_id for event_id, n in compress(zip(ids, _numbers(words), strict=True), marked) if self._has(n)]

    def _has(self, number: int) -> bool:
        at = bisect_left(self._sorted, number)
        return (at < len(self._sorted) and self._sorted[at] == number) or number in self._newer

    def _mark(self, data: bytes) -> array[int]:
        words = array("I", data)
        deque(map(self._places.__setitem__, self._places_of(words), repeat(1)), maxlen=0)  # a loop takes twice as long
        return words

    def _places_of(self, words: array[int]) -> array[int]:
        """Nothing is done to each word here, nor in what goes through them: a microsecond more is 3 % of an event."""
        places, nothing = bytearray(words), bytes(len(words))
        for at in self._left_out:
            places[at::_WORD_BYTES] = nothing
        return array("I", places)


def _numbers(words: array[int]) -> array[int]:
    """Words as numbers in the order of their bytes."""
    numbers = words[:]
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


class Asked(NamedTuple):
    """What was read for: the answer counts only for this very filter."""

    filter: IdFilter
    reached: Reached
    page: bytes | None


class ReadUpTo(NamedTuple):
    """News of a handler are rows behind (`xid`, `row`), and those of the transactions that were `open` then."""

    handler_id: int
    xid: int
    row: int
    server: datetime.datetime | None
    """Whose numbers these are; None while the filter says nothing, because it is behind or each id is looked up."""
    open: frozenset[int]

    @classmethod
    def of(cls, handler_id: int, asked: Asked) -> ReadUpTo:
        """As far as the filter has come."""
        (xid, row), still_open = asked.reached
        return cls(handler_id, xid, row, asked.filter.server if asked.page is None else None, still_open)


class Question(NamedTuple):
    """What is asked for each handler, `read_max` rows at most."""

    asked: Mapping[int, Asked]
    read_max: int

    def parameters(self) -> dict[str, object]:
        """Those of `READ`, which asks for nothing where pages are still to be read."""
        asked = {handler: one.reached for handler, one in self.asked.items() if one.page is None}
        return {
            "handlers": list(asked),
            "xids": [one.cursor[0] for one in asked.values()],
            "rows": [one.cursor[1] for one in asked.values()],
            "open": sorted(frozenset[int]().union(*[one.open for one in asked.values()])),
            "most": self.read_max,
        }

    def pages(self) -> dict[int, Asked]:
        """Those whose next page is to be read."""
        return {h: one for h, one in self.asked.items() if one.page is not None and not one.filter.too_many}


@final
class FailingIds:
    """The filters of a process, one for each handler. Owned by the event loop; any number of reads may be under way."""

    def __init__(self, read_max: int = READ_MAX, kept_max: int = KEPT_MAX) -> None:
        self._filters: dict[int, IdFilter] = {}
        self._read_max = read_max
        self._kept_max = kept_max

    async def read(
        self, conn: AsyncConnection, t: Tables, handler_ids: Collection[int], *, lock: bool
    ) -> Mapping[int, IdFilter | None]:
        """Catch up, and give the filters that hold whatever these statements saw; None where one is still behind.

        `lock`: the first statement takes the generation lock first. Where all pages were read there is one statement.
        """
        question = self.question(handler_ids)
        behind, rows = question.pages(), list[tuple[Any, ...]]()
        if lock or len(behind) < len(question.asked):
            key = {"key": t.generation_lock} if lock else {}
            read = await conn.execute(t.sql((_LOCKED if lock else _UNLOCKED) + READ), {**question.parameters(), **key})
            rows = [tuple(row) for row in read]
        answers = self.take(question, rows)
        if behind:
            pages = {"handlers": list(behind), "pages": [one.page for one in behind.values()], "most": self._read_max}
            for row in await conn.execute(t.sql(_PAGES), pages):
                answers[row[0]] = self._take_page(behind[row[0]], _Page(*row))
        return answers

    def question(self, handler_ids: Collection[int]) -> Question:
        """What a statement that ends with `READ` is to be asked, now, for these handlers."""
        return Question({handler: self._ask(handler) for handler in sorted(set(handler_ids))}, self._read_max)

    def take(self, question: Question, rows: Iterable[tuple[Any, ...]]) -> dict[int, IdFilter | None]:
        """Take its answer, the rows of `READ`."""
        asked = question.asked
        answers: dict[int, IdFilter | None] = dict.fromkeys(asked)
        answers.update({row[0]: self._take(asked[row[0]], _News(*row)) for row in rows if row[0] is not None})
        return answers

    async def catch_up(self, look: Look, t: Tables, handler_ids: Collection[int]) -> None:
        """Read whatever the filters are behind by, in short transactions, so that no batch has to."""
        behind = set(handler_ids)
        while behind:
            async with look() as conn:
                answers = await self.read(conn, t, behind, lock=False)
            behind = {h for h, known in answers.items() if known is None and not self._ask(h).filter.too_many}

    def suspects(self, handler: int, ids: Sequence[bytes]) -> Sequence[bytes]:
        """Those of `ids` that are in the filter as it stands; what was put since it was read is news."""
        known = self._filters.get(handler)
        return () if known is None or known.page is not None else known.suspects(ids)

    def read_up_to(self, handler_ids: Collection[int]) -> list[ReadUpTo]:
        """How far the filters of these handlers have come: a statement that looks at the news itself needs no more."""
        return [ReadUpTo.of(handler, self._ask(handler)) for handler in handler_ids]

    def _ask(self, handler: int) -> Asked:
        known = self._filters.setdefault(handler, IdFilter())
        return Asked(known, known.reached, known.page)

    def _replace(self, handler: int, old: IdFilter, new: IdFilter) -> None:
        """Answers that are under way still go to the old one, for which they were asked."""
        if self._filters[handler] is old:
            self._filters[handler] = new

    def _take_page(self, asked: Asked, page: _Page) -> IdFilter | None:
        """A page that is all holds what its statement saw. Behind more of them what was put since the first is due."""
        known, is_last = asked.filter, page.n < self._read_max
        if known.server not in {None, page.server}:
            return self._replace(page.handler, known, IdFilter())
        if known.page != asked.page:
            return None  # another read had the same page
        if asked.page == b"":
            known.server, known.reached = page.server, Reached((page.next_xid, 0), frozenset(page.open))
        known.add_page(page.words or b"", None if is_last else page.last)
        if known.taken > self._kept_max:
            return self._replace(page.handler, known, IdFilter(too_many=True))
        return known if is_last and asked.page == b"" else None

    def _take(self, asked: Asked, news: _News) -> IdFilter | None:
        known, there_is_more = asked.filter, news.n == self._read_max
        if known.server != news.server or news.late_n >= self._read_max:
            return self._replace(news.handler, known, IdFilter())
        known.add((news.words or b"") + (news.late or b""))
        end = (news.next_xid, 0)
        cursor = (news.last[0], news.last[1]) if there_is_more else end
        if cursor >= known.reached.cursor:
            known.reached = Reached(cursor, frozenset(news.open))
        if known.is_worn:
            self._replace(news.handler, known, IdFilter())
        return None if there_is_more else known


class _Page(NamedTuple):
    """The next ids of a handler's rows, as one statement saw them."""

    handler: int
    n: int
    words: bytes | None
    last: bytes | None
    server: datetime.datetime
    next_xid: int
    open: list[int]


class _News(NamedTuple):
    """What was put since, as one statement saw it."""

    handler: int
    n: int
    words: bytes | None
    last: list[int]
    late_n: int
    late: bytes | None
    """Of transactions that were open at the read before."""
    server: datetime.datetime
    next_xid: int
    open: list[int]


_LOCKED: Final[LiteralString] = """
    WITH first AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(:key)) SELECT
"""
_UNLOCKED: Final[LiteralString] = """
    WITH first AS MATERIALIZED (SELECT 1) SELECT
"""

# Each read of rows stands behind a look for the first of them, which the planner does by the index whatever its
# statistics say, and has an ORDER BY and a LIMIT that it does best by the index too. Otherwise a handler without rows
# might pay for a scan of a table that is full of another's, or each read for one where all rows were put at once (a
# million put by one transaction made every read take a tenth of a second).
_PAGES: Final[LiteralString] = """
    SELECT h.handler, f.n, f.words, f.last, pg_postmaster_start_time(),
           CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint),
           ARRAY(SELECT CAST(CAST(pg_snapshot_xip(pg_current_snapshot()) AS text) AS bigint)
                  UNION ALL SELECT CAST(CAST(own AS text) AS bigint)
                     FROM pg_current_xact_id_if_assigned() own WHERE own IS NOT NULL)
      FROM unnest(CAST(:handlers AS bigint[]), CAST(:pages AS bytea[])) h (handler, page)
      LEFT JOIN LATERAL
           (SELECT true AS there FROM {failure} WHERE handler = h.handler AND event_id > h.page
             ORDER BY handler, event_id LIMIT 1) one ON true
     CROSS JOIN LATERAL
           (SELECT count(*) AS n, string_agg(substr(event_id, 1, 4), '' ORDER BY event_id) AS words,
                   substr(string_agg(event_id, '' ORDER BY event_id), CAST(16 * count(*) - 15 AS int)) AS last
              FROM (SELECT event_id FROM {failure} WHERE one.there AND handler = h.handler AND event_id > h.page
                     ORDER BY handler, event_id LIMIT CAST(:most AS int)) those) f
"""

# Stands behind `SELECT` and what else is asked for; `first` is what has to happen before. Rows that carry higher
# numbers than the server has given out came from a dump: the pages had them.
READ: Final[LiteralString] = """
           h.handler, f.n, f.words, f.last, late.n, late.words,
           pg_postmaster_start_time(), CAST(s.next AS bigint), s.open
      FROM first
     CROSS JOIN (SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS next,
                        ARRAY(SELECT CAST(CAST(pg_snapshot_xip(pg_current_snapshot()) AS text) AS bigint)
                               UNION ALL SELECT CAST(CAST(own AS text) AS bigint)
                                  FROM pg_current_xact_id_if_assigned() own WHERE own IS NOT NULL) AS open) s
      LEFT JOIN unnest(CAST(:handlers AS bigint[]), CAST(:xids AS bigint[]), CAST(:rows AS bigint[]))
                h (handler, xid, row) ON true
      LEFT JOIN LATERAL
           (SELECT true AS there FROM {failure} WHERE handler = h.handler AND (put_xid, id) > (h.xid, h.row)
                                                  AND put_xid < CAST(s.next AS bigint)
             ORDER BY handler, put_xid, id LIMIT 1) new ON true
      LEFT JOIN LATERAL
           (SELECT count(*) AS n, string_agg(substr(event_id, 1, 4), '') AS words, max(ARRAY[put_xid, id]) AS last
              FROM (SELECT event_id, put_xid, id FROM {failure}
                     WHERE new.there AND handler = h.handler AND (put_xid, id) > (h.xid, h.row)
                       AND put_xid < CAST(s.next AS bigint)
                     ORDER BY handler, put_xid, id LIMIT CAST(:most AS int)) those) f ON true
      LEFT JOIN LATERAL
           (SELECT count(*) AS n, string_agg(substr(those.event_id, 1, 4), '') AS words
              FROM unnest(CAST(:open AS bigint[])) o (xid)
             CROSS JOIN LATERAL
                   (SELECT true AS there FROM {failure} WHERE handler = h.handler AND put_xid = o.xid
                     ORDER BY handler, put_xid, id LIMIT 1) one
             CROSS JOIN LATERAL
                   (SELECT event_id FROM {failure} WHERE one.there AND handler = h.handler AND put_xid = o.xid
                     ORDER BY handler, put_xid, id LIMIT CAST(:most AS int)) those) late ON true
"""
