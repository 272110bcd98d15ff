"""The search for the events by which a batch fails: pieces, tries and waits over several passes. Time comes from the
clock given; no IO.

A pass hands the pieces over in their order and is told of each how it went. A piece that fails is halved; an event that
fails by itself gets a fate, or another try once its wait is over. Waits are short and few: together they take no longer
than the policy lets a failure wait in memory, and what has to wait longer becomes a row in the queue. An event behind
one that is to be tried again, of the same key, is not run before it.

A pass that found out something new, or in which somebody still waits, is undone, and the next one knows more. Passes
come to an end: each one halves a piece, decides on an event, or counts a try, and the policy bounds the tries.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, final

from ..dlq.failure_text import describe, exception_type
from ..dlq.fates import PENDING_EFFECT, RETRY, REVIEW, UNKNOWN_EFFECT, ForReview, Later
from ..dlq.outcomes import dead_by
from ..dlq.policy import FailurePolicy
from ..dlq.retry import RetryState
from ..dlq.rules import DeadNow, Decision, Postponed, ReviewNow, Said, SkipNow, Transient
from ..inbox.clock import Clock
from ..inbox.event import Event
from ..inbox.failure_rows import Verdict
from ..inbox.outcome import Reason
from .fates import (
    TOO_MANY,
    Died,
    Fate,
    Lane,
    Verdicts,
    conflict,
    holds,
    lane_of,
    stopped,
)
from .verdicts import Events

SEARCH_MIN_S: Final = 10.0
"""A search that takes no longer than this is never cut short, however short the projection's deadline is."""


class Again(NamedTuple):
    """A try that failed and will be made again: for the log."""

    event: Event[Any]
    error: Exception
    attempts: int
    delay_s: float
    decision: Transient | None = None


@final
class Search:
    """One projection's search through one batch.

    Args:
        handler: its name, for what ends the process.
        policy: how often and how long.
        deadline_s: how long one run of the function may take. A search for what time may heal takes as long at most;
            after that a piece that still fails is queued as it stands, and its events are tried one by one there.
        clock: what time it is, and chance.
    """

    def __init__(self, handler: str, policy: FailurePolicy, deadline_s: float, clock: Clock) -> None:
        self._handler = handler
        self._policy = policy
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._cut_s = self._began_s + max(deadline_s, SEARCH_MIN_S)
        self._fates: dict[int, Fate] = {}
        self._skipped: dict[int, str] = {}
        self._tries: dict[int, RetryState] = {}
        self._before = RetryState()
        self._halve = False
        self.pieces: list[Events] = []
        self._place = 0
        self._held: set[Lane] = set()
        self._found = False
        self.delay_s: float | None = None
        self.again: list[Again] = []

    # ------------------------------------------------------------------------------------------- before the passes

    def found_conflicts(self, events: Sequence[Event[Any]]) -> None:
        """Their ids were handled with other bytes."""
        for event in events:
            self._end(event, conflict(self._policy))

    def found_too_many(self, events: Sequence[Event[Any]]) -> None:
        """There is no room for them in the queue."""
        for event in events:
            self._end(event, TOO_MANY)

    def failed_whole(self, decision: Decision, error: Exception, events: Sequence[Event[Any]]) -> None:
        """The whole batch failed. What time heals is mostly gone at the second try; all else begins with halves."""
        self._halve = True
        if not isinstance(decision, Transient) or not events:
            return
        self._before = self._before.failed(exception_type(error), self._clock.monotonic_s())
        delay_s = self._delay_s(self._before, decision)
        if delay_s is not None and self._fits(delay_s):
            self._halve = False
            self._wait(events[0], error, self._before, delay_s, decision)

    def known(self) -> Verdicts:
        """What was found so far."""
        return Verdicts(dict(self._fates), dict(self._skipped))

    # ---------------------------------------------------------------------------------------------------- one pass

    def begin(self, events: Events) -> None:
        """A pass over the events that are to be applied: the pieces that there are, without those that left."""
        wanted = {id(event) for event in events if id(event) not in self._skipped}
        self.pieces = [kept for piece in self.pieces if (kept := [event for event in piece if id(event) in wanted])]
        if sum(len(piece) for piece in self.pieces) < len(wanted):
            self.pieces = self._cut([event for event in events if id(event) in wanted])
        self._place, self._held = 0, set()
        self._found, self.delay_s, self.again = False, None, []

    def _cut(self, events: Events) -> list[Events]:
        if not self._halve or len(events) < 2:
            return [events]
        middle = len(events) // 2
        return [events[:middle], events[middle:]]

    def next(self) -> Events | None:
        """The next piece to try; None at the end of the pass."""
        while self._place < len(self.pieces):
            piece = self.pieces[self._place]
            ready = piece
            if self._held:
                ready = [event for event in piece if lane_of(event) not in self._held]
            if len(ready) == len(piece):
                return piece
            held = [event for event in piece if lane_of(event) in self._held]
            self.pieces[self._place : self._place + 1] = [ready, held] if ready else [held]
            if ready:
                return ready
            self._place += 1
        return None

    def went_well(self) -> None:
        """The piece was applied."""
        self._place += 1

    def failed(self, decision: Decision, error: Exception) -> None:
        """The piece failed: halve it, or decide on its one event. Raises FatalError under `on_failure="stop"`."""
        piece = self.pieces[self._place]
        is_cut = self._policy.on_failure != "stop" and self._clock.monotonic_s() > self._cut_s
        if len(piece) > 1 and not (is_cut and isinstance(decision, Transient)):
            middle = len(piece) // 2
            self.pieces[self._place : self._place + 1] = [piece[:middle], piece[middle:]]
        elif len(piece) > 1:
            self._queue_all(piece, error)
        else:
            self._judge(piece[0], decision, error)

    @property
    def is_settled(self) -> bool:
        """The pass found nothing that it did not know when it began, and nobody waits for another try."""
        return not self._found and self.delay_s is None

    # ---------------------------------------------------------------------------------------------------- one event

    def _judge(self, event: Event[Any], decision: Decision, error: Exception) -> None:
        tries = self._tries.get(id(event), self._before)
        match decision:
            case Transient():
                self._try_again(event, decision, error, tries)
                return
            case SkipNow():  # it has its claim, so this pass may stand
                self._skipped[id(event)] = decision.because
            case Postponed():  # nothing was tried, so no attempt counts
                text = Verdict(PENDING_EFFECT, describe(error).message)
                self._end(event, self._later(text, decision.due, tries, decision.effect_id))
            case ReviewNow():
                reason = REVIEW if decision.effect_id is None else UNKNOWN_EFFECT
                text = _text(reason, event, error)
                if decision.effect_id is None and decision.because:
                    text = text._replace(message=decision.because)
                self._end(event, ForReview(text, tries.attempts_total + 1, decision.effect_id))
            case DeadNow():
                dead = dead_by(decision, error, event.record)
                self._end(event, Died(dead, tries.attempts_total + 1))
            case _:
                raise AssertionError(f"{type(decision).__name__} is no end of an event")
        del self.pieces[self._place]

    def _try_again(self, event: Event[Any], decision: Transient, error: Exception, tries: RetryState) -> None:
        tries = self._tries[id(event)] = tries.failed(exception_type(error), self._clock.monotonic_s())
        delay_s = self._delay_s(tries, decision)
        if delay_s is not None and self._fits(delay_s):
            self._wait(event, error, tries, delay_s, decision)
            self._place += 1
            return
        if delay_s is None:
            self._end(event, Died(dead_by(decision, error, event.record), tries.attempts_total))
        else:
            self.again.append(Again(event, error, tries.attempts_total, delay_s, decision))
            due = self._clock.now() + datetime.timedelta(seconds=delay_s)
            self._end(event, self._later(_text(RETRY, event, error), due, tries))
        del self.pieces[self._place]

    def _queue_all(self, piece: Events, error: Exception) -> None:
        """The search takes too long: these are tried one by one where they hold nobody up. None of them was so far."""
        for event in piece:
            tries = self._tries.get(id(event), self._before)
            self.again.append(Again(event, error, tries.attempts_total, 0.0))
            self._end(event, Later(_text(RETRY, event, error), self._clock.now(), tries.attempts_total))
        del self.pieces[self._place]

    def _end(self, event: Event[Any], fate: Fate) -> None:
        if self._policy.on_failure == "stop":
            raise stopped(self._handler, event, fate)
        self._fates[id(event)] = fate
        self._found = True
        if self._policy.on_failure == "block" and holds(fate, self._policy):
            self._hold(event)

    def _hold(self, event: Event[Any]) -> None:
        """Later events of its key are not run in this pass."""
        lane = lane_of(event)
        if lane is not None:
            self._held.add(lane)

    def _later(
        self, verdict: Verdict, due: datetime.datetime, tries: RetryState, effect_id: int | None = None
    ) -> Later:
        since = self._clock.now() - datetime.timedelta(seconds=tries.age_s) if tries.attempts else None
        return Later(verdict, due, tries.attempts_total, tries.attempts, since, effect_id)

    def _delay_s(self, tries: RetryState, decision: Transient) -> float | None:
        return self._policy.retry.next_delay_s(tries, self._clock.random(), decision.after_s)

    def _fits(self, delay_s: float) -> bool:
        """Whether the wait may be spent here. Under `stop` there is no queue, so all of them are."""
        if self._policy.on_failure == "stop":
            return True
        spent_s = self._clock.monotonic_s() - self._began_s
        return spent_s + delay_s <= self._policy.retry.in_place_max_s

    def _wait(
        self, event: Event[Any], error: Exception, tries: RetryState, delay_s: float, decision: Transient
    ) -> None:
        self.again.append(Again(event, error, tries.attempts_total, delay_s, decision))
        self.delay_s = max(delay_s, self.delay_s or 0.0)
        self._hold(event)


def _text(reason: str | Reason, event: Event[Any], error: Exception) -> Verdict:
    if isinstance(error, Said):
        return Verdict(reason, str(error))
    text = describe(error, (event.record.key, event.record.value))
    return Verdict(reason, text.message, text.type, text.stack_digest)
