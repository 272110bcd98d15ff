"""Rows of the slow way whose end could not be written down: each rests a while before it is taken up again. No IO.

Its handler would run at every look else, fifty times a second, with no attempt counted. What if the process stops? It
is forgotten, and whoever owns the rows' homes next tries them at once.
"""

from __future__ import annotations

from typing import Final, final

from ...inbox.clock import Clock

FIRST_REST_S: Final = 1.0
"""A database that restarts is back by then."""

REST_MAX_S: Final = 60.0
"""What the database goes on refusing waits for a person; a minute after the repair it is tried."""


@final
class RestedRows:
    """Owned by the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rests: dict[int, tuple[float, float]] = {}

    def failed(self, row_id: int) -> None:
        """It rests: twice as long as the last time, if that was not long ago."""
        now_s = self._clock.monotonic_s()
        self._rests = {row: rest for row, rest in self._rests.items() if now_s < rest[1] + REST_MAX_S}
        last_s, _ = self._rests.get(row_id, (0.0, 0.0))
        rest_s = min(REST_MAX_S, 2 * last_s or FIRST_REST_S)
        self._rests[row_id] = (rest_s, now_s + rest_s)

    def ids(self) -> list[int]:
        """Those that rest now."""
        if not self._rests:
            return []
        now_s = self._clock.monotonic_s()
        return [row for row, (_, until_s) in self._rests.items() if now_s < until_s]
