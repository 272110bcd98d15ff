"""Which event ids may stand in the failure table: a filter in memory that has never missed one.

A batch asks for each of its ids whether it stands there, and nearly never one does. With a million rows in the table
5,000 look-ups take a fifth of the batch's time, so they are spared for ids of which a Bloom filter says no: exact, for
it errs on the other side only. It is kept by reading what was put since the last read, in the statement that is sent
anyway. That nothing is ever missed rests on this:

1. A row carries the number of the transaction that put it (`put_xid`). 2. A read sees what was committed before it,
and tells which transactions were open then (its own too, which a snapshot leaves out), and the first number that was
not given out yet. 3. What a later read sees and this one did not was put by one of those. 4. So whoever reads what
those put misses nothing, in whatever order transactions commit. 5. Each answer holds for what was asked by itself: of
reads that are under way at once it does not matter whose answer comes first.

Numbers go back only where another server answers (a standby that was promoted, a backup that was restored), and each
server tells when it was started: then everything is read anew. So it is when the filter is too full. Until a filter has
caught up, every id is looked up. Rows that are done stay in it and cost a look-up each.
"""

from __future__ import annotations

import datetime
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, LiteralString, NamedTuple, final

from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import Tables

SIZES: Final = (2**14, 2**18, 2**22, 2**24)
"""Bytes of a filter: for 1,000 rows, 16,000, 260,000 and a million, of which 16 MB let 1 id in 70 be looked up in vain;
with five million it is 1 in 5."""

FULL: Final = 8
"""A filter is too full when one place in so many is taken: 1 in 64 ids looked up in vain."""

READ_MAX: Final = 20_000
"""Rows read at once while a filter catches up: 10 ms, and 50 batches for a million rows."""

FEW: Final = 500
"""The same for who has no filter to keep (4 KB): what would take longer is looked up."""

_WORDS: Final = 4
"""An id has four words of 32 bits, and is a hash: the first two are its two places in the filter."""

Cursor = tuple[int, int]
"""(transaction number, row id), in this order rows are read."""


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

    def __init__(self, size: int) -> None:
        self.reached: Reached = START
        self.server: datetime.datetime | None = None
        self.taken = 0
        self.taken_when_caught_up: int | None = None
        self._places = bytearray(size)
        self._mask = size - 1

    def add(self, words: bytes) -> None:
        """Take up ids, of which `words` has the first eight bytes each."""
        places, mask = self._places, self._mask
        for word in array("I", words):
            place = word & mask
            if not places[place]:
                places[place] = 1
                self.taken += 1

    def suspects(self, ids: Sequence[bytes]) -> list[bytes]:
        """Those that may stand in the table. Of the others none does."""
        if not self.taken:
            return []
        places, mask = self._places, self._mask
        words = array("I", b"".join(ids))
        pairs = zip(ids, words[::_WORDS], words[1::_WORDS], strict=True)
        return [event_id for event_id, one, other in pairs if places[one & mask] and places[other & mask]]

    def successor(self, more: int, *, there_is_more: bool) -> IdFilter | None:
        """An empty one to read everything into anew, where this one has no room for `more` ids; else None.

        The largest where there is more than was read: how much more nobody has counted. After the largest there is
        another only when it has grown twofold since it caught up: by then half of what is in it may be long done.
        """
        size, full = len(self._places), self.taken + 2 * more
        if full * FULL <= size:
            return None
        if size < SIZES[-1]:
            large = [larger for larger in SIZES if larger >= full * FULL and not there_is_more]
            return IdFilter(min(large, default=SIZES[-1]))
        if self.taken_when_caught_up is None or full <= 2 * self.taken_when_caught_up:
            return None
        return IdFilter(size)


class Asked(NamedTuple):
    """What was read for: the answer counts only for this very filter."""

    filter: IdFilter
    reached: Reached


class Question(NamedTuple):
    """What is asked for each handler, `read_max` rows at most."""

    asked: Mapping[int, Asked]
    read_max: int

    def parameters(self) -> dict[str, object]:
        """Those of `READ`."""
        reached = [one.reached for one in self.asked.values()]
        return {
            "handlers": list(self.asked),
            "xids": [one.cursor[0] for one in reached],
            "rows": [one.cursor[1] for one in reached],
            "open": sorted(frozenset[int]().union(*[one.open for one in reached])),
            "most": self.read_max,
        }


@final
class FailingIds:
    """The filters of a process, one for each handler. Owned by the event loop; any number of reads may be under way."""

    def __init__(self, read_max: int = READ_MAX) -> None:
        self._filters: dict[int, IdFilter] = {}
        self._read_max = read_max

    async def read(
        self, conn: AsyncConnection, t: Tables, handler_ids: Collection[int], *, lock: bool
    ) -> Mapping[int, IdFilter | None]:
        """Catch up, and give the filters that hold whatever this statement saw; None where one is still behind.

        `lock`: the same statement takes the generation lock first.
        """
        question = self.question(handler_ids)
        parameters = {**question.parameters(), **({"key": t.generation_lock} if lock else {})}
        rows = await conn.execute(t.sql((_LOCKED if lock else _UNLOCKED) + READ), parameters)
        return self.take(question, [tuple(row) for row in rows])

    def question(self, handler_ids: Collection[int]) -> Question:
        """What a statement that ends with `READ` is to be asked, now, for these handlers."""
        return Question({handler: self._ask(handler) for handler in sorted(set(handler_ids))}, self._read_max)

    def take(self, question: Question, rows: Iterable[tuple[Any, ...]]) -> dict[int, IdFilter | None]:
        """Take its answer, the rows of `READ`."""
        asked = question.asked
        return {row[0]: self._take(asked[row[0]], _News(*row)) for row in rows if row[0] is not None}

    async def catch_up(self, look: Look, t: Tables, handler_ids: Collection[int]) -> None:
        """Read all that there is, in short transactions, so that no batch has to.

        Where rows carry numbers of another server (of a dump), and are more than one read, that never comes to an end:
        they are left to look-ups.
        """
        for handler in sorted(set(handler_ids)):
            behind = True
            while behind:
                async with look() as conn:
                    behind = (await self.read(conn, t, [handler], lock=False))[handler] is None
                (_, row), _ = reached = self._ask(handler).reached
                if row == 0 and reached != START:
                    break

    def _ask(self, handler: int) -> Asked:
        known = self._filters.setdefault(handler, IdFilter(SIZES[0]))
        return Asked(known, known.reached)

    def _replace(self, handler: int, old: IdFilter, new: IdFilter) -> None:
        """Answers that are under way still go to the old one, for which they were asked."""
        if self._filters[handler] is old:
            self._filters[handler] = new

    def _take(self, asked: Asked, news: _News) -> IdFilter | None:
        known, there_is_more = asked.filter, news.n == self._read_max
        if known.server not in {None, news.server}:
            return self._replace(news.handler, known, IdFilter(SIZES[0]))
        ids = (news.words or b"") + (news.late or b"")
        if (successor := known.successor(len(ids) // 8, there_is_more=there_is_more)) is not None:
            return self._replace(news.handler, known, successor)
        known.server = news.server
        known.add(ids)
        end = (news.next_xid, 0)
        reached = Reached(min((news.last[0], news.last[1]), end) if there_is_more else end, frozenset(news.open))
        if reached.cursor >= known.reached.cursor:
            known.reached = reached
        if there_is_more:
            return None
        if known.taken_when_caught_up is None:
            known.taken_when_caught_up = known.taken
        return known


class _News(NamedTuple):
    """What was put since, as one statement saw it."""

    handler: int
    n: int
    words: bytes | None
    last: list[int]
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

# Stands behind `SELECT` and what else is asked for; `first` is what has to happen before.
#
# A look for the first new row, which the planner does by the index whatever its statistics say, spares the rest where
# there is none. Otherwise a handler without rows might pay for a scan of a table that is full of another's.
READ: Final[LiteralString] = """
           h.handler, f.n, f.words, f.last, late.words, pg_postmaster_start_time(), CAST(s.next AS bigint), s.open
      FROM first
     CROSS JOIN (SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS next,
                        ARRAY(SELECT CAST(CAST(pg_snapshot_xip(pg_current_snapshot()) AS text) AS bigint)
                               UNION ALL SELECT CAST(CAST(own AS text) AS bigint)
                                  FROM pg_current_xact_id_if_assigned() own WHERE own IS NOT NULL) AS open) s
      LEFT JOIN unnest(CAST(:handlers AS bigint[]), CAST(:xids AS bigint[]), CAST(:rows AS bigint[]))
                h (handler, xid, row) ON true
      LEFT JOIN LATERAL
           (SELECT true AS there FROM {failure} WHERE handler = h.handler AND (put_xid, id) > (h.xid, h.row)
             ORDER BY handler, put_xid, id LIMIT 1) new ON true
      LEFT JOIN LATERAL
           (SELECT count(*) AS n, string_agg(substr(event_id, 1, 8), '') AS words, max(ARRAY[put_xid, id]) AS last
              FROM (SELECT event_id, put_xid, id FROM {failure}
                     WHERE new.there AND handler = h.handler AND (put_xid, id) > (h.xid, h.row)
                     ORDER BY handler, put_xid, id LIMIT CAST(:most AS int)) those) f ON true
      LEFT JOIN LATERAL
           (SELECT string_agg(substr(event_id, 1, 8), '') AS words
              FROM unnest(CAST(:open AS bigint[])) o (xid)
             CROSS JOIN LATERAL (SELECT event_id FROM {failure} WHERE handler = h.handler AND put_xid = o.xid OFFSET 0)
                   those) late ON true
"""
