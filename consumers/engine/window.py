"""The live window: what is in memory now, in records and bytes, with hysteresis. No IO; time is an argument.

Memory is counted by the slice: it is freed once every track is done with all of the slice's events. A partition that
goes away gives back all it held at once; what its slices say later changes nothing.
"""

from __future__ import annotations

from typing import final

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


@final
class Held:
    """A slice in memory, with the number of parts (stream tracks and lane items) that still need it."""

    __slots__ = ("_account", "parts", "records", "size_bytes")

    def __init__(self, account: Account, records: int, size_bytes: int) -> None:
        self._account = account
        self.records = records
        self.size_bytes = size_bytes
        self.parts = 0

    def settle(self) -> None:
        """All tracks have said how many parts they need: count the slice if there are any."""
        if self.parts:
            self._account.add(self.records, self.size_bytes)

    def release(self) -> None:
        """One part is done; the last one frees the slice."""
        self.parts -= 1
        if not self.parts:
            self._account.add(-self.records, -self.size_bytes)
