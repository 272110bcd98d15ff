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

Of a command it is asked twice: when it comes (`claim.advise`), and when its group completes it. What a worker handles
came behind the pages of its first filter, and was asked for then. So the group asks only for what was put behind the
pages, or was met by such a look-up. Not everything came behind the pages of a later filter: of that all is asked again.

Numbers go back only where another server answers (a standby that was promoted, a backup that was restored), and each
server tells when it was started: then everything is read anew. So it is when much was put since. Until a filter has
caught up, every id is looked up. Rows that are done stay in it and cost a look-up each.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, LiteralString, NamedTuple, final

from sqlalchemy.ext.asyncio import AsyncConnection

from .id_filter import IdFilter, Reached
from .tables import Tables

READ_MAX: Final = 50_000
"""Rows read at once: 10 ms, and 20 reads for a million rows."""

FEW: Final = 500
"""The same for who has no filter to keep (8 KB): what would take longer is looked up."""

KEPT_MAX: Final = 5_000_000
"""Ids of one handler that are kept, at eight bytes: 40 MB. Of more each is looked up, which costs time, not memory."""

Look = Callable[[], AbstractAsyncContextManager[AsyncConnection]]
"""Opens a transaction in which nothing is written."""


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
        self._catching_up: set[int] = set()

    async def read(
        self, conn: AsyncConnection, t: Tables, handler_ids: Collection[int], *, lock: bool, catching_up: bool = False
    ) -> Mapping[int, IdFilter | None]:
        """Learn what is new, and give the filters that hold whatever these statements saw; None where one is behind.

        `lock`: the first statement takes the generation lock first. Where all pages were read, or `catch_up` reads them
        meanwhile, there is one statement.
        """
        question = self.question(handler_ids)
        behind = {h: one for h, one in question.pages().items() if catching_up or h not in self._catching_up}
        rows: list[tuple[Any, ...]] = []
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
        self._catching_up |= behind
        try:
            while behind:
                async with look() as conn:
                    answers = await self.read(conn, t, behind, lock=False, catching_up=True)
                behind = {h for h, known in answers.items() if known is None and not self._ask(h).filter.too_many}
        finally:
            self._catching_up.difference_update(handler_ids)

    def nothing_came_yet(self) -> None:
        """Whatever will be handled here has still to be looked up."""
        for known in self._filters.values():
            known.came_first = known.page is None

    def met(self, handler: int, event_id: bytes) -> None:
        """A look-up found this id in the table."""
        if (known := self._filters.get(handler)) is not None and known.came_first:
            known.add(event_id)

    def suspects(self, handler: int, ids: Sequence[bytes]) -> Sequence[bytes]:
        """Those of `ids`, which were looked up when they came, that may stand in the table by the filter as it is; what
        was put since it was read is news.
        """
        known = self._filters.get(handler)
        if known is None or known.page is not None:
            return ()
        return known.since(ids) if known.came_first else known.suspects(ids)

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
        known, there_is_more = asked.filter, page.n == self._read_max
        if known.server not in {None, page.server}:
            return self._replace(page.handler, known, IdFilter())
        if known.page != asked.page:
            return None  # another read had the same page
        if asked.page == b"":
            known.server, known.reached = page.server, Reached((page.next_xid, 0), frozenset(page.open))
        known.add_page(page.ids or b"", there_is_more=there_is_more)
        if known.taken > self._kept_max:
            return self._replace(page.handler, known, IdFilter(too_many=True))
        return known if asked.page == b"" and not there_is_more else None

    def _take(self, asked: Asked, news: _News) -> IdFilter | None:
        known, there_is_more = asked.filter, news.n == self._read_max
        if known.server != news.server or news.late_n >= self._read_max:
            return self._replace(news.handler, known, IdFilter())
        known.add((news.ids or b"") + (news.late or b""))
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
    ids: bytes | None
    server: datetime.datetime
    next_xid: int
    open: list[int]


class _News(NamedTuple):
    """What was put since, as one statement saw it."""

    handler: int
    n: int
    ids: bytes | None
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
    SELECT h.handler, f.n, f.ids, pg_postmaster_start_time(),
           CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint),
           ARRAY(SELECT CAST(CAST(pg_snapshot_xip(pg_current_snapshot()) AS text) AS bigint)
                  UNION ALL SELECT CAST(CAST(own AS text) AS bigint)
                     FROM pg_current_xact_id_if_assigned() own WHERE own IS NOT NULL)
      FROM unnest(CAST(:handlers AS bigint[]), CAST(:pages AS bytea[])) h (handler, page)
      LEFT JOIN LATERAL
           (SELECT true AS there FROM {failure} WHERE handler = h.handler AND event_id > h.page
             ORDER BY handler, event_id LIMIT 1) one ON true
     CROSS JOIN LATERAL
           (SELECT count(*) AS n, string_agg(event_id, '' ORDER BY event_id) AS ids
              FROM (SELECT event_id FROM {failure} WHERE one.there AND handler = h.handler AND event_id > h.page
                     ORDER BY handler, event_id LIMIT CAST(:most AS int)) those) f
"""

# Stands behind `SELECT` and what else is asked for; `first` is what has to happen before. Rows that carry higher
# numbers than the server has given out came from a dump: the pages had them.
READ: Final[LiteralString] = """
           h.handler, f.n, f.ids, f.last, late.n, late.ids,
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
           (SELECT count(*) AS n, string_agg(event_id, '') AS ids, max(ARRAY[put_xid, id]) AS last
              FROM (SELECT event_id, put_xid, id FROM {failure}
                     WHERE new.there AND handler = h.handler AND (put_xid, id) > (h.xid, h.row)
                       AND put_xid < CAST(s.next AS bigint)
                     ORDER BY handler, put_xid, id LIMIT CAST(:most AS int)) those) f ON true
      LEFT JOIN LATERAL
           (SELECT count(*) AS n, string_agg(those.event_id, '') AS ids
              FROM unnest(CAST(:open AS bigint[])) o (xid)
             CROSS JOIN LATERAL
                   (SELECT true AS there FROM {failure} WHERE handler = h.handler AND put_xid = o.xid
                     ORDER BY handler, put_xid, id LIMIT 1) one
             CROSS JOIN LATERAL
                   (SELECT event_id FROM {failure} WHERE one.there AND handler = h.handler AND put_xid = o.xid
                     ORDER BY handler, put_xid, id LIMIT CAST(:most AS int)) those) late ON true
"""
