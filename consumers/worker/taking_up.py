"""The event of a queued row, as its handler gets it: with the repaired value, and as the run that was asked for.

No IO but the intake's codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def _as_asked(row: Failure, event: Event[Any]) -> None:
    if row.attempt_id is not None or row.operation_id != indexed_text(event.operation_id):
        event.as_run(row.attempt_id, row.operation_id)
