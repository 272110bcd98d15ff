"""Which handlers an event's type goes to, worked out once for each type. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..projections.projection import Projection
from .app import Consumer
from .command import Command
from .engine.signals import LaneTrack, StreamTrack, Track


@dataclass(frozen=True, slots=True)
class Route:
    """The handlers of one type of event."""

    projections: frozenset[str]
    lanes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """No handler takes it."""
        return not self.projections and not self.lanes


@final
class Router:
    """Routes by (full type name, class of the value). A type is looked at once, then remembered."""

    TYPES_MAX = 10_000
    """Types of one consumer that are remembered: more than any schema registry's subject has, a bound all the same."""

    def __init__(self, projections: Sequence[Projection], commands: Sequence[Command]) -> None:
        self._projections = tuple(projections)
        self._commands = tuple(commands)
        self._routes: dict[tuple[str, type], Route] = {}
        self.tombstone = Route(
            frozenset(projection.name for projection in self._projections),
            tuple(command.name for command in self._commands),
        )
        """A delete marker goes to every projection of its topic, and is dead for each command."""

    def route(self, type_name: str, value_type: type) -> Route:
        """The handlers that take this type."""
        found = self._routes.get((type_name, value_type))
        if found is None:
            found = self._work_out(type_name, value_type)
            if len(self._routes) < self.TYPES_MAX:
                self._routes[(type_name, value_type)] = found
        return found

    def _work_out(self, type_name: str, value_type: type) -> Route:
        return Route(
            frozenset(p.name for p in self._projections if p.accepts(type_name, value_type)),
            tuple(c.name for c in self._commands if c.accepts(type_name, value_type)),
        )


def class_of(value: object) -> type:
    """The value's class."""
    return type(value)


def stream_name(projection: Projection) -> str:
    """Projections with the same batch settings share a stream track, and so a transaction."""
    return f"stream:{projection.batch_max}:{projection.batch_wait_ms}"


def tracks_of(consumer: Consumer) -> tuple[Track, ...]:
    """The engine's tracks for a consumer: a stream for each batch setting, lanes for each command."""
    streams = {
        stream_name(projection): StreamTrack(stream_name(projection), projection.batch_max, projection.batch_wait_ms)
        for projection in consumer.projections.values()
    }
    lanes = tuple(
        LaneTrack(command.name, command.concurrency, command.rate_per_s) for command in consumer.commands.values()
    )
    return (*streams.values(), *lanes)
