"""The live window: what is in memory now, in records and bytes, with hysteresis. No IO; time is an argument.

Memory is counted by the slice: it is freed once every track is done with all of the slice's events. Where one track
alone takes them, they are freed as they are done, so that one event that waits for its next attempt does not hold as
many others as came with it: with one in a hundred, nearly everything that was read would count. A partition that goes
away gives back all it held at once; what its slices say later changes nothing.
"""

from __future__ import annotations

from typing import Final, final

from .policy import EnginePolicy


@final
class Window:
    """One budget over all partitions: full above the maximum, open again at or below the low mark."""

    __slots__ = ("_policy", "full", "records", "size_bytes")

    def __init__(self, policy: EnginePolicy) -> None:
        self._policy = policy
        self.records = 0
        self.size_bytes = 0
        self.full = False

    def account(self) -> Account:
        """A partition's share of the window, empty."""
        return Account(self)

    def add(self, records: int, size_bytes: int) -> None:
        """Take in what was delivered (negative to free it)."""
        self.records += records
        self.size_bytes += size_bytes
        policy = self._policy
        if self.full:
            self.full = self.records > policy.window_records_low or self.size_bytes > policy.window_bytes_low
        else:
            self.full = self.records > policy.window_records_max or self.size_bytes > policy.window_bytes_max


@final
class Account:
    """What one life of a partition holds of the window."""

    __slots__ = ("_window", "records", "size_bytes")

    def __init__(self, window: Window | None) -> None:
        self._window = window
        self.records = 0
        self.size_bytes = 0

    def add(self, records: int, size_bytes: int) -> None:
        """Hold more (negative: less); nothing once closed."""
        if self._window is not None:
            self.records += records
            self.size_bytes += size_bytes
            self._window.add(records, size_bytes)

    def close(self) -> None:
        """The partition is gone: give everything back, for good."""
        self.add(-self.records, -self.size_bytes)
        self._window = None


STEPS: Final = 16
"""A slice whose events are freed as they are done is given back in so many pieces: an event costs a comparison."""


@final
class Held:
    """A slice in memory, with the number of parts (stream tracks and lane items) that still need it."""

    __slots__ = ("_account", "_kept", "_next", "_parts", "_step", "parts", "records", "size_bytes")

    def __init__(self, account: Account, records: int, size_bytes: int) -> None:
        self._account = account
        self.records = records
        self.size_bytes = size_bytes
        self.parts = 0
        self._parts = self._step = self._next = 0
        self._kept = (0, 0)

    def settle(self, takers: int) -> None:
        """All tracks have said how many parts they need, `takers` of them any: count the slice if there are any."""
        if self.parts:
            self._account.add(self.records, self.size_bytes)
            self._kept = (self.records, self.size_bytes)
            self._parts = self.parts
            self._step = self.parts if takers > 1 else -(-self.parts // STEPS)
            self._next = self.parts - self._step

    def release(self) -> None:
        """One part is done; the last one frees what is left of the slice."""
        self.parts -= 1
        if self.parts <= self._next:
            self._give_back()

    def _give_back(self) -> None:
        """What the parts that are done held, and never more: shares are rounded up."""
        self._next = max(0, self.parts - self._step)
        records, size_bytes = self._kept
        self._kept = (-(-self.records * self.parts // self._parts), -(-self.size_bytes * self.parts // self._parts))
        self._account.add(self._kept[0] - records, self._kept[1] - size_bytes)
