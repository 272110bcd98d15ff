"""What a handler declares about its failures: rules, retries, order, limits, breaker. Frozen values, no IO."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, final

from ..inbox.outcome import Reason
from .retry import RetryPolicy

OnFailure: TypeAlias = Literal["block", "continue", "stop"]
"""What becomes of the later events of a failed event's key: they wait, they go on, or the process leaves."""

AfterDead: TypeAlias = Literal["release", "hold"]
"""Whether the key goes on behind a dead event, or waits until a person has decided."""

AtLimit: TypeAlias = Literal["pause", "dead"]
"""Beyond the limit of parked events: read no more, or bury the newcomers with the reason `skipped_limit`."""

OnConflict: TypeAlias = Literal["dead", "review"]
"""What becomes of an event whose id was handled with other bytes."""

KEY_PARKED_MAX: Final = 10_000
"""Events of one key that may wait: at ten a second that is a quarter of an hour in which nobody looked."""

PARKED_MAX: Final = 1_000_000
"""Events of one handler that may wait: a gigabyte of rows of 1 KB each, which a database of any size can hold."""


class Then(enum.StrEnum):
    """What an exception leads to."""

    RETRY = "retry"
    SKIP = "skip"
    FAIL = "fail"
    REVIEW = "review"
    STOP = "stop"


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table that maps exceptions to decisions; the first that fits decides.

    `on` is an exception class, or its full name `module.Class` where importing it is not wanted. `when` looks at the
    exception itself and decides whether the rule fits. `because` is the reason, as a person reads it.
    `after_s` reads how long to wait out of the exception (Retry-After, say); it is kept within the policy's bounds.
    """

    on: type[BaseException] | str
    then: Then
    because: str
    when: Callable[[BaseException], bool] | None = None
    after_s: Callable[[BaseException], float | None] | None = None
    reason: Reason = Reason.REJECTED


When: TypeAlias = Callable[[Any], bool]
"""Looks at the exception (of the rule's class) and says whether the rule fits."""

AfterS: TypeAlias = Callable[[Any], float | None]
"""Looks at the exception and says how many seconds to wait; None: as the policy says."""

On: TypeAlias = type[BaseException] | str
"""An exception class, or its full name."""


def retry_on(on: On, *, because: str, when: When | None = None, after_s: AfterS | None = None) -> Rule:
    """Try again, by the handler's retry policy. `after_s`: the wait, where the exception tells it."""
    return Rule(on, Then.RETRY, because, when, after_s)


def skip_on(on: On, *, because: str, when: When | None = None) -> Rule:
    """There is nothing to do: the event is claimed as skipped, counted and logged."""
    return Rule(on, Then.SKIP, because, when)


def fail_on(on: On, *, because: str, when: When | None = None, reason: Reason = Reason.REJECTED) -> Rule:
    """No retry helps: the event is dead at once."""
    return Rule(on, Then.FAIL, because, when, reason=reason)


def review_on(on: On, *, because: str, when: When | None = None) -> Rule:
    """Nobody can know what happened: the event and its key wait for a person."""
    return Rule(on, Then.REVIEW, because, when)


def stop_on(on: On, *, because: str, when: When | None = None) -> Rule:
    """The process leaves with exit code 70, offsets unadvanced."""
    return Rule(on, Then.STOP, because, when)


@final
@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When the dead are too many to be the events' own fault: the consumer stops before the letter that is too many.

    `row_max` dead in a row, or more than `share_max` of the last `window` events once `seen_min` of them were seen.
    After `retry_after_s` one event is tried.
    """

    row_max: int = 100
    share_max: float = 0.5
    window: int = 1_000
    seen_min: int = 200
    retry_after_s: float = 60.0


@final
@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Everything that a handler declares about its failures."""

    on_failure: OnFailure = "block"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    rules: tuple[Rule, ...] = ()
    """In the order in which they are asked: the handler's own, then the app's."""
    after_dead: AfterDead = "release"
    key_parked_max: int = KEY_PARKED_MAX
    parked_max: int = PARKED_MAX
    at_limit: AtLimit = "pause"
    on_conflict: OnConflict = "dead"
    breaker: BreakerPolicy | None = field(default_factory=BreakerPolicy)
    defaults: int = field(default=0, kw_only=True)
    """How many of the rules, the last ones, are the app's."""

    @property
    def own_rules(self) -> tuple[Rule, ...]:
        """The handler's own."""
        return self.rules[: len(self.rules) - self.defaults]
