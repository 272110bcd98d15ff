"""Attempts at one event until it came back, or until its fate is decided. What may wait for long waits in the queue.

A short wait is spent here, with the lane held, while others have the event's place; a longer one becomes a queued row
with its due time, which survives this process and costs no place. A dependency that is away costs no attempt and has no
bound. What if the process stops between two attempts? The event is read again and its attempts start anew; those of a
queued row stand in the row.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from ...dlq.failure_text import describe, exception_type
from ...dlq.fates import PENDING_EFFECT, RETRY, REVIEW, UNKNOWN_EFFECT, ForReview, Later
from ...dlq.guard import HandlerRaised
from ...dlq.outcomes import dead_by, fatal_by
from ...dlq.policy import FailurePolicy, Rule
from ...dlq.reporting import report_retry
from ...dlq.retry import RetryState
from ...dlq.rules import (
    DATABASE,
    DeadNow,
    Decision,
    DependencyAway,
    Fatal,
    Lost,
    Postponed,
    ReviewNow,
    SkipNow,
    Transient,
    decide,
    may_be_an_outage,
)
from ...inbox.clock import Clock
from ...inbox.errors import OwnershipLost
from ...inbox.event import Event
from ...inbox.failure_rows import Verdict
from ...inbox.faults import classify
from ...inbox.meter import Meter
from ...inbox.store import STORE_ERRORS
from .completion import Fate
from .dependencies import Dependencies
from .together import until_moment_s
from .transaction import TxPoolFullError

T = TypeVar("T")


@final
@dataclass(slots=True)
class Settled(Generic[T]):
    """How the attempts ended: with a `value`, or with a `fate`, or as `skipped` for this reason."""

    attempts: int
    value: T | None = None
    fate: Fate | None = None
    skipped: str | None = None


@final
@dataclass(slots=True)
class Subject:
    """Whose attempts these are."""

    handler: str
    kind: str
    event: Event[Any]
    policy: FailurePolicy
    rest: Rest = asyncio.sleep


Rest = Callable[[float], Awaitable[None]]
"""Waits so many seconds, with the lane held, for the next attempt."""


@final
class Attempts:
    """Owned by the event loop. Raises OwnershipLost and FatalError, which are no fates."""

    def __init__(self, dependencies: Dependencies, meter: Meter, clock: Clock) -> None:
        self._dependencies = dependencies
        self._meter = meter
        self._clock = clock

    async def until_settled(
        self, subject: Subject, attempt: Callable[[], Awaitable[T]], state: RetryState | None = None
    ) -> Settled[T]:
        """Attempt until it comes back or a fate is decided. `state`: what a row tells of earlier attempts."""
        state = state or RetryState()
        while True:
            try:
                return Settled(state.attempts_total + 1, await attempt())
            except HandlerRaised as raised:
                error, rules = raised.error, subject.policy.rules
            except STORE_ERRORS as store_error:  # our own statements: the rules speak of the handler
                error, rules = store_error, ()
            failed_s = self._clock.monotonic_s()
            decision = await self._decision(error, subject.event, rules)
            state = state.spared(self._clock.monotonic_s() - failed_s)
            if decision is None:
                continue
            state, settled = await self._judge(subject, decision, error, state)
            if settled is not None:
                return settled

    def at_first_sight(self, subject: Subject, error: Exception) -> tuple[Decision, str | None]:
        """What `error` leads to, and the dependency that has to answer before it does: an outage raises the same."""
        decision = decide(error, classify, subject.policy.rules, self._clock.now())
        return _behind_an_answer(error, decision)

    def again(
        self, subject: Subject, decision: Transient, error: Exception, state: RetryState
    ) -> tuple[RetryState, float | Fate]:
        """Count one more failure. A short wait is told in seconds; a long one is a row's, and one too many the end."""
        state = state.failed(exception_type(error), self._clock.monotonic_s())
        policy = subject.policy
        delay_s = policy.retry.next_delay_s(state, self._clock.random(), decision.after_s)
        if delay_s is None:
            return state, dead_by(decision, error, subject.event.record)
        self._meter.retried(subject.handler, 1)
        report_retry(subject.event, subject.handler, subject.kind, error, state.attempts_total, delay_s, decision)
        if delay_s <= policy.retry.in_place_max_s or policy.on_failure == "stop":
            return state, delay_s
        text = describe(error, (subject.event.key, subject.event.record.value))
        verdict = Verdict(RETRY, text.message, text.type, text.stack_digest)
        due = self._clock.now() + datetime.timedelta(seconds=delay_s)
        return state, self._wait(verdict, due, state)

    async def _judge(
        self, subject: Subject, decision: Decision, error: Exception, state: RetryState
    ) -> tuple[RetryState, Settled[Any] | None]:
        """What the decision makes of the event; None: another attempt is due now."""
        attempts = state.attempts_total + 1
        match decision:
            case Transient():
                return await self._again(subject, decision, error, state)
            case SkipNow():
                return state, Settled(attempts, skipped=decision.because)
            case Postponed():  # no attempt is counted: nothing was tried
                return state, await self._postponed(subject, decision, error, state)
            case ReviewNow():
                text = describe(error, (subject.event.key, subject.event.record.value))
                reason = REVIEW if decision.effect_id is None else UNKNOWN_EFFECT
                why = decision.because if decision.effect_id is None else text.message
                verdict = Verdict(reason, why or text.message, text.type, text.stack_digest)
                fate = ForReview(verdict, attempts, decision.effect_id)
                return state, Settled(attempts, fate=fate)
            case DeadNow():
                return state, Settled(attempts, fate=dead_by(decision, error, subject.event.record))
            case _:
                raise AssertionError(f"{type(decision).__name__} is no end of an event")

    async def _postponed(
        self, subject: Subject, decision: Postponed, error: Exception, state: RetryState
    ) -> Settled[Any] | None:
        if subject.policy.on_failure == "stop":
            await asyncio.sleep(max(0.0, (decision.due - self._clock.now()).total_seconds()))
            return None
        verdict = Verdict(PENDING_EFFECT, describe(error).message)
        return Settled(state.attempts_total, fate=self._wait(verdict, decision.due, state, decision.effect_id))

    async def _again(
        self, subject: Subject, decision: Transient, error: Exception, state: RetryState
    ) -> tuple[RetryState, Settled[Any] | None]:
        """A short wait is spent here."""
        state, then = self.again(subject, decision, error, state)
        if isinstance(then, int | float):
            await subject.rest(until_moment_s(then, asyncio.get_running_loop().time()))
            return state, None
        return state, Settled(state.attempts_total, fate=then)

    def _wait(self, verdict: Verdict, due: datetime.datetime, state: RetryState, effect_id: int | None = None) -> Later:
        """With all that the row has to tell whoever takes it up."""
        since = self._clock.now() - datetime.timedelta(seconds=state.age_s) if state.attempts else None
        return Later(verdict, due, state.attempts_total, state.attempts, since, effect_id)

    async def _decision(self, error: Exception, event: Event[Any], rules: tuple[Rule, ...]) -> Decision | None:
        """What the error means; None: it had to wait (for a dependency, for a connection), no attempt counted."""
        if isinstance(error, TxPoolFullError):
            return None
        decision = decide(error, classify, rules, self._clock.now())
        if isinstance(decision, Fatal):  # also by a rule that takes an outage: to leave loses nothing
            raise fatal_by(decision, error, event.record)
        if isinstance(decision, Lost):
            raise OwnershipLost from error
        decision, asks = _behind_an_answer(error, decision)
        if asks is not None and not await self._dependencies.answers(asks):
            await self._dependencies.wait(asks)
            return None
        return decision


def _behind_an_answer(error: Exception, decision: Decision) -> tuple[Decision, str | None]:
    """What the decision is once a dependency answers, and which; None where none is asked."""
    if isinstance(decision, DependencyAway):
        return Transient(because=decision.because, led_by=decision.led_by), decision.name
    return decision, DATABASE if may_be_an_outage(error, decision, classify) else None
