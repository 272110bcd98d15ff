"""Attempts, crashes, lost answers, late ones, takeovers and probes in any order: nothing is done twice.

The service is truthful and quick, and forgets a key when it said it would. Time is virtual: it passes for the rows and
for the service at once. A request reaches the service before its call's deadline or never, as a client's own time-out
sees to it: no ledger can bind a caller that freezes between its check and its call.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import pytest

from tests.support.calling import of, pass_by
from tidegate.inbox.effect_call import EffectCall
from tidegate.inbox.effect_rules import (
    Asked,
    Done,
    Effect,
    EffectRule,
    NotDone,
    ProbeAnswer,
    idempotent_key,
    probe,
    review,
)
from tidegate.inbox.errors import EffectPending, EffectUnknown
from tidegate.inbox.ledger import Ledger
from tidegate.inbox.store import Store

DEADLINE_S: Final = 10.0
MARGIN_S: Final = 2.0
VALID_S: Final = 45.0
OPERATIONS: Final = ("a", "b", "c")
STEPS: Final = 120
PROCESSES: Final = 3


@dataclass(eq=False)
class Flight:
    """A call between its intent and its end."""

    call: EffectCall
    process: int
    until_s: float
    answer: str | None = None
    """`done` or `refused`, once the request was there."""


@dataclass
class World:
    """Processes, a service, and what is between them."""

    store: Store
    honours_keys: bool
    chance: random.Random
    now_s: float = 0.0
    done: Counter[str] = field(default_factory=Counter[str])
    keys: dict[str, float] = field(default_factory=dict[str, float])
    flights: list[Flight] = field(default_factory=list[Flight])
    ledgers: list[Ledger] = field(default_factory=list[Ledger])
    history: list[str] = field(default_factory=list[str])
    effect: Effect | None = None

    def ask(self, asked: Asked) -> ProbeAnswer:
        """The truth."""
        return Done({"n": 1}, f"x-{asked.operation_id}") if self.done[asked.operation_id] else NotDone()

    def serve(self, flight: Flight) -> None:
        """The request is there."""
        operation, key = flight.call.call.operation_id, flight.call.key
        first_s = self.keys.get(key) if self.honours_keys else None
        if first_s is not None and self.now_s - first_s <= VALID_S:
            flight.answer = "done"
        elif self.chance.random() < 0.25:
            flight.answer = "refused"
        else:
            self.keys[key] = self.now_s
            self.done[operation] += 1
            flight.answer = "done"

    # --------------------------------------------------------------------------------------------------------- steps

    async def begin(self) -> None:
        """Some process wants some operation done."""
        assert self.effect is not None
        process, operation = self.chance.randrange(PROCESSES), self.chance.choice(OPERATIONS)
        call = self.ledgers[process].call(of(self.effect, operation))
        try:
            await call.__aenter__()
        except (EffectPending, EffectUnknown) as error:
            self.history.append(f"{process} may not call {operation}: {type(error).__name__}")
            return
        self.history.append(f"{process} begins {operation}: {'done before' if call.is_done else call.attempt}")
        if call.is_done:
            assert self.done[operation], "a result of what was never done"
            await call.__aexit__(None, None, None)
        else:
            self.flights.append(Flight(call, process, self.now_s + DEADLINE_S))

    async def send(self) -> None:
        """A request arrives, if its client still waits for the answer."""
        if (flight := self.pick()) and flight.answer is None and self.now_s <= flight.until_s:
            self.serve(flight)
            self.history.append(f"{flight.call.call.operation_id} of {flight.process}: {flight.answer}")

    async def answer(self) -> None:
        """An answer arrives, however late."""
        if (flight := self.pick()) and flight.answer is not None:
            self.flights.remove(flight)
            if flight.answer == "done":
                flight.call.complete({"n": 1}, f"x-{flight.call.call.operation_id}")
            else:
                flight.call.refused("no")
            await flight.call.__aexit__(None, None, None)
            self.history.append(f"{flight.call.call.operation_id} of {flight.process} hears it")

    async def lose(self) -> None:
        """The client gives up: it was surely not sent, or nobody knows."""
        if flight := self.pick():
            self.flights.remove(flight)
            unsent = flight.answer is None and self.chance.random() < 0.5
            error = ConnectionRefusedError() if unsent else ConnectionResetError()
            with contextlib.suppress(EffectPending, EffectUnknown):
                await flight.call.__aexit__(type(error), error, None)
            self.history.append(f"{flight.call.call.operation_id} of {flight.process} ends: {type(error).__name__}")

    async def crash(self) -> None:
        """A process is killed: what it had in flight may just have been sent."""
        process = self.chance.randrange(PROCESSES)
        for flight in [flight for flight in self.flights if flight.process == process]:
            self.flights.remove(flight)
            if flight.answer is None and self.now_s <= flight.until_s and self.chance.random() < 0.5:
                self.serve(flight)
        await self.ledgers[process].close(0)
        self.ledgers[process] = Ledger(self.store)
        self.history.append(f"{process} is killed")

    async def wait(self) -> None:
        """Time passes."""
        seconds = self.chance.choice((1.0, 3.0, DEADLINE_S, DEADLINE_S + MARGIN_S + 0.1, 30.0))
        self.now_s += seconds
        await pass_by(self.store, seconds)
        self.history.append(f"{seconds} s later")

    def pick(self) -> Flight | None:
        """Some call."""
        return self.chance.choice(self.flights) if self.flights else None

    # ---------------------------------------------------------------------------------------------------------- laws

    async def check(self) -> None:
        """What must hold at every moment."""
        told = "\n".join(self.history)
        assert all(n <= 1 for n in self.done.values()), f"done twice: {self.done}\n{told}"
        async with self.store.look() as conn:
            rows = await conn.execute(
                self.store.tables.sql("SELECT operation_id, state, resolution, second_external_id FROM {effect}")
            )
            acts = set((await conn.execute(self.store.tables.sql("SELECT act FROM {audit}"))).scalars())
        assert acts <= {"effect_probed"}, f"a false alarm: {acts}\n{told}"
        for operation, state, resolution, second in rows:
            assert second is None, told
            if state == "completed" or resolution == "done":
                assert self.done[operation] == 1, f"{operation} is known as done and was not\n{told}"
            if state == "failed":
                assert self.done[operation] == 0, f"{operation} is known as not done and was\n{told}"


def rules(world: World) -> dict[str, EffectRule]:
    return {
        "key": idempotent_key(valid_s=VALID_S),
        "key, then probe": idempotent_key(valid_s=VALID_S, then=probe(world.ask)),
        "probe": probe(world.ask),
        "review": review(),
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rule", ["key", "key, then probe", "probe", "review"])
async def test_nothing_is_done_twice_whatever_happens_in_whatever_order(store: Store, rule: str, seed: int) -> None:
    world = World(store, rule.startswith("key"), random.Random(f"{rule} {seed}"))
    world.effect = Effect("charge", rules(world)[rule], DEADLINE_S, margin_s=MARGIN_S)
    world.ledgers = [Ledger(store) for _ in range(PROCESSES)]
    steps = (world.begin, world.send, world.answer, world.lose, world.crash, world.wait)
    for _ in range(STEPS):
        (step,) = world.chance.choices(steps, (8, 6, 3, 3, 1, 3))
        await step()
        await world.check()
    for ledger in world.ledgers:
        await ledger.close()
    assert sum(world.done.values()) >= 1
