"""What the lower rooms count, as a port: the roof turns it into metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final


class Meter(Protocol):
    """Counters by handler; `n` is a number of events."""

    def handled(self, handler: str, n: int, seconds: float) -> None:
        """Events were handled in one run of a handler that took `seconds`."""
        ...

    def handled_each(self, handler: str, seconds: Sequence[float]) -> None:
        """Events were handled, one in each run of these lengths."""
        ...

    def skipped(self, handler: str, n: int) -> None:
        """There was nothing to do."""
        ...

    def duplicates(self, handler: str, n: int) -> None:
        """Events were claimed before: not run again."""
        ...

    def dead(self, handler: str, reason: str, n: int) -> None:
        """Events got a failure row and a dead letter."""
        ...

    def unknown(self, handler: str, n: int) -> None:
        """Events wait for a person: what became of them nobody knows."""
        ...

    def parked(self, handler: str, n: int) -> None:
        """Events were put into the queue: to be tried again, or behind earlier ones of their key."""
        ...

    def stale(self, handler: str, n: int) -> None:
        """Events were handled and changed nothing, because something newer stood there already."""
        ...

    def retried(self, handler: str, n: int) -> None:
        """Attempts failed and will be made again."""
        ...

    def lost(self, n: int) -> None:
        """Work was dropped because its partition went away."""
        ...


@final
class NoMeter:
    """Counts nothing: for tests and one-off tools."""

    def handled(self, handler: str, n: int, seconds: float) -> None: ...

    def handled_each(self, handler: str, seconds: Sequence[float]) -> None: ...

    def skipped(self, handler: str, n: int) -> None: ...

    def duplicates(self, handler: str, n: int) -> None: ...

    def dead(self, handler: str, reason: str, n: int) -> None: ...

    def unknown(self, handler: str, n: int) -> None: ...

    def parked(self, handler: str, n: int) -> None: ...

    def stale(self, handler: str, n: int) -> None: ...

    def retried(self, handler: str, n: int) -> None: ...

    def lost(self, n: int) -> None: ...
