"""Failure rows of commands that were not handled: made from what became of them, and told of once they are durable."""

from __future__ import annotations

from typing import NamedTuple, final

from ...dlq.burial import Burial
from ...dlq.fates import ForReview
from ...dlq.reporting import COMMAND, report_dead, report_parked, report_unknown
from ...inbox import failure_rows, outbox
from ...inbox.clock import Clock
from ...inbox.failure_rows import NewFailure, Place
from ...inbox.meter import Meter
from ...inbox.outcome import Dead
from .completion import COMMAND_VERSION, Completion, Fate


class Made(NamedTuple):
    """A failure row, and for the dead the letter that commits with it."""

    row: NewFailure
    letter: outbox.NewOutgoing | None = None


@final
class FailedRows:
    """Makes them for one consumer."""

    def __init__(self, burial: Burial, meter: Meter, clock: Clock) -> None:
        self._burial = burial
        self._meter = meter
        self._clock = clock

    def make(self, member: Completion, fate: Fate, incarnation: int) -> Made:
        """The row of an event that was not handled, under its topic's incarnation."""
        place = Place(member.handler_id, COMMAND_VERSION, incarnation)
        event, now, alone = member.item.event, self._clock.now(), member.alone
        if isinstance(fate, Dead):
            return Made(
                *self._burial.bury(
                    place, member.track, event, fate, attempts=member.attempts, alone=alone, holds=member.holds_dead
                )
            )
        if isinstance(fate, ForReview):
            made = failure_rows.unknown(
                place, event, fate.verdict, attempts=fate.attempts, now=now, alone=alone, effect_id=fate.effect_id
            )
            return Made(made)
        made = failure_rows.queued(
            place, event, fate.verdict,
            due=fate.due, attempts=fate.attempts, now=now, alone=alone,
            class_attempts=fate.class_attempts, retrying_since=fate.retrying_since, effect_id=fate.effect_id,
        )  # fmt: skip
        return Made(made)

    def linked(self, member: Completion, original: int, incarnation: int) -> NewFailure:
        """The row of a repeat of what stands in the table: not run, ends with that one."""
        place = Place(member.handler_id, COMMAND_VERSION, incarnation)
        return failure_rows.linked(place, member.item.event, original, now=self._clock.now())

    def tell(self, member: Completion) -> None:
        """Its row is durable: into the log and the figures."""
        event, fate = member.item.event, member.fate
        if isinstance(fate, Dead):
            self._meter.dead(member.track, fate.reason, 1)
            report_dead(event, member.track, COMMAND, fate, member.attempts)
        elif isinstance(fate, ForReview):
            self._meter.unknown(member.track, 1)
            report_unknown(event, member.track, COMMAND, fate.verdict, fate.attempts)
        elif fate is not None:
            self._meter.parked(member.track, 1)
            report_parked(event, member.track, COMMAND, fate.verdict, fate.attempts, fate.due)
