"""The clock that due times go by."""

from __future__ import annotations

import datetime

import pytest

from tidegate.inbox import clock
from tidegate.inbox.clock import SteadyClock

THEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


class _Wall(datetime.datetime):
    """A machine's wall clock that an operator has just put back."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> _Wall:
        return cls(2020, 1, 1, tzinfo=tz)


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Due times are compared with what the database says, not with what this machine believes."""
    steady = SteadyClock()
    steady.sync(THEN)
    monkeypatch.setattr(clock.datetime, "datetime", _Wall)
    assert THEN <= steady.now() < THEN + datetime.timedelta(seconds=10)


def test_it_goes_on_from_the_last_time_that_it_was_told() -> None:
    steady = SteadyClock()
    steady.sync(THEN)
    first = steady.now()
    steady.sync(THEN - HOUR)
    assert steady.now() < first - HOUR + datetime.timedelta(seconds=10)
