"""The event of a queued row, as its handler gets it: with the repaired value, and as the run that was asked for; and
what the row tells of earlier attempts.

No IO but the intake's codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dlq.retry import RetryState
from ...inbox.clock import Clock
from ...inbox.event import Event
from ...inbox.failure_rows import Failure, indexed_text
from ..intake import EventIntake
from ..routing import Route

RowEvents = Sequence[Event[Any] | None]
"""The events of rows, in their order; None where a record is no event."""


def event_of_row(intake: EventIntake, row: Failure) -> tuple[Event[Any], Route]:
    """Raises RecordError where the record is no event, DependencyError where that is not known yet.

    Where the row says so, the event is claimed under another identity than its own, or is another operation.
    """
    event, route = intake.event_of(row.repaired)
    _as_asked(row, event)
    return event, route


def events_of_rows(intake: EventIntake, rows: Sequence[Failure]) -> RowEvents:
    """The same of many rows."""
    events = intake.events_of([row.repaired for row in rows])
    for row, event in zip(rows, events, strict=True):
        if event is not None:
            _as_asked(row, event)
    return events


def history_of(row: Failure, clock: Clock) -> RetryState:
    """What the row tells of its attempts: those of this round count, a replay begins a new one. That it is taken up
    late, because nobody ran or its key was held, does not count.
    """
    since, now = row.retrying_since or row.last_failed_at, clock.now()
    return RetryState.of_row(
        row.attempts,
        row.class_attempts if row.retrying_since is not None else 0,
        row.exception_type,
        since,
        min(now, row.due or now),
        now_s=clock.monotonic_s(),
        last_failed_at=row.last_failed_at,
    )


def _as_asked(row: Failure, event: Event[Any]) -> None:
    if row.attempt_id is not None or row.operation_id != indexed_text(event.operation_id):
        event.as_run(row.attempt_id, row.operation_id)
