"""Slices cut to measure. No IO; time is an argument."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from ...inbox.event import Event
from .signals import Slice


def behind(part: Slice, offset: int) -> Slice:
    """The slice without its events below `offset`; the same object where there are none (the usual case)."""
    events = part.events
    if not events or events[0].record.offset >= offset:
        return part
    return _tail(part, bisect_left(events, offset, key=_offset))


def split(part: Slice, count: int) -> tuple[Slice, Slice]:
    """The first `count` events and the rest; 0 < count < number of events.

    The head ends behind its own last event: the gap up to the next event, if there is one, belongs to the rest. Lanes
    are not kept: only stream tracks split.
    """
    head = part.events[:count]
    size_bytes = part.size_bytes * count // len(part.events)
    rest = part.events[count:]
    return (
        Slice(part.partition, part.epoch, head, _offset(head[-1]) + 1, size_bytes),
        Slice(part.partition, part.epoch, rest, part.next_offset, part.size_bytes - size_bytes),
    )


def _tail(part: Slice, first: int) -> Slice:
    events = part.events[first:]
    size_bytes = part.size_bytes * len(events) // len(part.events)
    lanes: Mapping[str, tuple[int, ...]] = {
        track: tuple(index - first for index in indexes if index >= first) for track, indexes in part.lanes.items()
    }
    return Slice(part.partition, part.epoch, events, part.next_offset, size_bytes, lanes)


def _offset(event: Event[Any]) -> int:
    return event.record.offset
