"""What holds events back on purpose: breakers and limits of one consumer, and how that is told.

Health says each of them with its reason, metrics show them, and the rows of the table `breaker` show them to people: a
breaker on dead letters that opened here is shown there, and one that a person closed there is closed here at the next
look. All replicas share the row, and each has a breaker of its own: only what a person did closes that of another one.
So where one replica's events go well again it closes the row, and whose do not opens it again at its next look.
What if the process stops while one is open? Its row stays open until somebody closes it; whoever reads the
events next begins with a breaker that is closed, and writes as many letters as the policy allows before it opens too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

from ...dlq.breakers import DeadBreakers, WatchedMeter
from ...dlq.parked_limits import ParkedLimits
from ...dlq.policy import BreakerPolicy
from ...inbox import breaker_rows
from ...inbox.breaker_phase import Phase
from ...inbox.clock import Clock
from ...inbox.handlers import RESERVED
from ...inbox.open_effects import Waiting
from ...inbox.points import Writes
from ...inbox.provider_breakers import BreakerGate, ProviderBreakers, ProviderPolicy, dependency_of
from ...inbox.store import Store
from ..app import Consumer
from ..health import HealthBoard
from ..metrics import Metrics

UNDECODED: Final = "records"
"""How the breaker on records that reach no handler is called."""


@final
class Brakes:
    """Owned by the event loop. `away` and `back` tell the engine to read no more, and to go on."""

    def __init__(
        self,
        store: Store,
        consumer: Consumer,
        handler_ids: Mapping[str, int],
        clock: Clock,
        board: HealthBoard,
        metrics: Metrics,
        provider: ProviderPolicy,
        away: Callable[[str], None],
        back: Callable[[str], None],
    ) -> None:
        policies = {h.name: h.policy for h in (*consumer.projections.values(), *consumer.commands.values())}
        breakers = {name: policy.breaker for name, policy in policies.items()}
        self._store = store
        self._consumer = consumer.name
        self._clock = clock
        self._board = board
        self._metrics = metrics
        self._shared: dict[str, int] = {}
        """Breakers that are shown as open, and how often people had closed their rows by then."""
        self._parked: Mapping[str, int] = {}
        self._pause, self._go_on = away, back
        self._counted: Callable[[], None] = _nobody
        self.dead = DeadBreakers({RESERVED: BreakerPolicy(), **breakers}, clock, self._dead_moved)
        self.meter = WatchedMeter(metrics, self.dead)
        self.gate = BreakerGate(ProviderBreakers(store, clock, provider, self._provider_moved))
        limited = {handler_ids[name]: (name, policy) for name, policy in policies.items()}
        self.limits = ParkedLimits(limited, self._too_many, self._few_again)

    def assemble(self, counted: Callable[[], None]) -> None:
        """`counted` is called behind each count: whoever was beyond a limit asks again."""
        self._counted = counted

    def quiet(self) -> None:
        """The process stops: nobody is held back any more."""
        self.dead.quiet()

    async def look(self) -> None:
        """Every few seconds: count what is parked, and share with people which breakers are open."""
        async with self._store.look() as conn:
            self._parked = await self.limits.look(conn, self._store.tables, self._clock.monotonic_s())
        self._counted()
        await self._share()

    def tell(self, waits: Waiting) -> None:
        """Figures of the whole fleet, which one process of it shows."""
        self._metrics.set("effects_unknown", waits.effects)
        self._metrics.set("effects_oldest_unknown_seconds", waits.oldest_effect_s)
        self._metrics.set("events_unknown", waits.events)
        self._metrics.set("events_oldest_unknown_seconds", waits.oldest_event_s)
        for handler, count in self._parked.items():
            self._metrics.set("events_waiting", count, handler)

    def probed(self, result: str) -> None:
        """A probe was asked: found, not_done or cannot_tell."""
        self._metrics.count("probes", result)

    # ------------------------------------------------------------------------------------------- shared with people

    async def _share(self) -> None:
        held = {name: why for name, (phase, why) in self.dead.phases().items() if phase is not Phase.CLOSED}
        names = sorted({*held, *self._shared})  # in the order of all replicas: they lock the same rows
        if not names:
            return
        t = self._store.tables
        async with self._store.transaction(Writes.BREAKER, self._consumer) as conn:
            rows = await breaker_rows.look(conn, t, [self._row(name) for name in names], NOTHING_WAITS_S)
            closings = {name: row.changes if (row := rows.get(self._row(name))) else 0 for name in names}
            by_people = {name for name in held if closings[name] > self._shared.get(name, closings[name])}
            for name in names:
                if name not in held:
                    await breaker_rows.hide(conn, t, self._row(name))
                elif name not in by_people:
                    await breaker_rows.show(conn, t, self._row(name), held[name])
        self._shared = {name: self._shared.get(name, closings[name]) for name in held if name not in by_people}
        for name in by_people:
            self.dead.close(name)

    def _row(self, handler: str) -> str:
        return row_of(self._consumer, handler or UNDECODED)

    # ------------------------------------------------------------------------------------------------------ telling

    def _dead_moved(self, handler: str, phase: Phase, why: str) -> None:
        name = handler or UNDECODED
        self._metrics.set("breaker_open", 0 if phase is Phase.CLOSED else 1, name)
        if phase is Phase.CLOSED:
            self._board.let_go(name)
        else:
            self._board.hold(name, why)

    def _provider_moved(self, provider: str, phase: Phase, why: str) -> None:
        name = dependency_of(provider)
        self._metrics.set("provider_away", 0 if phase is Phase.CLOSED else 1, provider)
        if phase is Phase.CLOSED:
            self._board.let_go(name)
        else:
            self._board.hold(name, why)

    def _too_many(self, name: str) -> None:
        self._board.hold(name, "too many of its events wait: see parked_max")
        self._pause(name)

    def _few_again(self, name: str) -> None:
        self._board.let_go(name)
        self._go_on(name)


NOTHING_WAITS_S: Final = 1.0
"""The rows of these breakers are for people: when one of their events is tried again is this process's own business."""


def _nobody() -> None:
    """Nobody asks."""


def row_of(consumer: str, handler: str) -> str:
    """The name of a dead-letter breaker's row."""
    return f"dead/{consumer}/{handler}"
