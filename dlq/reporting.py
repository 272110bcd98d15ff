"""Log lines about events that were not plain success: all under the same names, so that one search finds them all."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

import structlog

from ..inbox.event import Event
from ..inbox.failure_rows import Verdict
from ..inbox.log_fields import event_fields
from ..inbox.outcome import Dead, FinalStatus
from .decisions import Transient
from .failure_text import describe

PROJECTION: Final = "projection"
COMMAND: Final = "command"
RECORD: Final = "record"
"""What reached no handler."""

log = structlog.get_logger("tidegate.events")


def report_dead(event: Event[Any], handler: str, kind: str, dead: Dead, attempts: int = 1) -> None:
    """An event has its failure row and its letter."""
    log.error(
        "event_dead",
        **event_fields(event, handler, kind, attempts),
        final_status=FinalStatus.FAILED.value,
        reason=dead.reason.value,
        why=dead.why,
        exception_type=dead.exception_type or None,
        stack_digest=dead.stack_digest or None,
    )


def report_unknown(event: Event[Any], handler: str, kind: str, verdict: Verdict, attempts: int = 1) -> None:
    """An event waits for a person."""
    log.error(
        "event_unknown",
        **event_fields(event, handler, kind, attempts),
        final_status=FinalStatus.UNKNOWN.value,
        **_told(verdict),
    )


def report_parked(
    event: Event[Any], handler: str, kind: str, verdict: Verdict, attempts: int, due: datetime.datetime
) -> None:
    """An event waits in the queue: after a failure, or behind earlier events of its key (`attempts` is 0 then)."""
    level = log.warning if attempts else log.info
    level("event_parked", **event_fields(event, handler, kind, attempts), due=due.isoformat(), **_told(verdict))


def report_skipped(event: Event[Any], handler: str, kind: str, why: str, attempts: int = 1) -> None:
    """A rule or the handler itself said that there is nothing to do, although something was wrong."""
    log.warning(
        "event_skipped",
        **event_fields(event, handler, kind, attempts),
        final_status=FinalStatus.SKIPPED.value,
        why=why,
    )


def _told(verdict: Verdict) -> dict[str, str | None]:
    safe = verdict.safe()
    return {
        "reason": safe.reason,
        "why": safe.message,
        "exception_type": safe.exception_type or None,
        "stack_digest": safe.stack_digest or None,
    }


def report_retry(
    event: Event[Any],
    handler: str,
    kind: str,
    error: Exception,
    attempt: int,
    delay_s: float,
    decision: Transient | None = None,
) -> None:
    """An attempt failed and will be made again, because of `decision`; of a batch `event` is the first."""
    text = describe(error, (event.key, event.record.value))
    log.warning(
        "event_again",
        **event_fields(event, handler, kind, attempt),
        exception_type=text.type,
        why=text.message,
        stack_digest=text.stack_digest,
        delay_s=round(delay_s, 3),
        because=decision.because if decision else None,
        led_by=str(decision.led_by) if decision else None,
    )


def report_done(event: Event[Any], handler: str, kind: str, status: FinalStatus, duration_s: float) -> None:
    """An event of the slow way came to its end."""
    log.info(
        "event_done",
        **event_fields(event, handler, kind),
        final_status=status.value,
        duration_s=round(duration_s, 3),
    )


def report_done_many(
    events: Sequence[Event[Any]], handler: str, kind: str, status: FinalStatus, duration_s: float
) -> None:
    """Events of the slow way came to their end in one transaction; the audit names each of them."""
    log.info(
        "events_done",
        handler=handler,
        job_type=f"{kind}/{handler}",
        events=len(events),
        first_event_id=events[0].id_text,
        final_status=status.value,
        duration_s=round(duration_s, 3),
    )
