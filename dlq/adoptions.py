"""Replays out of a dead-letter topic: letters whose rows are gone come back into the inbox, once each.

The topic's ends are read at the start and never passed, so that what dies again meanwhile is not read in the same run.
A step is one transaction: rows, audit line, counts and the next offset. What if it is killed between two? The next one
begins where the last commit stands. What if two put back the same letter? They take turns (a lock for each consumer),
and the second one finds the row, or the claim. Which letters these are is decided in `adopting`; the inbox then
answers: claimed, it was handled; a row there, it is replayed there; older than the oldest claims kept, nobody knows.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import audit, births, claim, failure
from ..inbox.audit import AuditLine
from ..inbox.event import Partition, Record
from ..inbox.identity import attempt_id16
from ..inbox.safe_text import Detail
from ..inbox.store import Store
from ..inbox.tables import Tables, advisory_key
from . import replay_journal as journal
from .adopting import STANDS, TOO_OLD, Candidate, MakeEvent, Passed, Target, judge
from .permission import Act, Permit, ask_verb, common_place
from .replay_journal import Part, Run
from .replay_order import DONE, Left, Obstacle, Order
from .replay_rows import REPLAY
from .replays import AT_ONCE, Pace, Plan, Told, nobody

RECORDS_MAX: Final = 500
"""Letters in one transaction: at a megabyte each, more would not fit into memory."""


class Stretch(Protocol):
    """Consecutive records of a partition; `next_offset` is the position behind them, over any gap."""

    @property
    def records(self) -> tuple[Record, ...]:
        """In their order."""
        ...

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        ...

    @property
    def at_end(self) -> bool:
        """There is nothing behind them now."""
        ...


class Reader(Protocol):
    """Reads a partition beside any group."""

    async def read(self, partition: Partition, offset: int, records_max: int) -> Stretch:
        """The next records, at least one unless it is the end."""
        ...


class _Judged(NamedTuple):
    fit: list[Candidate]
    left: list[Passed]


@final
@dataclass(frozen=True, slots=True)
class Adoptions:
    """The service, for one target. `make` is the consumer's own intake."""

    store: Store
    reader: Reader
    target: Target
    make: MakeEvent
    now: Callable[[], datetime.datetime]
    permit: Permit
    wanted: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a resumed run needs to find its target again."""

    async def plan(self, order: Order, parts: Sequence[Part]) -> Plan:
        """A dry run of all of it."""
        await self._ask(order)
        plan = Plan()
        for part in parts:
            next_offset = part.next_offset
            while next_offset < part.end_offset:
                judged, next_offset = await self._read(order, part._replace(next_offset=next_offset))
                async with self.store.look() as conn:
                    _tell(plan, await self._answers(conn, judged, order))
        return plan

    async def start(self, order: Order, parts: Sequence[Part]) -> Run:
        """Write down what is to be done, with the ends."""
        await self._ask(order)
        t = self.store.tables
        async with self.store.transaction() as conn:
            run = await journal.open_run(conn, t, journal.TOPIC, order, self.wanted)
            await journal.put_parts(conn, t, run.id, parts)
            return run

    async def parts(self, run_id: int) -> list[Part]:
        """Where a run stands in each partition."""
        async with self.store.look() as conn:
            return await journal.parts_of(conn, self.store.tables, run_id)

    async def go_on(self, run_id: int, actor: str, pace: Pace = AT_ONCE, told: Told = nobody) -> Run:
        """Do what is left of a run. A rate counts letters that are read."""
        async with self.store.look() as conn:
            run = await journal.get(conn, self.store.tables, run_id)
        await self._ask(journal.resumed(run.order, actor))
        started_s, before = time.monotonic(), run.read
        while run.ended_at is None:
            run = await self.step(run_id, actor, pace.rows_max)
            told(run)
            await asyncio.sleep(pace.pause_s(run.read - before, time.monotonic() - started_s))
        return run

    async def step(self, run_id: int, actor: str, records_max: int = RECORDS_MAX) -> Run:
        """The next letters, in one transaction; what was read meanwhile by another who resumed is read again."""
        t = self.store.tables
        async with self.store.look() as conn:
            run, parts = await journal.get(conn, t, run_id), await journal.parts_of(conn, t, run_id)
        open_parts = [part for part in parts if part.next_offset < part.end_offset]
        order = journal.resumed(run.order, actor)
        part = open_parts[0] if open_parts else None
        judged, next_offset = (_Judged([], []), 0) if part is None else await self._read(order, part, records_max)
        async with self.store.transaction() as conn:
            run = await journal.get(conn, t, run_id, lock=True)
            if run.ended_at is not None or part not in [None, *await journal.parts_of(conn, t, run_id)]:
                return run
            await conn.execute(
                sa.select(sa.func.pg_advisory_xact_lock(advisory_key(t.schema, f"adopt/{self.target.consumer}")))
            )
            answered = await self._answers(conn, judged, order)
            queued = await self._put(conn, answered.fit, order)
            if part is not None:
                await journal.move_part(conn, t, run_id, part.partition, next_offset)
            counts = _counts(run, answered, more=_more(open_parts, part, next_offset))
            if judged.fit or judged.left:
                await audit.write(conn, t, _line(self.target, order, run, answered, counts, sorted(queued)))
            return await journal.advance(conn, t, run, counts, queued)

    async def _read(self, order: Order, part: Part, records_max: int = RECORDS_MAX) -> tuple[_Judged, int]:
        """Letters of the partition, none behind the end at the start, and none beyond the asker's reach."""
        stretch = await self.reader.read(part.partition, part.next_offset, min(records_max, RECORDS_MAX))
        fit: list[Candidate] = []
        left: list[Passed] = []
        for record in stretch.records:
            found = None if record.offset >= part.end_offset else judge(record, self.target, order, self.make)
            if found is None or not self.permit(order.actor, REPLAY, found.place):
                continue
            if isinstance(found, Passed):
                left.append(found)
            else:
                fit.append(found)
        return _Judged(fit, left), part.end_offset if stretch.at_end else min(stretch.next_offset, part.end_offset)

    async def _ask(self, order: Order) -> None:
        """As of any filter: whether they may replay anywhere; what lies beyond their reach is not read for them."""
        await ask_verb(self.store, self.permit, Act(REPLAY, order.actor, order.reason))

    async def _answers(self, conn: AsyncConnection, judged: _Judged, order: Order) -> _Judged:
        """What the inbox says to the candidates. A plain read: the claim of the run itself decides."""
        fit: list[Candidate] = []
        left = list(judged.left)
        seen: set[claim.ClaimKey] = set()
        for handler in sorted({one.handler for one in judged.fit}):
            mine = [one for one in judged.fit if one.handler == handler]
            keys = [(handler.id, handler.version)]
            known = await claim.probe(conn, self.store.tables, keys, sorted({one.event.event_id for one in mine}))
            began = await births.read(conn, self.store.tables, handler.id, handler.version)
            for one in mine:
                key = claim.ClaimKey(handler.id, handler.version, one.event.event_id)
                obstacle = STANDS if key in seen else _obstacle(one, key, known, began, order)
                seen.add(key)
                if obstacle is None:
                    fit.append(one)
                else:
                    left.append(Passed(one.reference, obstacle, one.place))
        return _Judged(fit, left)

    async def _put(self, conn: AsyncConnection, fit: Sequence[Candidate], order: Order) -> dict[int, int]:
        """Lock order 2 and 6: the rows that were put, with their replay counts."""
        if not fit:
            return {}
        t, due = self.store.tables, (await conn.execute(sa.select(sa.func.clock_timestamp()))).scalar_one()
        rows = [one.row(self.now(), due) for one in fit]
        places = await failure.draw_places(conn, t, rows)
        ids = await failure.adopt(conn, t, rows, places)
        if order.force:
            await _identify(conn, t, fit, ids)
        counts = {(row.handler, row.version, row.event_id): row.replay_count for row in rows}
        return {number: counts[key] for key, number in ids.items()}


def _line(
    target: Target, order: Order, run: Run, answered: _Judged, counts: journal.Counts, queued: Sequence[int]
) -> AuditLine:
    """One line for the step; with what its letters have in common."""
    details: dict[str, Detail] = {
        "replay": run.id,
        "source": target.source,
        "filter": str(order.filter),
        "forced": order.force,
        "replayed": counts.replayed,
        "skipped": counts.skipped,
        "refused": counts.refused,
        "failure_ids": tuple(queued),
    }
    place = common_place(one.place for one in answered.fit or answered.left)
    return Act(REPLAY, order.actor, order.reason, details).line(place)


async def _identify(
    conn: AsyncConnection, t: Tables, fit: Sequence[Candidate], ids: Mapping[tuple[int, int, bytes], int]
) -> None:
    """A forced run of what is claimed already has an identity of its own."""
    for one in fit:
        key = (one.handler.id, one.handler.version, one.event.event_id)
        found = await claim.probe(conn, t, [key[:2]], [key[2]], claim.NOTHING_FAILS)
        if found.claims and key in ids:
            attempt = attempt_id16(key[2], b"forced", b"%d" % ids[key])
            f = t.failure
            await conn.execute(sa.update(f).where(f.c.id == ids[key]).values(attempt_id=attempt))


def _obstacle(
    one: Candidate, key: claim.ClaimKey, known: claim.Probe, began: Mapping[Partition, int], order: Order
) -> Obstacle | None:
    if key in known.failures:
        return STANDS
    if key in known.claims:
        return None if order.force else DONE
    record = one.event.record
    below = record.offset < began.get(Partition(record.topic, record.partition), 0)
    return TOO_OLD if below and not order.force else None


def _tell(plan: Plan, answered: _Judged) -> None:
    plan.read += len(answered.fit) + len(answered.left)
    plan.replayed += len(answered.fit)
    for one in answered.fit:
        plan.by["reason"][one.letter.reason or one.letter.format.value] += 1
        plan.by["exception"][one.letter.exception_type or "-"] += 1
        plan.by["handler"][one.handler_name or "(all)"] += 1
        plan.by["tenant"][one.event.tenant or "-"] += 1
    for passed in answered.left:
        (plan.skipped if passed.obstacle.left is Left.SKIPPED else plan.refused)[passed.obstacle.cause] += 1


def _counts(run: Run, answered: _Judged, *, more: bool) -> journal.Counts:
    lefts = Counter(passed.obstacle.left for passed in answered.left)
    causes = Counter(passed.obstacle.cause for passed in answered.left)
    return journal.Counts(len(answered.fit), lefts[Left.SKIPPED], lefts[Left.REFUSED], causes, run.position, more)


def _more(open_parts: Sequence[Part], part: Part | None, next_offset: int) -> bool:
    if part is None:
        return False
    return len(open_parts) > 1 or next_offset < part.end_offset
