"""Replays as operators run them: planned, started, gone on with after an interruption, and waited for.

```python
replays = Replays(store)
plan = await replays.plan(order)                  # what would be done, and what would not and why
run = await replays.start(order)                  # nothing is queued yet, its bound is set
run = await replays.go_on(run.id, order.actor, Pace(rate=500))
outcomes = await replays.wait(run.id)
```

Every step is one transaction (see `replay_journal`): a stop or a kill between two steps loses nothing and repeats
nothing, and `go_on` of a run that has ended does nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.clock import Clock, SteadyClock
from ..inbox.store import Store
from . import replay_journal as journal
from . import replay_steps
from .permission import Act, Permit, ask_named, ask_verb
from .reach import Reach, Whole
from .replay_journal import Outcomes, Run
from .replay_order import Left, Order, Report
from .replay_rows import REPLAY, ROWS_MAX, replay
from .resending import RECORDS_MAX
from .selection import Entry, count, find
from .verbs import Verb

LOOK_S: Final = 0.5
"""How often a wait looks: a worker takes up what was queued within a second."""

Told = Callable[[Run], None]


def nobody(_: Run) -> None:
    """Nobody wants to know how far it is."""


@final
@dataclass(slots=True)
class Plan:
    """What a replay would do: counts only, however many letters there are."""

    read: int = 0
    replayed: int = 0
    by: dict[str, Counter[str]] = field(
        default_factory=lambda: {name: Counter() for name in ("reason", "exception", "handler", "tenant", "hour")}
    )
    """The histogram of those that would be replayed."""
    skipped: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])

    def add(self, report: Report) -> None:
        """One step's worth."""
        self.read += report.read
        self.replayed += len(report.replayed)
        for entry in report.replayed:
            for name, value in _classes(entry).items():
                self.by[name][value] += 1
        for refusal in report.refused:
            (self.skipped if refusal.left is Left.SKIPPED else self.refused)[refusal.cause] += 1


def _classes(entry: Entry) -> dict[str, str]:
    return {
        "reason": entry.reason,
        "exception": entry.exception_type or "-",
        "handler": f"{entry.consumer}/{entry.handler or '(all)'}",
        "tenant": entry.tenant or "-",
        "hour": entry.last_failed_at.strftime("%Y-%m-%d %H:00Z"),
    }


@final
@dataclass(frozen=True, slots=True)
class Pace:
    """How fast letters are queued: at most `rate` a second; None: as fast as it goes."""

    rate: float | None = None

    @property
    def rows_max(self) -> int:
        """Letters in one step: a quarter of a second's worth, so that a limited rate is even."""
        return ROWS_MAX if self.rate is None else max(1, min(ROWS_MAX, round(self.rate / 4)))

    def pause_s(self, done: int, elapsed_s: float) -> float:
        """How long to wait once `done` letters were queued in `elapsed_s`.

        >>> Pace(100).pause_s(50, 0.2), Pace(100).pause_s(50, 2.0), Pace().pause_s(50, 0.0)
        (0.3, 0.0, 0.0)
        """
        return 0.0 if self.rate is None else max(0.0, done / self.rate - elapsed_s)


AT_ONCE: Final = Pace()
"""As fast as it goes."""


@final
class Replays:
    """The service that the command line and whoever else calls. `permit` is asked for each letter."""

    def __init__(self, store: Store, permit: Permit, clock: Clock | None = None) -> None:
        self._store = store
        self._permit = permit
        self._clock = clock or SteadyClock()

    async def plan(self, order: Order) -> Plan:
        """A dry run of all of it. Raises NotPermitted."""
        await self._ask(order)
        plan, after = Plan(), 0
        while True:
            async with self._store.look() as conn:
                report = await self._replay(conn, replace(order, dry_run=True), after)
            plan.add(report)
            if not report.more:
                return plan
            after = report.last_id

    async def at_once(self, order: Order, after: int = 0) -> Report:
        """One step without a run in the journal: the letters behind `after`. Raises NotPermitted."""
        await self._ask(order)
        async with self._store.transaction() as conn:
            return await self._replay(conn, order, after)

    async def start(self, order: Order) -> Run:
        """Write down what is to be done, with its bound; `go_on` does it. Raises NotPermitted."""
        await self._ask(order)
        async with self._store.transaction() as conn:
            return await journal.open_run(conn, self._store.tables, journal.INBOX, order, {})

    async def go_on(self, run_id: int, actor: str, pace: Pace = AT_ONCE, told: Told = nobody) -> Run:
        """Do what is left of a run; `told` hears of each step. Raises NotPermitted and NoSuchRun."""
        async with self._store.look() as conn:
            run = await self._run(conn, run_id)
        if run.ended_at is None:
            await self._ask(journal.resumed(run.order, actor))
        most = ROWS_MAX if run.wanted["to_source"] is None else RECORDS_MAX
        started_s, before = self._clock.monotonic_s(), run.replayed
        while run.ended_at is None:
            run = await self.step(run_id, actor, min(pace.rows_max, most))
            told(run)
            if run.ended_at is None:
                await asyncio.sleep(pace.pause_s(run.replayed - before, self._clock.monotonic_s() - started_s))
        return run

    async def step(self, run_id: int, actor: str, rows_max: int = ROWS_MAX) -> Run:
        """The next letters of a run, in one transaction."""
        t = self._store.tables
        async with self._store.transaction() as conn:
            run = await self._run(conn, run_id, lock=True)
            if run.ended_at is not None:
                return run
            order = journal.resumed(run.order, actor)
            if replay_steps.takes(order):
                counts, queued = await replay_steps.step(conn, t, order, run, rows_max, self._within)
            else:
                report = await self._replay(conn, order, run.position, run, rows_max)
                stay = report.replayed if order.to_source is None else ()
                counts, queued = journal.Counts.of(report), {entry.id: entry.replay_count + 1 for entry in stay}
            return await journal.advance(conn, t, run, counts, queued)

    async def _replay(
        self, conn: AsyncConnection, order: Order, after: int, run: Run | None = None, rows_max: int = ROWS_MAX
    ) -> Report:
        upto, run_id = (None, None) if run is None else (run.bound, run.id)
        return await replay(
            conn,
            self._store.tables,
            order,
            after=after,
            upto=upto,
            rows_max=rows_max,
            within=self._within,
            sees=self._permit.sees,
            run_id=run_id,
        )

    @property
    def actor(self) -> str:
        """Who asks."""
        return self._permit.actor

    @property
    def _within(self) -> Reach:
        return self._permit.reach(Verb.REPLAY)

    async def _run(self, conn: AsyncConnection, run_id: int, *, lock: bool = False) -> Run:
        run = await journal.get(conn, self._store.tables, run_id, lock=lock)
        if not self._knows(run):
            raise journal.no_such(run_id)
        return run

    def _knows(self, run: Run) -> bool:
        """Its filter and its counts are of all that its own operator could see: another one sees it if they see all."""
        return run.actor == self._permit.actor or self._permit.sees.covers_whole(Whole())

    async def left(self, run: Run) -> int:
        """How many letters a run still has to read, as it looks now."""
        order = run.order
        if order.filter is None:
            return len(order.references) if run.ended_at is None else 0
        async with self._store.look() as conn:
            return await count(
                conn, self._store.tables, order.filter, within=self._within, after=run.position, upto=run.bound
            )

    async def run(self, run_id: int) -> Run:
        """How far it is. Raises NoSuchRun."""
        async with self._store.look() as conn:
            return await self._run(conn, run_id)

    async def latest(self, limit: int = 20) -> list[Run]:
        """The last runs, the newest first."""
        async with self._store.look() as conn:
            return [run for run in await journal.latest(conn, self._store.tables, limit) if self._knows(run)]

    async def outcomes(self, run_id: int) -> Outcomes:
        """What became of its letters, as it stands."""
        async with self._store.look() as conn:
            await self._run(conn, run_id)
            return await journal.outcomes(conn, self._store.tables, run_id)

    async def wait(
        self, run_id: int, patience_s: float | None = None, told: Callable[[int], None] | None = None
    ) -> Outcomes:
        """Until none of its letters waits, or patience ends; `told` hears how many still do."""
        give_up_s = None if patience_s is None else self._clock.monotonic_s() + patience_s
        while True:
            async with self._store.look() as conn:
                waiting = await journal.waiting(conn, self._store.tables, run_id)
            if told is not None:
                told(waiting)
            if not waiting or (give_up_s is not None and self._clock.monotonic_s() >= give_up_s):
                return await self.outcomes(run_id)
            await asyncio.sleep(LOOK_S)

    async def _ask(self, order: Order) -> None:
        """Of letters that are named, for each; else whether the asker may replay any at all."""
        act = Act(REPLAY, order.actor, order.reason)
        if order.filter is not None:
            await ask_verb(self._store, self._permit, act)
            return
        async with self._store.look() as conn:
            named = await find(conn, self._store.tables, order.references)
        await ask_named(self._store, self._permit, act, [entry.place for rows in named.values() for entry in rows])
