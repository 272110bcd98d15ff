"""The fields that say which event a line is about, under the same names in log lines of every room. No IO.

| field | what it is |
|---|---|
| `operation_id` | the business operation; a repeat has the same |
| `job_id` | the one run: for an event handler `topic/partition@offset` |
| `job_type` | the kind of work: `projection` or `command`, then `/` and the handler's name |
| `attempt` | 1 for the first |
| `event_id` | the event's id, readable |
| `entity_id` | what it is about: the record's key as text |
| `correlation_id` | what ties together everything that one request set off |
| `external_correlation_id` | the same at an outside service, where a handler gives one |
| `handler`, `topic`, `partition`, `offset`, `tenant`, `brand` | as they say |
"""

from __future__ import annotations

from typing import Any, Final

from .event import Event

KEY_BYTES_MAX: Final = 500
"""Of a key: enough to recognise it."""


def event_fields(event: Event[Any], handler: str = "", kind: str = "", attempt: int | None = None) -> dict[str, Any]:
    """The fields that say which event a line is about; `kind` is `projection` or `command`."""
    fields: dict[str, Any] = {
        "event_id": event.id_text,
        "operation_id": event.operation_id,
        "correlation_id": event.correlation_id,
        "job_id": f"{event.topic}/{event.partition}@{event.offset}",
        "topic": event.topic,
        "partition": event.partition,
        "offset": event.offset,
    }
    optional = {
        "entity_id": None if event.key is None else event.key[:KEY_BYTES_MAX].decode("utf-8", "replace"),
        "job_type": f"{kind}/{handler}" if kind else None,
        "handler": handler or None,
        "attempt": attempt,
        "tenant": event.tenant,
        "brand": event.brand,
    }
    return fields | {name: value for name, value in optional.items() if value is not None}
