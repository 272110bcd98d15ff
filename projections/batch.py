"""A batch of projections' events, cut to what each projection has not seen, and the call of its function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, NamedTuple, final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from ..dlq.guard import HandlerRaised, Raised, guarded
from ..dlq.outcomes import said
from ..inbox.checkpoint import Move
from ..inbox.database import give_up
from ..inbox.errors import FatalError
from ..inbox.event import Event, Partition
from ..inbox.holding import Holding
from ..inbox.outbox import NewOutgoing
from ..inbox.outcome import Dead, Handled, Retry, Skipped, Unknown
from ..inbox.points import Point, reach
from .keeping import kept_open
from .projection import Projection

Events = Sequence[Event[Any]]


class Projected(NamedTuple):
    """What a run of the user's function came to: what it published, and how many of its events were out of date."""

    outgoing: Sequence[NewOutgoing] = ()
    stale: int = 0


class Ran(NamedTuple):
    """What a run gave: what it published, and whatever the function returned."""

    outgoing: Sequence[NewOutgoing]
    returned: object = None


Project = Callable[[Events, AsyncConnection], Awaitable[Ran]]
"""Runs the user's function on a batch inside the batch's transaction."""


@dataclass(frozen=True, slots=True)
class BoundProjection:
    """A projection with its handler id in the database and its function, ready to be called."""

    projection: Projection
    handler_id: int
    project: Project

    @property
    def name(self) -> str:
        """The handler's name."""
        return self.projection.name

    @property
    def key(self) -> tuple[int, int]:
        """(handler id, version): whose claims and checkpoints these are."""
        return (self.handler_id, self.projection.version)

    async def run(self, events: Events, conn: AsyncConnection, *, constraints_now: bool = False) -> Projected:
        """Run the function within its deadline, in the transaction that `conn` has open.

        `constraints_now` checks deferred constraints right behind it, while it can be told whose event broke one.

        Raises:
            HandlerRaised: with what the function raised: it may be an event's fault, or the world's.
            FatalError: the function itself is wrong, whatever it is given.
        """
        reach(Point.BEFORE_HANDLER, self.name)
        async with kept_open(conn, self.name):
            outcome = await guarded(self.project(events, conn), self.projection.deadline_s)
            if isinstance(outcome, Raised) and outcome.alive:
                await give_up(conn)  # what it does later must not stand among what others commit
        if isinstance(outcome, Raised):
            raise HandlerRaised(outcome.error)
        reach(Point.AFTER_HANDLER, self.name)
        if constraints_now:
            await _check_constraints(conn)
        return Projected(tuple(outcome.value.outgoing), self._stale(outcome.value.returned, events))

    def _stale(self, returned: object, events: Events) -> int:
        if returned is None or isinstance(returned, Handled):
            return 0
        if isinstance(returned, Skipped | Retry | Dead | Unknown):
            raise HandlerRaised(said(returned, events[0].record if len(events) == 1 else None))
        if isinstance(returned, int) and not isinstance(returned, bool) and returned >= 0:
            return returned
        raise FatalError(
            f"the projection {self.name!r} returned a {type(returned).__name__}",
            fix="return nothing, the number of events that came too late to change anything, or an outcome for all",
        )


async def _check_constraints(conn: AsyncConnection) -> None:
    try:
        await conn.execute(sa.text("SET CONSTRAINTS ALL IMMEDIATE"))
        await conn.execute(sa.text("SET CONSTRAINTS ALL DEFERRED"))
    except DBAPIError as error:
        raise HandlerRaised(error) from error


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive events of one partition; `next_offset` is the position behind them."""

    partition: Partition
    epoch: int
    events: tuple[Event[Any], ...]
    next_offset: int


@final
class Batch:
    """Stretches of several partitions, in order within each."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self.stretches = tuple(stretches)
        self.partitions = {stretch.partition: stretch.epoch for stretch in stretches}

    @property
    def events(self) -> Sequence[Event[Any]]:
        """All of them, in order within each partition."""
        return [event for stretch in self.stretches for event in stretch.events]

    def events_of(self, bound: BoundProjection, holdings: dict[Partition, Holding]) -> list[Event[Any]]:
        """What the projection has not seen of the held partitions: at or above its checkpoint, of a type it takes."""
        chosen: list[Event[Any]] = []
        for stretch in self.stretches:
            holding = holdings.get(stretch.partition)
            if holding is not None:
                chosen += _above(stretch.events, holding.checkpoints[bound.key])
        return _of_its_types(bound.projection, chosen)

    def moves(self, bound: BoundProjection, holdings: dict[Partition, Holding]) -> list[Move]:
        """How far the projection's checkpoints go with this batch."""
        ends: dict[Partition, int] = {}
        for stretch in self.stretches:
            ends[stretch.partition] = max(stretch.next_offset, ends.get(stretch.partition, 0))
        handler_id, version = bound.key
        return [
            Move(
                handler_id, version, partition.topic, partition.number, holding.checkpoints[bound.key], ends[partition]
            )
            for partition, holding in holdings.items()
            if ends.get(partition, -1) > holding.checkpoints[bound.key]
        ]


def _above(events: tuple[Event[Any], ...], checkpoint: int) -> Sequence[Event[Any]]:
    if not events or events[0].offset >= checkpoint:
        return events
    return [event for event in events if event.offset >= checkpoint]


def _of_its_types(projection: Projection, events: list[Event[Any]]) -> list[Event[Any]]:
    """Asked once for each type in the batch, not for each event: mostly all are of one."""
    if not projection.takes:
        return events
    classes = [type(value) for value in _values(events)]
    kinds = set(zip([event.type for event in events], classes, strict=True))
    taken = {kind for kind in kinds if kind[1] is NoneType or projection.accepts(*kind)}
    if len(taken) == len(kinds):
        return events
    return [event for event, cls in zip(events, classes, strict=True) if (event.type, cls) in taken]


def _values(events: list[Event[Any]]) -> list[object]:
    return [event.value for event in events]
