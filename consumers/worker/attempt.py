"""One attempt at a command, and what its handler may ask for: each part is made when it is asked for, and not before.

Most handlers ask for few of them, and a transaction, a publication and a desk that nobody uses would cost as much as
calling the handler. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

from ...dlq.guard import Raised, Returned
from ...inbox.effect_call import EffectCall
from ...inbox.effect_rules import Effect
from ...inbox.event import Event
from ...inbox.holding import Holding
from ...inbox.outbox import NewOutgoing
from ...inbox.store import Store
from ..command import Command
from ..engine.signals import LaneItem
from .effects import EffectDesk, Effects
from .publishing import Encoder, Publication
from .transaction import LazyTx

T = TypeVar("T")

NONE_ON_THEIR_WAY: Final[list[asyncio.Future[None]]] = []

LEFT: Final = Returned(None)
"""The handler has come back."""


@dataclass(frozen=True, slots=True)
class BoundCommand:
    """A command with its handler id in the database."""

    command: Command
    handler_id: int


class Tools(NamedTuple):
    """What the parts are made with."""

    store: Store
    consumer: str
    encoder: Encoder
    effects: Effects


@final
class Attempt:
    """`number` counts from 1. What the guard asks of open calls, it answers."""

    __slots__ = ("_desk", "_publication", "_tools", "_tx", "bound", "ended", "handler", "holding", "item", "number")

    def __init__(self, tools: Tools, bound: BoundCommand, item: LaneItem, holding: Holding, number: int) -> None:
        self.bound = bound
        self.handler = bound.command.name
        self.item = item
        self.holding = holding
        self.number = number
        self.ended = False
        self._tools = tools
        self._tx: LazyTx | None = None
        self._desk: EffectDesk | None = None
        self._publication: Publication | None = None

    @property
    def event(self) -> Event[Any]:
        """What is handled."""
        return self.item.event

    # ------------------------------------------------------------------------------------- what the handler asks for

    @property
    def tx(self) -> LazyTx:
        """The handler's own transaction, not opened yet."""
        tx = self._tx
        if tx is None:
            store, consumer, _, _ = self._tools
            epoch = self.holding.fence_epoch
            tx = self._tx = LazyTx(store, consumer, self.item.partition, epoch, self._before_tx, closed=self.ended)
        return tx

    @property
    def publication(self) -> Publication:
        """What it publishes."""
        publication = self._publication
        if publication is None:
            publication = self._publication = Publication(self._tools.encoder, self.handler, self.event)
        return publication

    def effect(self, effect: str | Effect, operation_id: str | None, request: object) -> EffectCall:
        """A call to the outside."""
        desk = self._desk
        if desk is None:
            desk = EffectDesk(self._tools.effects, self.handler, self.bound.handler_id, self.event, self.holding)
            desk.watch(self)
            if self.ended:
                desk.leave(LEFT)
            self._desk = desk
        return desk.effect(effect, operation_id, request)

    def _before_tx(self) -> None:
        """A transaction is about to be opened. Raises EffectMisused inside a call."""
        if self._desk is not None:
            self._desk.before_tx()

    @property
    def asked_for(self) -> bool:
        """The handler has opened its transaction, or is about to."""
        return self._tx is not None and self._tx.asked_for

    # ------------------------------------------------------------------------------------------ what became of them

    @property
    def opened(self) -> LazyTx | None:
        """The transaction, where the handler asked for it by name, opened or not."""
        return self._tx

    @property
    def outgoing(self) -> tuple[NewOutgoing, ...]:
        """What goes out with the claim."""
        return () if self._publication is None else tuple(self._publication.outgoing)

    @property
    def on_their_way(self) -> list[asyncio.Future[None]]:
        """Endings of its calls: the event's end is not durable before they are."""
        return NONE_ON_THEIR_WAY if self._desk is None else self._desk.on_their_way

    @property
    def in_doubt(self) -> tuple[int, ...]:
        """Calls of which nobody knows whether they were done: while they are not known, the event does not die."""
        return () if self._desk is None else self._desk.in_doubt

    def leave(self, outcome: Returned[T] | Raised) -> Returned[T] | Raised:
        """The handling is over, and nothing begins any more; what it left behind may be an error of its own."""
        self.ended = True
        return outcome if self._desk is None else self._desk.leave(outcome)

    def left_s(self) -> float | None:
        """How long open calls may still take; None where none is open."""
        return None if self._desk is None else self._desk.left_s()

    def released(self) -> asyncio.Future[None]:
        """Done once no call is open. Asked only while one is."""
        assert self._desk is not None, "a call is open"
        return self._desk.released()
