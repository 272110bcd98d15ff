"""A record's timestamp is whatever the producer wrote: none of it breaks anything."""

from __future__ import annotations

import datetime
import math

import pytest

from tidegate.inbox.event import Event, Record

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def at(timestamp_ms: int, timestamp_type: int = 1) -> Record:
    return Record("t", 0, 0, None, b"", (), timestamp_ms, timestamp_type)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (at(0, 0), None),
        (at(-1, 0), None),
        (at(-5), datetime.datetime(1969, 12, 31, 23, 59, 59, 995_000, tzinfo=datetime.UTC)),
        (at(99_999_999_999_999), datetime.datetime(5138, 11, 16, 9, 46, 39, 999_000, tzinfo=datetime.UTC)),
        (at(1_755_933_141_855_875), None),
        (at(2**63 - 1), None),
        (at(-(2**63)), None),
        (at(-62_135_596_800_001), None),
    ],
)
def test_any_timestamp_is_a_time_or_none_and_an_age_is_never_negative(
    record: Record, expected: datetime.datetime | None
) -> None:
    """Absent, negative, microseconds for milliseconds, far future: a datetime or None, an age of at least 0 or None.

    Case: B19
    Parts: none
    Red when: Record.timestamp does not catch OverflowError, or Record.age_s leaves out max(0.0, ...)
    """
    assert record.timestamp == expected
    assert Event(None, record).timestamp == expected
    age_s = record.age_s(NOW)
    assert (age_s is None) == (expected is None)
    assert age_s is None or (age_s >= 0 and math.isfinite(age_s))


def test_the_value_and_type_as_they_came_are_kept() -> None:
    record = at(1_755_933_141_855_875, 2)
    assert (record.timestamp_ms, record.timestamp_type) == (1_755_933_141_855_875, 2)
