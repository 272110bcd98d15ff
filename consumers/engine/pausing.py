"""Why and when partitions are paused: one decision for all of them. No IO; time is an argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from .partition import PartitionLife, Phase
from .signals import Action, Pause, PauseCause, Resume
from .window import Window

_PAUSABLE = frozenset({Phase.ASSIGNED, Phase.TAKING, Phase.LIVE})


@final
class Pausing:
    """Holds the causes; what each partition was told stands in its life, so that pause and resume alternate."""

    __slots__ = ("_away", "_looked", "_told", "_window", "quiet", "standing_back")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._away: set[str] = set()
        self._told = False
        self._looked = True
        self.quiet = False
        self.standing_back = False
        """Something is handled alone: nothing else is read, but what was read may come to its end."""

    @property
    def held_back(self) -> bool:
        """Nothing new may be dispatched."""
        return self.quiet or bool(self._away)

    @property
    def standing(self) -> bool:
        """Nothing new may be read."""
        return self._window.full or self.standing_back or self.held_back

    def causes(self) -> frozenset[PauseCause]:
        """All that hold now."""
        causes = {
            PauseCause.WINDOW_FULL: self._window.full,
            PauseCause.DEPENDENCY: bool(self._away),
            PauseCause.QUIET: self.quiet,
            PauseCause.SUSPECTS: self.standing_back,
        }
        return frozenset(cause for cause, holds in causes.items() if holds)

    def away(self, name: str) -> None:
        """One more dependency is away."""
        self._away.add(name)

    def back(self, name: str) -> None:
        """It is back; the last one ends the pause."""
        self._away.discard(name)

    def look_again(self) -> None:
        """A partition came or became live: it has not been told yet."""
        self._looked = False

    def settle(self, lives: Iterable[PartitionLife], actions: list[Action]) -> None:
        """Tell the client what changed. One that is not live yet is resumed only after its seek."""
        standing = self.standing
        if self._looked and standing == self._told:
            return
        self._looked, self._told = True, standing
        if standing:
            changed = [life for life in lives if life.phase in _PAUSABLE and not life.paused]
        else:
            changed = [life for life in lives if life.phase is Phase.LIVE and life.paused]
        if not changed:
            return
        for life in changed:
            life.paused = standing
        partitions = frozenset(life.partition for life in changed)
        actions.append(Pause(partitions) if standing else Resume(partitions))
