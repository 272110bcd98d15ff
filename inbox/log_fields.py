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
    record = event.record
    topic, partition, offset, key = record.topic, record.partition, record.offset, record.key
    fields: dict[str, Any] = {
        "event_id": event.id_text,
        "operation_id": event.operation_id,
        "correlation_id": event.correlation_id,
        "job_id": f"{topic}/{partition}@{offset}",
        "topic": topic,
        "partition": partition,
        "offset": offset,
    }
    if key is not None:
        fields["entity_id"] = key[:KEY_BYTES_MAX].decode("utf-8", "replace")
    if kind:
        fields["job_type"] = f"{kind}/{handler}"
    if handler:
        fields["handler"] = handler
    if attempt is not None:
        fields["attempt"] = attempt
    if event.tenant is not None:
        fields["tenant"] = event.tenant
    if event.brand is not None:
        fields["brand"] = event.brand
    return fields
