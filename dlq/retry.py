"""When to try again, and when to stop: every policy here ends. No IO; time and chance are arguments.

A policy is a value, a failure's history is another; `next_delay_s` looks at both and answers with seconds or
with None (give up). Two bounds hold together. Attempts start anew when the exception's class changes, because a new
class is a new trouble (the timeout is gone, now the provider says "too many requests"); the age never starts anew, so
that two troubles taking turns cannot keep an event alive for ever.
"""

from __future__ import annotations

import datetime
import math
import sys
from dataclasses import dataclass, replace
from typing import final

from ..inbox.errors import ConfigurationError, Problem

ATTEMPTS_LIMIT = 10_000
"""Beyond this many tries a bound is one in name only: at the default cap they would take longer than three days."""

FACTOR_LIMIT = 10.0
"""Ten times the wait with each try: steeper is a typing error. It also keeps `factor ** 63` far from overflow."""

AGE_LIMIT_S = 30 * 86_400.0
"""Thirty days: longer than the retention of most topics, so the event would outlive its own record."""

_EXPONENT_MAX = 63
"""From here on every sensible base and factor are far beyond the cap."""


@final
@dataclass(slots=True, unsafe_hash=True)
class RetryState:
    """What has happened so far. Start with `RetryState()` and hand each failure to `failed`.

    `attempts` counts the tries that ended in the present class of exception, `attempts_total` all of them; times are
    monotonic seconds.

    Nobody changes one; it is not frozen, because that makes it four times as slow to make.
    """

    exception_type: str = ""
    attempts: int = 0
    attempts_total: int = 0
    first_failed_s: float = 0.0
    last_failed_s: float = 0.0

    def failed(self, exception_type: str, now_s: float) -> RetryState:
        """The state after one more failure, of the class named `exception_type`, at `now_s`.

        >>> state = RetryState().failed("TimeoutError", 10.0).failed("TimeoutError", 11.0)
        >>> state.attempts, state.failed("ConnectionError", 12.0).attempts
        (2, 1)
        """
        same = exception_type == self.exception_type
        return RetryState(
            exception_type,
            attempts=self.attempts + 1 if same else 1,
            attempts_total=self.attempts_total + 1,
            first_failed_s=self.first_failed_s if self.attempts else now_s,
            last_failed_s=now_s,
        )

    @classmethod
    def of_row(
        cls,
        attempts: int,
        class_attempts: int,
        exception_type: str,
        first_failed_at: datetime.datetime,
        now: datetime.datetime,
        *,
        now_s: float = 0.0,
        last_failed_at: datetime.datetime | None = None,
    ) -> RetryState:
        """The state that a queued row tells, taken up for its next attempt.

        Args:
            attempts: all that were made, of earlier rounds too.
            class_attempts: those of this round that ended in `exception_type`; 0 begins a new round.
            exception_type: the class's full name.
            first_failed_at: when this round began.
            now: the wall clock, or when it was due where it comes late. It may have been put back: what passed by the
                last failure stays passed, so the age bound is reached later by as much at the most, and nothing is
                given up before its next attempt.
            now_s: the same moment on the monotonic clock.
            last_failed_at: the latest failure, if it is known.
        """
        if not class_attempts:
            return cls(attempts_total=attempts, first_failed_s=now_s, last_failed_s=now_s)
        latest = max(now, first_failed_at, last_failed_at or first_failed_at)
        age_s = (latest - first_failed_at).total_seconds()
        return cls(exception_type, class_attempts, attempts, now_s - age_s, now_s)

    def spared(self, seconds: float) -> RetryState:
        """The state behind a time in which nothing could be tried (a dependency was away): it does not count.

        >>> RetryState().failed("TimeoutError", 10.0).spared(3_600.0).failed("TimeoutError", 3_611.0).age_s
        1.0
        """
        return replace(self, first_failed_s=self.first_failed_s + seconds) if self.attempts else self

    @property
    def age_s(self) -> float:
        """Seconds between the first and the last failure; a clock that went back counts as no time at all."""
        return max(0.0, self.last_failed_s - self.first_failed_s)


@final
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, bounded in attempts and in age.

    Attributes:
        attempts_max: tries for one class of exception, the first one included. 5: with the other defaults the waits sum
            up to at most 3 s, which outlasts a failed-over connection and is over before the lane's lag alarms anybody.
        base_s: upper bound of the first wait. 0.2 s: about a TCP retransmission time-out.
        factor: how much the bound grows with each try. 2: the usual doubling.
        cap_s: upper bound of any one wait. 30 s: a person who watches still sees something happen.
        age_max_s: seconds from the first failure after which no new try starts. 300 s, the broker's default poll
            interval: what has not healed by then is not a hiccup. What passed while nothing could be tried (a
            dependency was away, no worker ran) does not count.
        in_place_max_s: a longer wait is spent as a row in the queue instead of in memory. 1 s: the time between two
            looks of the queue, below which a row would only be late.

    Raises:
        ConfigurationError: at construction, with every problem at once, where any of the bounds is missing.
    """

    attempts_max: int = 5
    base_s: float = 0.2
    factor: float = 2.0
    cap_s: float = 30.0
    age_max_s: float = 300.0
    in_place_max_s: float = 1.0

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise ConfigurationError(problems)

    def problems(self) -> list[Problem]:
        """Every bound that is missing."""
        return [
            Problem(f"retry.{key}", f"{value!r} is no bound", f"a number from {low:g} to {high:g}")
            for key, value, low, high in (
                ("attempts_max", self.attempts_max, 1, ATTEMPTS_LIMIT),
                ("base_s", self.base_s, 0.0, AGE_LIMIT_S),
                ("factor", self.factor, 1.0, FACTOR_LIMIT),
                ("cap_s", self.cap_s, 0.0, AGE_LIMIT_S),
                ("age_max_s", self.age_max_s, 0.0, AGE_LIMIT_S),
                ("in_place_max_s", self.in_place_max_s, 0.0, AGE_LIMIT_S),
            )
            if not _within(value, low, high)
        ]

    def next_delay_s(self, state: RetryState, random: float, after_s: float | None = None) -> float | None:
        """Seconds to wait before the next try; None when there is none.

        Args:
            state: the history, the failure that asks included.
            random: a number in [0, 1). Full jitter: the wait is this share of the bound, so that a thousand events that
                failed together do not come back together.
            after_s: the handler's own wish (Retry-After, say); it replaces the backoff and is kept within the bounds.

        >>> RetryPolicy().next_delay_s(RetryState().failed("OSError", 0.0), random=0.5)
        0.1
        >>> RetryPolicy(attempts_max=1).next_delay_s(RetryState().failed("OSError", 0.0), random=0.5) is None
        True
        """
        if state.attempts >= self.attempts_max:
            return None
        delay_s = random * self.ceiling_s(state.attempts) if after_s is None else _clamped(after_s, self.cap_s)
        return None if state.age_s + delay_s > self.age_max_s else delay_s

    def ceiling_s(self, attempts: int) -> float:
        """The longest wait after `attempts` failures of one class, in seconds.

        >>> [RetryPolicy().ceiling_s(n) for n in (1, 2, 3, 100)]
        [0.2, 0.4, 0.8, 30.0]
        """
        exponent = min(max(attempts - 1, 0), _EXPONENT_MAX)
        return min(self.cap_s, self.base_s * self.factor**exponent)


def _within(value: object, low: float, high: float) -> bool:
    """A policy may come out of a settings file, so its numbers are looked at as whatever they really are."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return low <= value <= high and (isinstance(value, int) or math.isfinite(value))


def is_wait(value: object) -> bool:
    """Whether `value`, which a user's code gave, is a number of seconds that one can wait.

    >>> is_wait(1.5), is_wait(-1), is_wait(math.inf), is_wait("soon"), is_wait(True)
    (True, False, False, False, False)
    """
    return _within(value, 0.0, sys.float_info.max)


def _clamped(wish_s: float, cap_s: float) -> float:
    return min(max(wish_s, 0.0), cap_s) if math.isfinite(wish_s) else cap_s
