"""The calls to the outside of one handling: which are open, and what a handler may not do with them.

A handler is not cancelled while one of its calls is open: cut off, the call would be made or not made, and nobody would
know. It is given the call's own deadline and margin; a call that outlasts even those is left to itself, and whatever
comes of it is still evidence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, final

from ...dlq.guard import Raised, Returned, guarded
from ...inbox.effect_call import EffectCall
from ...inbox.effect_meeting import Asker
from ...inbox.effect_rows import Call, Home, Origin, Owner
from ...inbox.effect_rules import Asked, CannotTell, Effect, Probe
from ...inbox.errors import EffectMisused, OwnershipLost
from ...inbox.event import Event, Partition
from ...inbox.holding import Holding
from ...inbox.ledger import Ledger
from ..app import Consumer
from ..injection import read_wants
from .handling import Mediator

T = TypeVar("T")


OWNERS_MAX: Final = 4_096
"""Remembered at most: one for each partition, type and tenant that calls are made for; another one is soon made."""

NAMES_NONE: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


class Transaction(Protocol):
    """`ctx.tx`, as far as calls care."""

    @property
    def asked_for(self) -> bool:
        """The handler has opened it, or is about to."""
        ...


@final
class Effects:
    """The effects of one consumer's commands. Owned by the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        declared: Mapping[str, Effect],
        consumer: str,
        named: Mapping[str, Collection[str]] = NAMES_NONE,
        *,
        fenced: bool = True,
    ) -> None:
        """`named`: the effects that a command says it makes; one that is not in there may make any.

        `fenced`: its intents are written under the consumer's own fence. Who handles events beside their owner does
        without: of two intents of one call the ledger takes one, whoever writes them.
        """
        self.ledger = ledger
        self.consumer = consumer
        self.declared = declared
        self._named = named
        self._until_s: float | None = None
        self._owners: dict[tuple[object, ...], Owner] = {}
        self.fenced = fenced

    def quiet(self, budget_s: float) -> None:
        """The process ends in so many seconds: no call is begun that might outlast it."""
        self._until_s = self.ledger.monotonic_s() + budget_s

    def may_begin(self, effect: Effect) -> bool:
        """Whether a call of this kind would be over before the process is."""
        longest_s = effect.deadline_s + effect.margin_s
        return self._until_s is None or self.ledger.monotonic_s() + longest_s <= self._until_s

    def desk(self, command: str, handler_id: int, event: Event[Any], holding: Holding) -> EffectDesk:
        """For one attempt."""
        return EffectDesk(self, command, handler_id, event, holding)

    def owner(self, command: str, handler_id: int, event: Event[Any], holding: Holding, *, of_event: bool) -> Owner:
        """One for all calls of a command, a partition, a type and a tenant. `of_event`: the operation is the event."""
        record, tenant, brand, kind = event.record, event.tenant, event.brand, event.type if of_event else None
        key = (handler_id, holding.partition, holding.fence_epoch, record.topic, record.partition, kind, tenant, brand)
        owner = self._owners.get(key)
        if owner is None:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            owner = self._owners[key] = Owner(
                f"{self.consumer}/{command}",
                f"#{handler_id}",
                _scope_of(event) if of_event else tenant or "",
                Home(self.consumer, holding.partition, holding.fence_epoch) if self.fenced else None,
                Origin(self.consumer, Partition(record.topic, record.partition)),
                tenant,
                brand,
            )
        return owner

    def find(self, effect: str | Effect, command: str) -> Effect:
        """A declared effect that the command may make. Raises EffectMisused."""
        name = effect if isinstance(effect, str) else effect.name
        if command in self._named and name not in self._named[command]:
            raise EffectMisused(f"command {command!r} does not say that it makes {name!r}: add it to its effects=[...]")
        found = self.declared.get(name)
        if found is None:
            raise EffectMisused(f"no effect {name!r} is declared: app.effect({name!r}, rule=..., deadline_s=...)")
        return found


@final
class EffectDesk:
    """The calls of one attempt: what `ctx.effect` makes, what the deadline waits for."""

    def __init__(self, effects: Effects, command: str, handler_id: int, event: Event[Any], holding: Holding) -> None:
        self._effects = effects
        self._command = command
        self._handler_id = handler_id
        self._event = event
        self._holding = holding
        self._tx: Transaction | None = None
        self._made: list[EffectCall] = []
        self._entered: set[bytes] = set()
        self._open: set[EffectCall] = set()
        self._released: asyncio.Future[None] | None = None
        self._unwritten: list[asyncio.Future[None]] = []
        self._in_doubt: tuple[int, ...] = ()
        self._ended = False

    def watch(self, tx: Transaction) -> None:
        """Tell it of the handler's transaction."""
        self._tx = tx

    def effect(self, effect: str | Effect, operation_id: str | None, request: Any) -> EffectCall:
        """A call that is about to be made. Raises EffectMisused for a name that is not declared."""
        event, effects = self._event, self._effects
        found, of_event = effects.find(effect, self._command), operation_id is None
        owner = effects.owner(self._command, self._handler_id, event, self._holding, of_event=of_event)
        operation = event.operation_id if operation_id is None else operation_id
        wanted = Call.of(found, owner, operation, request, event.correlation_id, event)
        call = EffectCall(effects.ledger, wanted, self)
        self._made.append(call)
        return call

    # ------------------------------------------------------------------------------------- what a call asks and tells

    def enter(self, call: EffectCall) -> None:
        """A call begins."""
        if self._ended:
            raise EffectMisused(f"{call} begins behind the end of its handling: await it inside the handler")
        if self._tx is not None and self._tx.asked_for:
            raise EffectMisused(
                f"{call} inside an open ctx.tx: the call stays made when the transaction is undone, and the transaction"
                " would hold its locks as long as the call takes. Make the call first, then write through ctx.tx"
            )
        identity = call.call.identity
        if identity in self._entered:
            raise EffectMisused(
                f"{call} is made twice in one handling: give each an operation_id= of its own, or let the exception of"
                " the first go, so that the next attempt makes it again"
            )
        if not self._effects.may_begin(call.call.effect):
            raise OwnershipLost(f"{call} is not begun: the worker is stopping, and whoever is next makes it")
        self._entered.add(identity)

    def opened(self, call: EffectCall) -> None:
        """Nobody cancels the handler from here on."""
        self._open.add(call)

    def closed(self, call: EffectCall) -> None:
        """Until here."""
        self._open.discard(call)
        if call.is_in_doubt and call.begun is not None:
            self._in_doubt = (*self._in_doubt, call.begun.made.effect_id)
        if not self._open and self._released is not None and not self._released.done():
            self._released.set_result(None)

    def holds_back(self) -> bool:
        """The event's end does, until the handling is over."""
        return not self._ended

    def unwritten(self, ending: asyncio.Future[None]) -> None:
        """What the event's end waits for."""
        self._unwritten.append(ending)

    @property
    def on_their_way(self) -> list[asyncio.Future[None]]:
        """Endings of calls that nothing was kept waiting for: they have to be durable before the event's end is."""
        return self._unwritten

    @property
    def in_doubt(self) -> tuple[int, ...]:
        """Calls, open ones too, of which nobody knows whether they were done: the numbers of their rows."""
        still_open = [call.begun.made.effect_id for call in self._open if call.begun is not None]
        return (*self._in_doubt, *still_open) if still_open else self._in_doubt

    def before_tx(self) -> None:
        """`ctx.tx` is about to be opened. Raises EffectMisused inside a call."""
        if self._open:
            call = next(iter(self._open))
            raise EffectMisused(
                f"ctx.tx is opened inside {call}: a transaction would be open as long as the call takes. Close the"
                " `async with` first, then write through ctx.tx"
            )

    # ------------------------------------------------------------------------------------------ what the guard asks

    def left_s(self) -> float | None:
        """How long the open calls may still take, with their margins; None where none is open."""
        ends_s = [call.begun.until_s + call.call.effect.margin_s for call in self._open if call.begun is not None]
        return max(ends_s) - self._effects.ledger.monotonic_s() if ends_s else None

    def released(self) -> asyncio.Future[None]:
        """Done once no call is open."""
        if self._released is None or self._released.done():
            self._released = asyncio.get_running_loop().create_future()
        return self._released

    def leave(self, outcome: Returned[T] | Raised) -> Returned[T] | Raised:
        """The handling is over, and nothing begins any more; what it left behind may be an error of its own."""
        self._ended = True
        misused = None if isinstance(outcome, Raised) else self._misused()
        self._tx = None
        self._made.clear()
        return outcome if misused is None else Raised(misused)

    def _misused(self) -> EffectMisused | None:
        for call in self._made if len(self._made) > len(self._entered) else ():
            if not call.was_entered:
                return EffectMisused(
                    f"{call} was made and never entered: write `async with ctx.effect(...) as effect:`"
                )
        if self._open:
            call = next(iter(self._open))
            return EffectMisused(f"{call} is still open at the end of its handling: await it inside the handler")
        return None


def _scope_of(event: Event[Any]) -> str:
    """An event's own id counts within its topic, type and tenant."""
    return f"{event.topic}\x1f{event.type}\x1f{event.tenant or ''}"


def named_effects(consumer: Consumer) -> dict[str, Collection[str]]:
    """The effects that its commands say they make."""
    return {name: command.effects for name, command in consumer.commands.items() if command.effects is not None}


def asker(mediator: Mediator) -> Asker:
    """Runs probes like handlers: with resources, bounded, and whatever they raise is no answer."""

    async def ask(effect: Effect, probe: Probe, asked: Asked) -> object:
        wants = read_wants(probe.function)
        outcome = await guarded(mediator.call(probe.function, wants, (asked,), None), effect.deadline_s)
        if isinstance(outcome, Raised):
            return CannotTell(f"it raised {type(outcome.error).__name__}")
        return outcome.value

    return ask
