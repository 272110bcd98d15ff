"""A batch of projections' events, cut to what each projection has not seen. No IO."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from ..dlq.guard import HandlerRaised, Raised, guarded
from ..inbox.checkpoint import Move
from ..inbox.event import Event, Partition
from ..inbox.holding import Holding
from ..inbox.outbox import NewOutgoing
from .projection import Projection

Events = Sequence[Event[Any]]
Project = Callable[[Events, AsyncConnection], Awaitable[Sequence[NewOutgoing]]]
"""Runs the user's function on a batch inside the batch's transaction; gives back what it published."""


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

    async def run(self, events: Events, conn: AsyncConnection, *, constraints_now: bool = False) -> list[NewOutgoing]:
        """Run the function within its deadline; gives back what it published. Raises HandlerRaised.

        `constraints_now` checks deferred constraints right behind it, while it can be told whose event broke one.
        """
        outcome = await guarded(self.project(events, conn), self.projection.deadline_s)
        if isinstance(outcome, Raised):
            raise HandlerRaised(outcome.error)
        if constraints_now:
            await _check_constraints(conn)
        return list(outcome.value)


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
