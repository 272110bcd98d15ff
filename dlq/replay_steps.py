"""A step of a replay by filter: letters of which no guard has a word to say are numbers only, the others are looked at.

Of a hundred thousand letters nearly all are alike: dead, neither repaired nor forced before, their events not claimed.
What guards ask of those is the same for many of them (their handler's version, their tenant), so they come in herds, as
the numbers of their rows, and this process does next to nothing for each. `is_plain` may say no too often, never yes:
what it leaves out goes the way of `replay_rows`, one by one. Both are queued by one statement, in the order of their
ids. What if a row changes between the look and that statement? It does not come back, and counts as changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, claim, failure
from ..inbox.outcome import FailureState
from ..inbox.tables import Tables
from .permission import shared_place
from .reach import Reach
from .replay_journal import Counts, Run
from .replay_order import CHANGED, REPLAYS_MAX, Left, Obstacle, Order, kind_obstacle
from .replay_rows import REPLAY, audit_line, due_now, identify, judged, known_of
from .selection import Entry, Filter, joined, numbered, page_of


class Herd(NamedTuple):
    """Letters that are alike in all that is asked of many at once; an id that they do not share is empty."""

    consumer: str
    handler: str
    version: int
    tenant: str | None
    brand: str | None
    replay_count: int
    alone: bool
    plain: bool
    correlation_id: str
    operation_id: str
    ids: Sequence[int]
    row_versions: Sequence[int]

    def obstacle(self, order: Order) -> Obstacle | None:
        """What is in the way of all of them."""
        return kind_obstacle(self.consumer, self.handler, self.version, self.tenant, order)


class _Page(NamedTuple):
    herds: list[Herd]
    position: int
    more: bool


def takes(order: Order) -> bool:
    """Whether this is the way for an order: by filter, to be queued as it is."""
    return order.filter is not None and not (order.dry_run or order.new_operation or order.to_source is not None)


async def step(
    conn: AsyncConnection, t: Tables, order: Order, run: Run, rows_max: int, within: Reach
) -> tuple[Counts, dict[int, int]]:
    """The next letters of a run (lock order 2, 6 and 7); what they came to, and the rows that were queued.

    These with their replay counts, as they are now.
    """
    assert order.filter is not None, "an order for this way has one"
    page = await _read(conn, t, order.filter, run, rows_max, within)
    plain, left, others = _sorted_out(page.herds, order)
    found = await numbered(conn, t, others)
    known = await known_of(conn, t, found)
    fit, stopped = judged(found, known, order)
    left.update(Obstacle(refusal.cause, refusal.left) for refusal in stopped)
    done = await _queue(conn, t, plain, fit)
    replayed = [entry for entry in fit if entry.id in done]
    await identify(conn, t, replayed, known, order)
    if changed := sum(len(herd.ids) for herd in plain) + len(fit) - len(done):
        left[CHANGED] += changed
    ids, lefts = sorted(done), _by_kind(left)
    if ids or left:
        things = [*(herd for herd in plain if not done.isdisjoint(herd.ids)), *replayed]
        place = (await numbered(conn, t, ids))[0].place if len(ids) == 1 else shared_place(things)
        await audit.write(conn, t, audit_line(REPLAY, order, run.id, place, ids, lefts))
    causes = {obstacle.cause: n for obstacle, n in left.items()}
    wanted = {entry.id: entry.replay_count + 1 for entry in fit}
    for herd in plain:
        wanted.update(dict.fromkeys(herd.ids, herd.replay_count + 1))
    counts = Counts(len(ids), lefts[Left.SKIPPED], lefts[Left.REFUSED], causes, page.position, page.more)
    return counts, {number: wanted[number] for number in ids}


def _by_kind(left: Counter[Obstacle]) -> Counter[Left]:
    lefts = Counter[Left]()
    for obstacle, n in left.items():
        lefts[obstacle.left] += n
    return lefts


def _sorted_out(herds: Sequence[Herd], order: Order) -> tuple[list[Herd], Counter[Obstacle], list[int]]:
    """Herds that are queued as they are, how many letters of others have what in their way, and whom to look at."""
    plain: list[Herd] = []
    left = Counter[Obstacle]()
    others: list[int] = []
    for herd in herds:
        if not herd.plain:
            others += herd.ids
        elif (obstacle := herd.obstacle(order)) is not None:
            left[obstacle] += len(herd.ids)
        else:
            plain.append(herd)
    return plain, left, others


async def _queue(conn: AsyncConnection, t: Tables, plain: Sequence[Herd], fit: Sequence[Entry]) -> frozenset[int]:
    """Lock order 2 and 6: all of them in one statement. Letters that are alone are in no lane that is to be locked."""
    looked_at = [(entry.id, entry.row_version) for entry in fit]
    alone = [pair for herd in plain if herd.alone for pair in zip(herd.ids, herd.row_versions, strict=True)]
    in_lanes = [pair for herd in plain if not herd.alone for pair in zip(herd.ids, herd.row_versions, strict=True)]
    locked = await failure.lock_lanes(conn, t, in_lanes + looked_at)
    return await failure.requeue(conn, t, alone + in_lanes + looked_at, await due_now(conn), locked=locked)


async def _read(conn: AsyncConnection, t: Tables, wanted: Filter, run: Run, rows_max: int, within: Reach) -> _Page:
    """The letters behind the run's position, `rows_max` at most, and whether there are more."""
    asked = page_of(t, wanted, within, run.position, run.bound)
    herds = [Herd(*row) for row in await conn.execute(_herds(t, asked, rows_max + 1))]
    more = sum(len(herd.ids) for herd in herds) > rows_max
    if more:
        last = max(herds, key=lambda herd: herd.ids[-1])
        herds[herds.index(last)] = last._replace(ids=last.ids[:-1], row_versions=last.row_versions[:-1])
    herds = [herd for herd in herds if herd.ids]
    return _Page(herds, max((herd.ids[-1] for herd in herds), default=run.position), more)


def _herds(t: Tables, asked: Sequence[sa.ColumnElement[bool]], limit: int) -> sa.Select[*tuple[Any, ...]]:
    f, h = t.failure.c, t.handler.c
    rows = (
        sa.select(
            *(f[name] for name in _READ), h.consumer, h.name.label("handler"), is_plain(t).label("plain")
        )
        .select_from(joined(t)).where(*asked).order_by(f.id).limit(limit).subquery("page")
    )  # fmt: skip
    c = rows.c
    alike = [c.consumer, c.handler, c.version, c.tenant, c.brand, c.replay_count, c.alone, c.plain]
    told = [_shared(c.correlation_id), _shared(c.operation_id), _in_order(c.id, c.id), _in_order(c.row_version, c.id)]
    return sa.select(*alike, *told).group_by(*alike)


_READ: Final = (
    *("id", "row_version", "version", "tenant", "brand", "replay_count", "alone", "correlation_id", "operation_id"),
)


def is_plain(t: Tables) -> sa.ColumnElement[bool]:
    """Letters in whose own columns, and among whose claims, there is nothing that a guard asks for."""
    f = t.failure.c
    return sa.and_(
        f.state == FailureState.DEAD.value,
        f.replay_count < REPLAYS_MAX,
        f.redacted_at.is_(None),
        f.edit_id.is_(None),
        f.attempt_id.is_(None),
        sa.not_(claim.is_claimed(t, f.handler, f.version, f.event_id)),
    )


def _shared(text: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    lowest, highest = sa.func.min(text.collate("C")), sa.func.max(text.collate("C"))
    return sa.case((lowest == highest, lowest), else_="")


def _in_order(number: sa.ColumnElement[int], by: sa.ColumnElement[int]) -> sa.ColumnElement[Any]:
    return sa.func.array_agg(aggregate_order_by(number, by))
