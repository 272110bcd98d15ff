"""The one clock: whoever needs time, randomness or a fresh id is given it from here."""

from __future__ import annotations

import datetime
import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Time and chance as an argument."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        ...

    def now(self) -> datetime.datetime:
        """The wall clock, in UTC."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def new_id(self) -> str:
        """A fresh unique id: for runs and attempts only, never for what a repeat must find again."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def random(self) -> float:
        return random.random()

    def new_id(self) -> str:
        return uuid.uuid4().hex


class SteadyClock:
    """The database's time, carried on by the machine's monotonic clock.

    What is due is compared with what other processes wrote, so all of them go by one clock: the database's. A wall
    clock that jumps by an hour changes nothing here.
    """

    def __init__(self) -> None:
        self._origin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=time.monotonic())

    def sync(self, now: datetime.datetime) -> None:
        """The database's time as it was just read."""
        self._origin = now - datetime.timedelta(seconds=time.monotonic())

    def monotonic_s(self) -> float:
        return time.monotonic()

    def now(self) -> datetime.datetime:
        return self._origin + datetime.timedelta(seconds=time.monotonic())

    def random(self) -> float:
        return random.random()

    def new_id(self) -> str:
        return uuid.uuid4().hex


class ManualClock:
    """A fake that moves only when told; chance and ids are drawn from a seed."""

    def __init__(self, start_s: float = 1_000.0, seed: int = 0) -> None:
        self._now_s = start_s
        self._random = random.Random(seed)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now_s += seconds

    def monotonic_s(self) -> float:
        return self._now_s

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._now_s, datetime.UTC)

    def random(self) -> float:
        return self._random.random()

    def new_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"
