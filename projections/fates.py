"""What becomes of an event that is not applied now: dead, later, for a person, or behind one of its key. No IO."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from ..dlq.fates import BEHIND, ForReview, Later
from ..dlq.parked_limits import OVER
from ..dlq.policy import FailurePolicy
from ..inbox.errors import FatalError
from ..inbox.event import Event
from ..inbox.failure_rows import Verdict
from ..inbox.outcome import Dead, Reason


@final
@dataclass(frozen=True, slots=True)
class Died:
    """No try helps."""

    dead: Dead
    attempts: int = 1


Fate: TypeAlias = Died | Later | ForReview
"""What becomes of an event, as the state of its failure row."""

CONFLICT: Final = Dead(Reason.CONFLICT, "another record with this event id and different bytes was handled before")


TOO_MANY: Final = Died(OVER)
"""What a newcomer to the queue is for which there is no room, where its handler declares that."""


def conflict(policy: FailurePolicy) -> Fate:
    """What an event is whose id was handled with other bytes."""
    return ForReview(Verdict.of(CONFLICT)) if policy.on_conflict == "review" else Died(CONFLICT)


def is_conflict(fate: Fate) -> bool:
    """Whether the event contradicts another one of its id, so that no repeat of it is of interest."""
    reason = fate.dead.reason if isinstance(fate, Died) else fate.verdict.reason
    return reason == Reason.CONFLICT


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What was found of a batch's events. By identity: two records of one batch may carry the same event id."""

    fates: Mapping[int, Fate] = field(default_factory=dict[int, Fate])
    """id(event) -> what becomes of it."""
    skipped: Mapping[int, str] = field(default_factory=dict[int, str])
    """id(event) -> why there is nothing to do for it: it is claimed and not run."""


NO_VERDICTS: Final = Verdicts()

Lane: TypeAlias = tuple[str, bytes]
"""(topic, key): within one handler, the events that keep their order."""


def lane_of(event: Event[Any]) -> Lane | None:
    """The event's lane; None without a key: then it has one of its own."""
    key = event.record.key
    return None if key is None else (event.record.topic, key)


def is_alone(event: Event[Any], policy: FailurePolicy) -> bool:
    """Whether its row waits for no other, and no other for it."""
    return policy.on_failure != "block" or event.record.key is None


def holds(fate: Fate, policy: FailurePolicy) -> bool:
    """Whether later events of its key wait for it, where the handler keeps its keys in order."""
    return policy.after_dead == "hold" if isinstance(fate, Died) else True


def in_order(
    events: Sequence[Event[Any]],
    fates: Mapping[int, Fate],
    parked: Collection[Lane],
    policy: FailurePolicy,
    now: datetime.datetime,
) -> Mapping[int, Fate]:
    """The same fates, and under `block` whatever stands behind an event that holds its key, or in a parked key, waits.

    That an event failed by itself before does not count then: what it met may be different once it is its turn. Only a
    conflict stays one.
    """
    if policy.on_failure != "block" or not (fates or parked):
        return fates
    held, ordered = set(parked), dict(fates)
    for event in events:
        lane, fate = lane_of(event), fates.get(id(event))
        if lane is None or (fate is not None and is_conflict(fate) and lane in held):
            continue
        if lane in held:
            ordered[id(event)] = Later(BEHIND, now)
        elif fate is not None and holds(fate, policy):
            held.add(lane)
    return ordered


def stopped(handler: str, event: Event[Any], fate: Fate) -> FatalError:
    """Under `on_failure="stop"` nothing is passed: the process leaves, and the event is read again."""
    why = fate.dead.why if isinstance(fate, Died) else fate.verdict.message
    return FatalError(
        f"{handler!r} failed at {event.topic}/{event.partition}@{event.offset} ({why}), and declares on_failure='stop'",
        fix="repair the cause and start again: the event was not passed",
    )
