"""The verbs of `tidegate dlq` and their options; `letters.py` does what they say."""

from __future__ import annotations

import asyncio
import datetime
from typing import Annotated

import typer

from ...dlq.replay import Filter, Order
from ...inbox.errors import ConfigurationError
from ...inbox.outcome import FailureState, Reason
from . import letters
from .options import AppOption, ConfigOption, JsonOption
from .preparing import settings_only

dlq_app = typer.Typer(no_args_is_help=True, help="Look at dead letters, and replay them once their cause is repaired.")

NEEDS = ("database.url",)

References = Annotated[
    list[str] | None,
    typer.Argument(metavar="[LETTER]...", help="A letter's number, its 32-digit id, or topic/partition@offset."),
]
ByConsumer = Annotated[str | None, typer.Option("--consumer", help="Of this consumer.")]
ByHandler = Annotated[str | None, typer.Option("--handler", help="Of this projection or command.")]
ByReason = Annotated[Reason | None, typer.Option("--dead-reason", help="That died for this reason.")]
ByException = Annotated[str | None, typer.Option("--exception", help="That died of this exception type.")]
ByTopic = Annotated[str | None, typer.Option("--topic", help="That were read from this topic.")]
ByTenant = Annotated[str | None, typer.Option("--tenant", help="Of this tenant.")]
ByBrand = Annotated[str | None, typer.Option("--brand", help="Of this brand.")]
ByEvent = Annotated[str | None, typer.Option("--event-id", help="Of this event.")]
ByCorrelation = Annotated[str | None, typer.Option("--correlation-id", help="Of this correlation id.")]
ByOperation = Annotated[str | None, typer.Option("--operation-id", help="Of this operation.")]
Since = Annotated[datetime.datetime | None, typer.Option("--since", help="That last failed at or after (UTC).")]
Until = Annotated[datetime.datetime | None, typer.Option("--until", help="That last failed before (UTC).")]


@dlq_app.command(name="list")
def list_letters(
    app: AppOption = None,
    config: ConfigOption = None,
    consumer: ByConsumer = None,
    handler: ByHandler = None,
    dead_reason: ByReason = None,
    exception: ByException = None,
    topic: ByTopic = None,
    tenant: ByTenant = None,
    brand: ByBrand = None,
    event_id: ByEvent = None,
    correlation_id: ByCorrelation = None,
    operation_id: ByOperation = None,
    since: Since = None,
    until: Until = None,
    state: Annotated[FailureState, typer.Option("--state", help="In this state.")] = FailureState.DEAD,
    every_state: Annotated[bool, typer.Option("--all", help="In any state.")] = False,
    grouped: Annotated[bool, typer.Option("--groups", help="Count them by consumer, handler and reason.")] = False,
    after: Annotated[int, typer.Option("--after", help="Behind this number: the next page.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, oldest first, without key and payload."""
    wanted = Filter(
        consumer=consumer,
        handler=handler,
        state=None if every_state else state,
        reason=dead_reason,
        exception_type=exception,
        tenant=tenant,
        brand=brand,
        topic=topic,
        event_id=event_id,
        correlation_id=correlation_id,
        operation_id=operation_id,
        since=_utc(since),
        until=_utc(until),
    )
    settings = settings_only(app, config, NEEDS).settings
    if grouped:
        asyncio.run(letters.list_groups(settings, wanted, as_json))
    else:
        asyncio.run(letters.list_letters(settings, wanted, after, limit, as_json))


@dlq_app.command()
def show(
    letter: Annotated[str, typer.Argument(help="A letter's number, its 32-digit id, or topic/partition@offset.")],
    app: AppOption = None,
    config: ConfigOption = None,
    payload: Annotated[bool, typer.Option("--payload", help="Show key, value and headers too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one letter with everything that is known of it."""
    asyncio.run(letters.show(settings_only(app, config, NEEDS).settings, letter, payload, as_json))


@dlq_app.command()
def replay(
    reason: Annotated[str, typer.Option("--reason", help="Why now: it stands in the audit.")],
    references: References = None,
    app: AppOption = None,
    config: ConfigOption = None,
    consumer: ByConsumer = None,
    handler: ByHandler = None,
    dead_reason: ByReason = None,
    exception: ByException = None,
    topic: ByTopic = None,
    tenant: ByTenant = None,
    brand: ByBrand = None,
    event_id: ByEvent = None,
    correlation_id: ByCorrelation = None,
    operation_id: ByOperation = None,
    since: Since = None,
    until: Until = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters that the options leave.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be replayed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also letters that were replayed twice already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Put letters back into their handlers' queue; the event ids stay, so nothing happens twice."""
    wanted = Filter(
        consumer=consumer,
        handler=handler,
        reason=dead_reason,
        exception_type=exception,
        tenant=tenant,
        brand=brand,
        topic=topic,
        event_id=event_id,
        correlation_id=correlation_id,
        operation_id=operation_id,
        since=_utc(since),
        until=_utc(until),
    )
    chosen = None if references else wanted
    if chosen == Filter() and not everything:
        raise ConfigurationError.of("LETTER", "it is not said which letters", "name them, filter, or say --all")
    order = Order(
        actor=letters.actor(),
        reason=reason,
        references=tuple(references or ()),
        filter=chosen,
        dry_run=dry_run,
        force=force,
    )
    reports = asyncio.run(letters.replay_all(settings_only(app, config, NEEDS).settings, order))
    letters.tell(reports, as_json)
    if any(report.refused for report in reports):
        raise typer.Exit(1)


def _utc(at: datetime.datetime | None) -> datetime.datetime | None:
    return None if at is None else at.replace(tzinfo=at.tzinfo or datetime.UTC)
