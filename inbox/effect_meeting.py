"""A call whose row stands already, or must not be made: what is found is judged, and the judgement carried out.

Nothing is locked while a probe is asked. Whoever changes the row first has changed it: the other one's statement finds
another `row_version`, changes nothing, and everything is looked at anew.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, final

from . import effect_findings, effects
from .clock import Clock
from .effect_call import Begun
from .effect_findings import Finding
from .effect_judging import (
    AlreadyDone,
    Ask,
    Contradiction,
    GiveUp,
    Judgement,
    NotWanted,
    TakeOver,
    Wait,
    judge,
    judge_missing,
)
from .effect_rows import EffectRow, ResultRefused, result_text
from .effect_rules import Asked, CannotTell, Done, Effect, NotDone, Probe, ProbeAnswer
from .effect_states import EffectState, Resolution
from .effects import Intent, Made
from .errors import DependencyError, EffectPending, EffectUnknown, OwnershipLost, RecordError, TransientError
from .faults import Fault, classify
from .outcome import Reason
from .points import Writes
from .safe_text import safe_text
from .secrets_in_text import told
from .store import Store

Asker: TypeAlias = Callable[[Effect, Probe, Asked], Awaitable[object]]
"""Runs a probe's function: the worker's gives it resources and contains what it raises."""

POSTGRESQL: Final = "postgresql"

ROUNDS_MAX: Final = 10
"""How often an attempt reads a row anew because somebody else changed it meanwhile."""

PROBES_MAX: Final = 5
"""Questions that nobody could answer, before a person is asked; the reconciler goes on asking."""

PROBE_AGAIN_S: Final = (5.0, 15.0, 60.0, 300.0)
"""After how long a probe that could not tell is asked again: a restart of the service, then its bad hour."""

WITHDRAWN_MAX: Final = 10_000
"""Attempts that never called, as far as they are remembered."""


@final
class Withdrawn:
    """Attempts of this process that never called, though their intent may be durable: nobody has to wait for them."""

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, None] = OrderedDict()

    def add(self, attempt_id: bytes) -> None:
        """It will not call."""
        self._ids[attempt_id] = None
        if len(self._ids) > WITHDRAWN_MAX:
            self._ids.popitem(last=False)

    def discard(self, attempt_id: bytes) -> None:
        """Its row is somebody else's by now."""
        self._ids.pop(attempt_id, None)

    def holds(self, row: EffectRow) -> bool:
        """The row is open for a call that never was."""
        return row.state is EffectState.INTENDED and row.attempt_id in self._ids


async def ask_plainly(effect: Effect, probe: Probe, asked: Asked) -> object:
    """Run a probe that wants nothing but the question; what it raises goes to whoever wanted to call."""
    if inspect.iscoroutinefunction(probe.function):
        return await probe.function(asked)
    answer = await asyncio.to_thread(probe.function, asked)
    return await answer if inspect.isawaitable(answer) else answer


def begun(made: Made, intent: Intent, key: str, attempt: int, asked_s: float) -> Begun:
    """The attempt that may call now. `asked_s` is our clock from before the intent was asked for."""
    return Begun(made, intent.attempt_id, key, attempt, asked_s + intent.call.effect.deadline_s)


def as_ours(error: Exception) -> Exception:
    """A database's error from before a call: nothing was sent, whatever a handler's rules say of the class."""
    match classify(error):
        case Fault.DEPENDENCY:
            return DependencyError(POSTGRESQL, f"the ledger cannot write ({type(error).__name__})")
        case Fault.TRANSIENT:
            return TransientError(f"the ledger could not write ({type(error).__name__})")
        case _:
            return error


@final
class Meeting:
    """Owned by the ledger, and like it by one event loop. `put` writes an intent down with the next group."""

    def __init__(
        self,
        store: Store,
        put: Callable[[Intent], Awaitable[Made | None]],
        ask: Asker,
        withdrawn: Withdrawn,
        clock: Clock,
    ) -> None:
        self._store = store
        self._put = put
        self._ask = ask
        self._withdrawn = withdrawn
        self._clock = clock

    async def meet(self, intent: Intent) -> Begun | EffectRow:
        """A row stands already, or must not be made: read, judge, act, until nobody changes it in between."""
        t, call = self._store.tables, intent.call
        for _ in range(ROUNDS_MAX):
            asked_s = self._clock.monotonic_s()
            async with self._store.look() as conn:
                row, now, may_be_forgotten = await effects.find(conn, t, call)
            if row is None:
                found = await self._missing(intent, may_be_forgotten, now, asked_s)
            elif row.attempt_id == intent.attempt_id and row.state is EffectState.INTENDED:
                # the answer to our own intent was lost
                made = Made(row.id, row.deadline, row.in_doubt)
                found = begun(made, intent, row.key, row.attempts, asked_s - (now - row.intended_at).total_seconds())
            else:
                judged = judge(row, call, withdrawn=self._withdrawn.holds(row))
                found = await self._act(intent, row, judged, asked_s)
            if found is not None:
                return found
        raise TransientError(f"the effect {call.effect.name!r} is wanted by too many at once")

    async def _missing(
        self, intent: Intent, may_be_forgotten: bool, now: datetime.datetime, asked_s: float
    ) -> Begun | None:
        call = intent.call
        if not may_be_forgotten:
            if call.owner.home is not None:
                raise OwnershipLost(f"{call.owner.home.partition} is held by somebody else")
            made = await self._put(intent)
            return None if made is None else begun(made, intent, call.key, 1, asked_s)
        judged = judge_missing(call, now)
        async with self._store.transaction(Writes.INTENT, call.effect.name) as conn:
            await effects.hold(conn, self._store.tables, call)
            made = await effects.open_after_restore(conn, self._store.tables, intent, judged)
        if made is None or judged is None:
            return None
        return begun(made, intent, call.key, 1, asked_s)

    async def _act(self, intent: Intent, row: EffectRow, judged: Judgement, asked_s: float) -> Begun | EffectRow | None:
        """Carry out a judgement; None where the row has to be read again. What stands in the way is raised."""
        name = intent.call.effect.name
        match judged:
            case AlreadyDone():
                return row
            case TakeOver():
                return await self._take_over(intent, row, judged, asked_s)
            case Ask(probe):
                return await self._probe(intent, row, probe, asked_s)
            case Wait(due):
                raise EffectPending(row.id, due, f"a call of effect {name!r} may be under way until {due:%H:%M:%S} UTC")
            case GiveUp(why):
                await self._give_up(row, why)
                raise EffectUnknown(row.id, f"what became of effect {name!r} is not known, and {why}")
            case Contradiction():
                raise EffectUnknown(row.id, f"the operation id stands for another request of effect {name!r}")
            case NotWanted():
                raise RecordError(Reason.REJECTED, f"effect {name!r} of this operation was discarded by a person")

    async def _take_over(
        self, intent: Intent, row: EffectRow, judged: TakeOver, asked_s: float, found: Finding | None = None
    ) -> Begun | None:
        """`found`: what a probe said just now, for the audit."""
        withdrawn = self._withdrawn.holds(row)
        async with self._store.transaction(Writes.INTENT, intent.call.effect.name) as conn:
            await effects.hold(conn, self._store.tables, intent.call)
            made = await effects.take_over(conn, self._store.tables, row, intent, judged, withdrawn=withdrawn)
            if made is not None and found is not None:
                await effect_findings.note_probe(conn, self._store.tables, row, found)
        if made is None:
            return None
        self._withdrawn.discard(row.attempt_id)
        return begun(made, intent, row.key, row.attempts + 1, asked_s)

    async def _probe(self, intent: Intent, row: EffectRow, probe: Probe, asked_s: float) -> Begun | None:
        """Ask the service, with nothing locked; whoever writes first what it said decides."""
        effect = intent.call.effect
        if row.state not in (EffectState.INTENDED, EffectState.UNKNOWN):
            await self._give_up(row, "the database was restored: what it says may be older than what happened")
            return None
        answer = await self.ask(effect, probe, row)
        match answer:
            case NotDone():
                again, found = TakeOver(False, row.unsure + 1, None), Finding(Resolution.NOT_DONE)
                return await self._take_over(intent, row, again, asked_s, found)
            case Done(result, external_id):
                found = Finding(Resolution.DONE, result_text(result, effect.result_bytes_max), external_id)
                async with self._store.transaction(Writes.COMPLETION, effect.name) as conn:
                    await effect_findings.resolve_probed(conn, self._store.tables, row, found)
                return None
            case CannotTell(why):
                await self._cannot_tell(effect, row, why)
                return None

    async def ask(self, effect: Effect, probe: Probe, row: EffectRow) -> ProbeAnswer:
        """What a probe says, for at most the effect's deadline; whatever is no answer is `CannotTell`."""
        try:
            async with asyncio.timeout(effect.deadline_s):
                answer = await self._ask(effect, probe, row.asked())
        except TimeoutError:
            return CannotTell("it did not answer in time")
        if isinstance(answer, Done):
            try:
                result_text(answer.result, effect.result_bytes_max)
            except ResultRefused as refused:
                return CannotTell(f"its answer cannot be kept: {refused}")
        if isinstance(answer, Done | NotDone | CannotTell):
            return answer
        return CannotTell(f"it returned a {type(answer).__name__} instead of Done, NotDone or CannotTell")

    async def _cannot_tell(self, effect: Effect, row: EffectRow, why: str) -> None:
        text = told(f"the probe could not tell: {why}")
        if row.probes + 1 >= PROBES_MAX:
            await self._give_up(row, text)
            raise EffectUnknown(row.id, f"what became of effect {effect.name!r} is not known, and {text}")
        after_s = PROBE_AGAIN_S[min(row.probes, len(PROBE_AGAIN_S) - 1)]
        async with self._store.transaction(Writes.COMPLETION, effect.name) as conn:
            due = await effect_findings.postpone(conn, self._store.tables, row, after_s, text)
        if due is not None:
            raise EffectPending(row.id, due, f"what became of effect {effect.name!r} is not known yet, and {text}")

    async def _give_up(self, row: EffectRow, why: str) -> None:
        async with self._store.transaction(Writes.COMPLETION, row.name) as conn:
            await effect_findings.doubt(conn, self._store.tables, row, safe_text(why))
