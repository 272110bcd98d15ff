"""The ledger of calls to the outside: each one is written down before it is made, and its answer behind it.

`Ledger(store)` serves any program that has an event loop: a worker, a job, a web request. Intents that are asked for
meanwhile go in one statement, one commit, on a connection of their own; endings on another one, so that neither ever
waits for a place in a pool. Owned by one event loop.

What if the answer to an intent is lost? The same intent is sent once more: it waits for the first one's end, then its
row is there and it is ours. What if that fails too? Nothing was called, the error goes to the asker, and the attempt's
id is remembered: no attempt of this process waits for a call that never was. What if the answer to an ending is lost?
It is sent again for as long as the ledger is open: it says the same, however often. Then the effect stays open.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, final

import structlog

from . import effect_findings, effects
from .clock import Clock, SystemClock
from .effect_call import Begun, EffectCall, Place
from .effect_findings import Testimony
from .effect_meeting import Asker, Meeting, Withdrawn, as_ours, ask_plainly
from .effect_rows import Call, EffectRow, Owner
from .effect_rules import Effect, Probe, ProbeAnswer
from .effect_states import EffectState
from .effects import Driver, Ending, Intent, Made, Statement
from .faults import Fault, classify
from .grouping import Grouped
from .optimism import Optimism
from .points import Writes, reach
from .quick import PLANS
from .store import STORE_ERRORS, Store

log = structlog.get_logger("tidegate.events")

ENDING_AGAIN_S: Final = (0.05, 0.2, 1.0)
"""After how long an ending is sent again: at once where a connection broke, each second while the database is away."""

UNHURRIED_S: Final = 0.01
"""Between two groups of endings that nobody waits for, while more calls are under way than endings are there: the
claims behind them go in groups at the same distance (`consumers.worker.spacing`).

Whatever is waited for goes as soon as the group before it is durable, with all that came meanwhile. Waits of up to four
milliseconds in between were measured, and cost a hundred calls at once more than larger groups saved; half a
millisecond too, since an event loop's timers may know whole ones only.
"""

CLOSE_S: Final = 5.0
"""How long endings may still take when the ledger is closed."""


class ProviderGate(Protocol):
    """What stands before a provider: a circuit breaker, a rate limit."""

    def is_open(self, effect: Effect) -> bool:
        """Nothing is known that stands in the way: there is no need to wait for `admit`."""
        ...

    async def admit(self, effect: Effect) -> None:
        """Before an intent. Raises DependencyError where the provider is to be left alone."""
        ...

    def ended(self, effect: Effect, answered: bool | None) -> None:
        """A call ended: whether the provider answered it; None says nothing about that."""
        ...


@final
class OpenGate:
    """Nothing stands before any provider."""

    def is_open(self, effect: Effect) -> bool:
        return True

    async def admit(self, effect: Effect) -> None: ...

    def ended(self, effect: Effect, answered: bool | None) -> None: ...


@final
class Ledger:
    """Calls to the outside, each of them at most once for its operation. `close` it at the end."""

    def __init__(
        self, store: Store, *, ask: Asker = ask_plainly, gate: ProviderGate | None = None, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._ask = ask
        self._gate: ProviderGate = gate if gate is not None else OpenGate()
        self._clock = clock if clock is not None else SystemClock()
        self.monotonic_s = self._clock.monotonic_s
        self._intent_line, self._ending_line = Line(store), Line(store)
        self._intend_sql = {new: effects.intend_sql(store.tables, optimistic=new) for new in (True, False)}
        self._end_sql = effects.end_sql(store.tables)
        self._optimism = Optimism(self.monotonic_s)
        self._intents: Grouped[Intent, Made | None] = Grouped(self._intend, self._never_called)
        self._endings: Grouped[tuple[Call, Ending], None] = Grouped(self._end, spacing_s=self._endings_spacing_s)
        self._under_way = 0
        self._hurry = False
        self._attempts = itertools.count()
        self._mark = os.urandom(10)
        self._closed = False
        self._withdrawn = Withdrawn()
        self._meeting = Meeting(store, self._intents.put, ask, self._withdrawn, self._clock)

    def effect(
        self,
        effect: Effect,
        operation_id: str,
        *,
        owner: str,
        scope: str = "",
        request: Any = None,
        tenant: str | None = None,
        brand: str | None = None,
        correlation_id: str = "",
    ) -> EffectCall:
        """A call of a job or a web request: `async with ledger.effect(...) as effect:`.

        `owner` names the job or the route. The operation is one for each (scope, owner, effect, operation id), and
        whatever may be given the same operation id for another business needs another scope (a tenant, say).
        """
        whose = _owner(owner, scope, tenant, brand)
        return self.call(Call.of(effect, whose, operation_id, request, correlation_id or operation_id))

    def call(self, call: Call, place: Place | None = None) -> EffectCall:
        """The same for a worker, which knows more of it."""
        return EffectCall(self, call, place)

    @property
    def statements(self) -> tuple[int, int]:
        """How many statements wrote intents and endings."""
        return self._intents.statements, self._endings.statements

    async def ask(self, effect: Effect, probe: Probe, row: EffectRow) -> ProbeAnswer:
        """What a probe says of a row; whatever is no answer is `CannotTell`. Nothing is written down."""
        return await self._meeting.ask(effect, probe, row)

    async def ready(self) -> None:
        """Connect, and have the statements planned, so that no call waits for that; else the first one does."""
        with suppress(*STORE_ERRORS):
            await effects.intend(await self._intent_line.statement(self._intend_sql[True]), [])
            await effects.end(await self._ending_line.statement(self._end_sql), [])

    async def close(self, patience_s: float = CLOSE_S) -> None:
        """Endings on their way are written; what cannot be within `patience_s` leaves its effect open."""
        self._closed = True
        await self._intents.settle(0)
        await self._endings.settle(patience_s)
        await self._intent_line.drop()
        await self._ending_line.drop()

    # --------------------------------------------------------------------------------------------------- beginning

    async def begin(self, call: Call) -> Begun | EffectRow:
        """Write the intent down and return once it is durable, or give the row of what is done.

        Raises EffectPending, EffectUnknown, OwnershipLost; DependencyError where the database is away. In all of them
        nothing was called.
        """
        if not self._gate.is_open(call.effect):
            await self._gate.admit(call.effect)
        asked_s = self.monotonic_s()
        attempt_id = self._new_attempt()
        intent = Intent(call, attempt_id)
        asked = self._intents.enqueue(intent)
        try:
            made = await asked
            if made is not None:
                found = Begun(made, attempt_id, call.key, 1, asked_s + call.effect.deadline_s)
            else:
                found = await self._meeting.meet(intent)
        except STORE_ERRORS as error:
            self._withdrawn.add(intent.attempt_id)
            raise as_ours(error) from error
        except asyncio.CancelledError:
            self._intents.leave(intent, asked)
            self._withdrawn.add(intent.attempt_id)
            raise
        if type(found) is Begun:
            self._under_way += 1
        return found

    def _new_attempt(self) -> bytes:
        """16 bytes that no other attempt has, of this ledger or of any other."""
        return self._mark + next(self._attempts).to_bytes(6, "big")

    async def _intend(self, intents: Sequence[Intent]) -> Sequence[Made | None]:
        """One group, taken to be new; where one of it is known, all is asked again with care."""
        effect = intents[0].call.effect.name
        reach(Writes.INTENT.before, effect)
        made = await self._optimism.write(lambda optimistic: self._write(intents, self._intend_sql[optimistic]))
        reach(Writes.INTENT.after, effect)
        return made

    async def _write(self, intents: Sequence[Intent], sql: str) -> Sequence[Made | None]:
        """A lost answer is asked for once more: the second one waits for the first, whose rows are ours."""
        try:
            return await effects.intend(await self._intent_line.statement(sql), intents)
        except STORE_ERRORS as error:
            if classify(error) is not Fault.DEPENDENCY:
                raise
            await self._intent_line.drop()
            return await effects.intend(await self._intent_line.statement(sql), intents)

    def _never_called(self, intent: Intent, made: Made | None) -> None:
        """Whoever asked for it was cancelled meanwhile: its row says that nothing was sent."""
        if made is not None:
            ending = Ending(made.effect_id, intent.attempt_id, EffectState.FAILED, error="cancelled before the call")
            self._endings.enqueue((intent.call, ending))

    # ------------------------------------------------------------------------------------------------------ ending

    def end(self, call: Call, ending: Ending) -> Awaitable[None]:
        """Write down how an attempt ended; done once it is durable, however long the database is away."""
        self._hurry = True
        return self.end_later(call, ending)

    def end_later(self, call: Call, ending: Ending) -> asyncio.Future[None]:
        """The same, and nobody waits for it now."""
        self._under_way -= 1
        self._gate.ended(call.effect, ending.answered)
        return self._endings.enqueue((call, ending))

    def _endings_spacing_s(self, waiting: int) -> float:
        return UNHURRIED_S if self._under_way > waiting and not self._hurry else 0.0

    async def _end(self, members: Sequence[tuple[Call, Ending]]) -> Sequence[None]:
        """One group, until it is durable: it says the same however often it is said, so a lost answer is no matter."""
        name = members[0][0].effect.name
        self._hurry = False
        reach(Writes.COMPLETION.before, name)
        tries = 0
        while True:
            try:
                statement = await self._ending_line.statement(self._end_sql)
                written = await effects.end(statement, [ending for _, ending in members])
                await self._testify([member for member, done in zip(members, written, strict=True) if not done])
                break
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    if len(members) > 1 or members[0][1].result is None:
                        raise
                    members = [_without_result(*members[0], type(error).__name__)]
                    continue
                log.warning("effects_wait", error=type(error).__name__, endings=len(members))
                await self._ending_line.drop()
                await asyncio.sleep(ENDING_AGAIN_S[min(tries, len(ENDING_AGAIN_S) - 1)])
                tries += 1
        reach(Writes.COMPLETION.after, name)
        return [None] * len(members)

    async def _testify(self, members: Sequence[tuple[Call, Ending]]) -> None:
        for call, ending in members:
            if ending.state is not EffectState.COMPLETED:
                continue
            async with self._store.transaction(Writes.COMPLETION, call.effect.name) as conn:
                said = await effect_findings.testify(conn, self._store.tables, ending)
            if said is not Testimony.AGREES:
                log.error(
                    said.value,
                    effect=call.effect.name,
                    effect_id=ending.effect_id,
                    handler=call.owner.name,
                    operation_id=call.operation_id,
                    correlation_id=call.correlation_id,
                    external_id=ending.external_id,
                )


@functools.lru_cache(maxsize=1024)
def _owner(name: str, scope: str, tenant: str | None, brand: str | None) -> Owner:
    """Of a job or a web request: one for many calls."""
    return Owner(name, scope=scope, tenant=tenant, brand=brand)


def _without_result(call: Call, ending: Ending, why: str) -> tuple[Call, Ending]:
    """The call was made, whatever the database thinks of its result."""
    return call, ending._replace(result=None, error=f"the database refused the result ({why})")


@final
class Line:
    """A connection of its own, outside the pools: made when it is needed, and anew after it broke."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._driver: Driver | None = None
        self._statements: dict[str, Statement] = {}
        self._making = asyncio.Lock()

    async def statement(self, sql: str) -> Statement:
        """The statement, prepared."""
        async with self._making:
            if self._driver is None or self._driver.is_closed():
                self._statements = {}
                self._driver = await self._store.database.connection(**PLANS)
            found = self._statements.get(sql)
            if found is None:
                found = self._statements[sql] = await self._driver.prepare(sql)
            return found

    async def drop(self) -> None:
        """Close it."""
        driver, self._driver, self._statements = self._driver, None, {}
        if driver is not None:
            driver.terminate()
