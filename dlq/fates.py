"""What becomes of an event that is neither handled nor dead: later, or for a person. With the reasons' words. No IO."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Final, final

from ..inbox.failure_rows import Verdict

RETRY: Final = "retry"
"""The reason of a row that is tried again."""

PENDING_EFFECT: Final = "pending_effect"
"""The reason of a row that waits until another attempt's call must have ended."""

REVIEW: Final = "review"
"""The reason of a row that a rule sends to a person."""

UNKNOWN_EFFECT: Final = "unknown_effect"
"""The reason of a row of which nobody knows whether its call was made."""

BEHIND: Final = Verdict("behind", "an earlier event of its key waits")
"""Why an event that did not fail itself stands in the queue."""


@final
@dataclass(slots=True, unsafe_hash=True)
class Later:
    """It is tried again at `due`; `class_attempts` of its attempts ended with the present class of exception.

    `retrying_since`: the first of those. `effect_id`: the call that it waits for.
    """

    verdict: Verdict
    due: datetime.datetime
    attempts: int = 0
    class_attempts: int = 0
    retrying_since: datetime.datetime | None = None
    effect_id: int | None = None


@final
@dataclass(slots=True, unsafe_hash=True)
class ForReview:
    """A person decides."""

    verdict: Verdict
    attempts: int = 1
    effect_id: int | None = None
