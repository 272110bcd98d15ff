"""When reading pauses because too many events of a handler wait. No IO; time is an argument.

Pressed at `PRESS_SHARE` of the limit, let go at `LET_GO_SHARE`: with one mark for both, reading would start and stop
with each event that leaves. Where the limit buries the newcomers, a pause that helps nothing would only hide that
choice: if the queue has not become shorter for `PATIENCE_S`, reading goes on up to the limit, until the queue was short
again.
"""

from __future__ import annotations

from typing import Final, final

from .policy import FailurePolicy

PRESS_SHARE: Final = 0.8
"""What is in memory when reading pauses still has room: a window is far smaller than a fifth of the default limit."""

LET_GO_SHARE: Final = 0.6
"""A quarter of what was there when it was pressed has to be worked off."""

PATIENCE_S: Final = 60.0
"""Twice the longest wait of the default retry policy: by then something that can get shorter has."""


@final
class Pressure:
    """Of one handler. `counted` is told how many of its events wait, and says whether reading pauses for them."""

    __slots__ = ("_gave_up", "_lowest", "_policy", "_since_s", "pressed")

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy
        self._gave_up = False
        self._lowest = 0
        self._since_s = 0.0
        self.pressed = False

    def counted(self, waiting: int, now_s: float) -> bool:
        """So many wait now."""
        limit = self._policy.parked_max
        if waiting <= LET_GO_SHARE * limit:
            self.pressed = self._gave_up = False
        elif waiting >= PRESS_SHARE * limit and not self.pressed and not self._gave_up:
            self.pressed, self._lowest, self._since_s = True, waiting, now_s
        elif self.pressed and self._policy.at_limit == "dead":
            self._watch(waiting, now_s)
        return self.pressed

    def _watch(self, waiting: int, now_s: float) -> None:
        if waiting < self._lowest:
            self._lowest, self._since_s = waiting, now_s
        elif now_s - self._since_s >= PATIENCE_S:
            self.pressed, self._gave_up = False, True
