"""When the next group of completions begins. No IO; time is an argument.

A group costs the same whatever its size, so a worker that writes as soon as something waits spends its time, and the
database's, on small ones. But whoever waits holds its key up. So a group is held back only for those that are about to
come: while more handlers are under way than wait for it already, and never for longer than `SPACING_S` after the last
one began. What comes alone, or what everything else waits for, pays nothing.

>>> spacing = Spacing()
>>> spacing.wait_s(7.0, waiting=1, running=99)
0.0
>>> spacing.begin(7.0)
>>> spacing.wait_s(7.001, waiting=1, running=99), spacing.wait_s(7.001, waiting=60, running=40)
(0.002, 0.0)
>>> spacing.wait_s(7.1, waiting=1, running=99)
0.0
"""

from __future__ import annotations

from typing import Final, final

SPACING_S: Final = 0.01
"""A hundred commands at once that call somebody make 130 groups a second with it and 250 without, of a fifth to a third
less time in all (benchmarks/effects.py); a key whose events follow each other waits for it only beside many others."""

LOOK_S: Final = 0.002
"""How soon it is noticed that nobody else is about to come."""


@final
class Spacing:
    """Owned by the completer."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = float("-inf")

    def begin(self, now_s: float) -> None:
        """A group begins."""
        self._next_s = now_s + SPACING_S

    def wait_s(self, now_s: float, *, waiting: int, running: int) -> float:
        """How long to wait before looking again; 0 to begin."""
        if running <= waiting:
            return 0.0
        return max(0.0, min(LOOK_S, self._next_s - now_s))
