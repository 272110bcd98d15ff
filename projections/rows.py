"""Failure rows of a projection's events: made from what becomes of them, and told of once they are durable."""

from __future__ import annotations

from typing import Any, NamedTuple, final

from ..dlq.burial import Burial
from ..dlq.reporting import PROJECTION, report_dead, report_parked, report_skipped, report_unknown
from ..inbox import failure_rows
from ..inbox.clock import Clock
from ..inbox.event import Event
from ..inbox.failure_rows import NewFailure, Place
from ..inbox.meter import Meter
from ..inbox.outbox import NewOutgoing
from .batch import BoundProjection
from .fates import Died, Fate, ForReview, holds, is_alone


class Made(NamedTuple):
    """A failure row, and for the dead the letter that commits with it."""

    row: NewFailure
    letter: NewOutgoing | None = None


@final
class Rows:
    """Makes them for one consumer."""

    def __init__(self, burial: Burial, meter: Meter, clock: Clock) -> None:
        self._burial = burial
        self._meter = meter
        self._clock = clock

    def make(self, bound: BoundProjection, event: Event[Any], fate: Fate, incarnation: int) -> Made:
        """The row of an event that is not applied now, under its topic's incarnation."""
        policy, place = bound.projection.policy, Place(*bound.key, incarnation)
        now, alone = self._clock.now(), is_alone(event, policy)
        if isinstance(fate, Died):
            held = holds(fate, policy) and not alone
            return Made(
                *self._burial.bury(place, bound.name, event, fate.dead, attempts=fate.attempts, alone=alone, holds=held)
            )
        if isinstance(fate, ForReview):
            row = failure_rows.unknown(
                place, event, fate.verdict, attempts=fate.attempts, now=now, alone=alone, effect_id=fate.effect_id
            )
            return Made(row)
        row = failure_rows.queued(
            place, event, fate.verdict,
            due=fate.due, attempts=fate.attempts, now=now, alone=alone, class_attempts=fate.class_attempts,
            retrying_since=fate.retrying_since, effect_id=fate.effect_id,
        )  # fmt: skip
        return Made(row)

    def linked(self, bound: BoundProjection, event: Event[Any], original: int, incarnation: int) -> NewFailure:
        """The row of a repeat of what stands in the table: not run, ends with that one."""
        return failure_rows.linked(Place(*bound.key, incarnation), event, original, now=self._clock.now())

    def tell(self, handler: str, event: Event[Any], fate: Fate) -> None:
        """Its row is durable: into the log and the figures."""
        if isinstance(fate, Died):
            self._meter.dead(handler, fate.dead.reason, 1)
            report_dead(event, handler, PROJECTION, fate.dead, fate.attempts)
        elif isinstance(fate, ForReview):
            self._meter.unknown(handler, 1)
            report_unknown(event, handler, PROJECTION, fate.verdict, fate.attempts)
        else:
            self._meter.parked(handler, 1)
            report_parked(event, handler, PROJECTION, fate.verdict, fate.attempts, fate.due)

    def tell_skipped(self, handler: str, event: Event[Any], why: str) -> None:
        """Its claim is durable, and it was not run."""
        self._meter.skipped(handler, 1)
        report_skipped(event, handler, PROJECTION, why)
