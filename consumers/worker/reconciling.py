"""Finds out what became of calls that nobody knows the end of, by asking their services (R23). One in the whole fleet.

A loop under the lease `reconciler/<consumer>`. Each round it takes open calls whose deadline and margin are over and
whose rule has a probe, asks one after the other at a limited rate, and writes what it found: call, events that wait for
it and audit line in one transaction. The events then run again, so that their handlers write claim and outbox.

Calls of jobs and web requests are no consumer's. Whoever holds the lease of a consumer takes those of the effects that
its app declares too, each effect under a lease of its own (`lone/<effect>`): of several consumers one counts and asks.

What if a probe raises, hangs or returns nonsense? It could not tell: the call is asked about again, later each time,
and stays for a person meanwhile. What if the lease is lost while a probe runs? What it found is dropped, and the next
holder asks again. What if the event's handler asks at the same time? One of the two finds another `row_version`, writes
nothing, and the answer is the same. What if the event got its row after its call was resolved? Nobody would wake it, so
each round also looks for rows whose call is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ...inbox import effect_findings, effects, failure, lease, open_effects
from ...inbox.clock import Clock
from ...inbox.effect_findings import Finding
from ...inbox.effect_judging import Ask, judge_open
from ...inbox.effect_rows import EffectRow, result_text
from ...inbox.effect_rules import CannotTell, Done, Effect, NotDone, Probe, ProbeAnswer, probe_of
from ...inbox.effect_states import Resolution
from ...inbox.lanes import Seen
from ...inbox.lease import Lease, Leaseholder
from ...inbox.ledger import Ledger
from ...inbox.open_effects import Due, Waiting
from ...inbox.points import Writes
from ...inbox.secrets_in_text import told
from ...inbox.states import Act
from ...inbox.store import STORE_ERRORS, Store

LOOK_S: Final = 2.0
"""An event whose call was found out goes on within two seconds; a look is one query on an index of open calls."""

KEEP_S: Final = 2.0
"""How often the lease is looked after: several times within its life, also while a probe runs."""

DUE_MAX: Final = 100
"""Calls of one round that are asked about: at the default rate they take a minute."""

LOOK_MAX: Final = 1_000
"""Open calls of one round that are looked at: most need no probe now, because their key is valid or a person has to
look. The next round goes on behind them, and begins anew behind the last, so that none of them hides another one.
"""

AGAIN_S: Final = (5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0)
"""After how long a service that could not tell is asked again: a restart, a bad hour, a night."""

ALERT_EVERY_S: Final = 600.0
"""How often it is said that something waits for a person for too long."""

log = structlog.get_logger("tidegate.events")

Told = Callable[[Waiting], None]
"""What waits, as the holder of the lease counts it; all zero once somebody else counts."""

NOTHING: Final = Waiting(0, 0.0, 0, 0.0)


@final
class Reconciler:
    """Owned by the event loop; `run` until cancelled, then `give_up`."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        handler_ids: Collection[int],
        ledger: Ledger,
        declared: Mapping[str, Effect],
        clock: Clock,
        holder: str,
        *,
        every_s: float,
        alert_age_s: float,
        told: Told,
        probed: Callable[[str], None],
        woke: Callable[[], None],
    ) -> None:
        """`told` gets figures; `probed` each result: found, not_done, cannot_tell; `woke`: there are queued rows."""
        self._store = store
        self._consumer = consumer
        self._handler_ids = handler_ids
        self._ledger = ledger
        self._probes = {name: probe for name, effect in declared.items() if (probe := probe_of(effect.rule))}
        self._declared = declared
        self._clock = clock
        self._leaseholder = Leaseholder(store, clock, f"reconciler/{consumer}", holder)
        self._pause_s = every_s
        self._alert_age_s = alert_age_s
        self._told = told
        self._probed = probed
        self._woke = woke
        self._lone = {name: Leaseholder(store, clock, f"lone/{name}", holder) for name in declared}
        self._looked_at = open_effects.FIRST
        self._alerted_s = float("-inf")
        self._counts = False

    async def run(self) -> None:
        """Look after the lease, and reconcile while it is ours, side by side: a probe may take longer than a lease."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(KEEP_S, self.keep))
            group.create_task(self._every(LOOK_S, self.round))

    async def give_up(self) -> None:
        """At a clean end: the next one begins at once."""
        for leaseholder in (self._leaseholder, *self._lone.values()):
            await leaseholder.give_up()

    async def _every(self, period_s: float, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await look()
            except STORE_ERRORS as error:
                log.warning("reconciler_waits", error=type(error).__name__)
            await asyncio.sleep(period_s)

    async def keep(self) -> None:
        """Ask for the lease, or renew it; and those of effects with open calls that no consumer made."""
        if await self._leaseholder.held() is None or not self._lone:
            return
        async with self._store.look() as conn:
            names = await open_effects.lone_names(conn, self._store.tables, self._lone)
        for name in names:
            await self._lone[name].held()

    async def round(self) -> None:
        """One look at everything; nothing where the lease is not ours."""
        held = self._leaseholder.lease
        if held is None:
            self._count(NOTHING)
            return
        lone = [name for name, leaseholder in self._lone.items() if leaseholder.lease is not None]
        async with self._store.look() as conn:
            t = self._store.tables
            self._count(await open_effects.waiting(conn, t, self._consumer, self._handler_ids, lone))
            behind = await open_effects.behind_known(conn, t, self._consumer, DUE_MAX)
            probed = [name for name in lone if name in self._probes]
            place = (self._consumer, self._probes, probed, self._looked_at)
            due = await open_effects.due_for_probe(conn, t, *place, LOOK_MAX)
            rows = await effects.read_all(conn, t, [call.id for call in due])
        if behind:
            await self._wake(held, behind)
        for call in self._to_ask(due, rows):
            if self._leaseholder.lease is None:
                return
            if await self._ask_about(call):
                await asyncio.sleep(self._pause_s)

    # ------------------------------------------------------------------------------------------------- one call

    def _to_ask(self, due: Sequence[Due], rows: Mapping[int, EffectRow]) -> list[Due]:
        """Those of `due` whose service can be asked now; the next round goes on behind them."""
        chosen: list[Due] = []
        for call in due:
            self._looked_at = call
            if call.id in rows and self._probe_of(rows[call.id]) is not None:
                chosen.append(call)
                if len(chosen) == DUE_MAX:
                    return chosen
        if len(due) < LOOK_MAX:
            self._looked_at = open_effects.FIRST
        return chosen

    def _probe_of(self, row: EffectRow) -> Probe | None:
        """Whom to ask about it now; None where its key is valid, or a person has to look."""
        judged = judge_open(row, self._declared[row.name])
        return judged.probe if isinstance(judged, Ask) else None

    async def _ask_about(self, call: Due) -> bool:
        """Whether its service was asked."""
        async with self._store.look() as conn:
            row = await effects.read(conn, self._store.tables, call.id)
        if row is None or self._held(row, call.consumer) is None or (probe := self._probe_of(row)) is None:
            return False
        await self._probe(row, call.consumer, probe)
        return True

    def _held(self, row: EffectRow, consumer: str) -> Lease | None:
        """The lease that its call is taken under, where it surely is ours."""
        return (self._leaseholder if consumer else self._lone[row.name]).lease

    async def _probe(self, row: EffectRow, consumer: str, probe: Probe) -> None:
        effect = self._declared[row.name]
        answer = await self._ledger.ask(effect, probe, row)
        held = self._held(row, consumer)
        if held is None:
            return
        if isinstance(answer, CannotTell):
            await self._later(held, row, answer.why)
        else:
            await self._found(held, row, _finding(answer, effect))
        result = (
            "cannot_tell" if isinstance(answer, CannotTell) else "found" if isinstance(answer, Done) else "not_done"
        )
        self._probed(result)
        log.info(
            "effect_probed",
            effect=row.name,
            effect_id=row.id,
            operation_id=row.operation_id,
            correlation_id=row.correlation_id,
            result=result,
            why=answer.why if isinstance(answer, CannotTell) else None,
        )

    async def _later(self, held: Lease, row: EffectRow, why: str) -> None:
        after_s = AGAIN_S[min(row.probes, len(AGAIN_S) - 1)]
        async with self._store.transaction(Writes.RECONCILE, row.name) as conn:
            if await lease.hold(conn, self._store.tables, held):
                text = told(f"the probe could not tell: {why}")
                await effect_findings.postpone(conn, self._store.tables, row, after_s, text)

    async def _found(self, held: Lease, row: EffectRow, finding: Finding) -> None:
        """Lock order 1, 2, 6 and 7: the rows that wait are woken, the call is resolved, the audit says by what."""
        t = self._store.tables
        async with self._store.transaction(Writes.RECONCILE, row.name) as conn:
            if not await lease.hold(conn, t, held):
                return
            behind = await open_effects.rows_behind(conn, t, row.id)
            await self._requeue(conn, behind)
            if not await effect_findings.resolve_probed(conn, t, row, finding, len(behind)):
                await conn.rollback()
                return
        if behind:
            self._woke()

    async def _wake(self, held: Lease, behind: list[Seen]) -> None:
        async with self._store.transaction(Writes.RECONCILE) as conn:
            if await lease.hold(conn, self._store.tables, held):
                await self._requeue(conn, behind)
        self._woke()

    async def _requeue(self, conn: AsyncConnection, rows: list[Seen]) -> None:
        if rows:
            await failure.requeue(conn, self._store.tables, rows, self._clock.now(), Act.RESOLVE)

    # ---------------------------------------------------------------------------------------------------- figures

    def _count(self, waits: Waiting) -> None:
        if waits == NOTHING and not self._counts:
            return
        self._counts = waits != NOTHING
        self._told(waits)
        oldest_s = max(waits.oldest_effect_s, waits.oldest_event_s)
        now_s = self._clock.monotonic_s()
        if oldest_s > self._alert_age_s and now_s - self._alerted_s >= ALERT_EVERY_S:
            self._alerted_s = now_s
            log.error("waits_for_a_person", effects=waits.effects, events=waits.events, oldest_s=round(oldest_s))


def _finding(answer: ProbeAnswer, effect: Effect) -> Finding:
    match answer:
        case Done(result, external_id):
            return Finding(Resolution.DONE, result_text(result, effect.result_bytes_max), external_id)
        case NotDone():
            return Finding(Resolution.NOT_DONE)
        case CannotTell():
            raise AssertionError("nothing was found")
