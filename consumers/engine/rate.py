"""How often something may begin: a token bucket that is told the time. No IO; time is an argument."""

from __future__ import annotations

from typing import Final, final

BURST_S: Final = 0.1
"""What this time is worth may begin at once: a rate of 1,000 a second needs ten timers a second, not 1,000."""

_ROUNDING_S: Final = 1e-9
"""So much too early is in time: a timer that is set to a moment must not find it a rounding away."""


@final
class Rate:
    """At most `per_s` beginnings a second, evenly; never more than what `BURST_S` is worth at once, but always one.

    >>> rate = Rate(50)
    >>> rate.free(10.0, most=100)
    5
    >>> rate.begin(5, 10.0)
    >>> rate.free(10.0, most=100), round(rate.next_at_s(), 3), rate.free(10.02, most=100)
    (0, 10.02, 1)
    """

    __slots__ = ("_gap_s", "_slack_s", "_taken_until_s")

    def __init__(self, per_s: float) -> None:
        self._gap_s = 1 / per_s
        self._slack_s = max(0.0, BURST_S - self._gap_s)
        self._taken_until_s = float("-inf")

    def free(self, now_s: float, most: int) -> int:
        """How many may begin now, `most` at the most."""
        ahead_s = max(0.0, self._taken_until_s - now_s) - _ROUNDING_S
        return 0 if ahead_s > self._slack_s else min(most, 1 + int((self._slack_s - ahead_s) / self._gap_s))

    def begin(self, count: int, now_s: float) -> None:
        """So many begin."""
        self._taken_until_s = max(self._taken_until_s, now_s) + count * self._gap_s

    def next_at_s(self) -> float:
        """When the next one may begin."""
        return self._taken_until_s - self._slack_s
