"""What an exception can lead to, as values: the ends of the walk in `rules.py`. No IO; time is an argument.

Every decision says why in plain words (`because`) and which rule or line of the tables led to it (`led_by`), for logs,
letters and `tidegate explain`. Two decisions are equal when the same is to be done. Nobody changes one; they are not
frozen, because that makes them five times as slow to make, and each failure makes some.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

from ..inbox.outcome import Reason
from .deadline import DeadlineError as DeadlineError


@final
@dataclass(slots=True, unsafe_hash=True)
class LedBy:
    """What decided: `line` names it, `rule` is its place among the handler's rules and the app's (0: no rule did)."""

    line: str = ""
    rule: int = 0

    def __str__(self) -> str:
        return self.line


NOBODY: Final = LedBy()
"""Of a decision that is made by hand, in a test say."""


@final
@dataclass(slots=True, unsafe_hash=True)
class Transient:
    """The world is bad right now: counted, tried again by the policy.

    `exhausted` is the reason when it gives up. `after_s`: how long to wait instead of the backoff, in seconds; still to
    be kept within the policy's bounds.
    """

    exhausted: Reason = Reason.EXHAUSTED
    after_s: float | None = None
    because: str = field(default="", compare=False)
    led_by: LedBy = field(default=NOBODY, compare=False)


@final
@dataclass(slots=True, unsafe_hash=True)
class DependencyAway:
    """Nobody's attempt counts: whoever uses the dependency pauses until its own health check passes."""

    name: str
    because: str = field(default="", compare=False)
    led_by: LedBy = field(default=NOBODY, compare=False)


@final
@dataclass(slots=True, unsafe_hash=True)
class Fatal:
    """The process leaves, offsets unadvanced."""

    because: str = field(default="", compare=False)
    led_by: LedBy = field(default=NOBODY, compare=False)


@final
@dataclass(slots=True, unsafe_hash=True)
class Lost:
    """The partition is somebody else's: the work is dropped and counted, nothing is written."""

    because: str = field(default="", compare=False)
    led_by: LedBy = field(default=NOBODY, compare=False)


@final
@dataclass(slots=True, unsafe_hash=True)
class DeadNow:
    """No retry helps."""

    reason: Reason
    because: str = field(default="", compare=False)
    led_by: LedBy = field(default=NOBODY, compare=False)


@final
@dataclass(slots=True, unsafe_hash=True)
class SkipNow:
    """A rule says that there is nothing to do: claimed as skipped, counted and logged. No table leads here."""

    because: str = field(compare=False)
    led_by: LedBy = field(default=NOBODY, compare=False)


@final
@dataclass(slots=True, unsafe_hash=True)
class ReviewNow:
    """Nobody can know what happened: the event waits for a person. `effect_id`: the call that is not known."""

    because: str = field(compare=False)
    effect_id: int | None = None
    led_by: LedBy = field(default=NOBODY, compare=False)


@final
@dataclass(slots=True, unsafe_hash=True)
class Postponed:
    """Another attempt's call may be under way: look again at `due` (the database's clock), no attempt counts."""

    due: datetime.datetime
    effect_id: int
    because: str = field(default="", compare=False)
    led_by: LedBy = field(default=NOBODY, compare=False)


Decision: TypeAlias = Lost | Fatal | ReviewNow | Postponed | DependencyAway | Transient | DeadNow | SkipNow


@final
class Said(Exception):
    """What a function returned where only what it raises is looked into: it says its decision itself, and no rule is
    asked.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__(decision.because)


RANKS: Final = (Lost, Fatal, ReviewNow, Postponed, DependencyAway, Transient, DeadNow, SkipNow)
"""Of an exception group the decision that stands first here counts. Waiting wins over dying, because a wait is bounded
and a dead letter next to an outage is usually its victim; not knowing wins over both, because to try again is to guess;
and nothing is skipped while anything else is wrong."""


def rank(decision: Decision) -> int:
    """The place of a decision among `RANKS`.

    >>> rank(Lost()) < rank(Transient()) < rank(DeadNow(Reason.REJECTED)) < rank(SkipNow("known"))
    True
    """
    return RANKS.index(type(decision))
