"""The verbs of `tidegate review` and their options; `reviewing.py` does what they say."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from ...dlq.review import NOT_GIVEN, Ruling, Verb
from ...dlq.selection import Filter
from ...inbox.errors import ConfigurationError
from . import reviewing
from .access import access
from .options import AppOption, ConfigOption, JsonOption, TokenOption

review_app = typer.Typer(
    no_args_is_help=True, help="Look at what nobody can know the outcome of, and say what became of it."
)

NEEDS = ("database.url",)

Reference = Annotated[str, typer.Argument(metavar="CASE", help="An event's number, or effect: and a call's number.")]


@review_app.command(name="list")
def list_cases(
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    consumer: Annotated[str | None, typer.Option("--consumer", help="Of this consumer.")] = None,
    handler: Annotated[str | None, typer.Option("--handler", help="Of this projection or command.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Of this tenant.")] = None,
    brand: Annotated[str | None, typer.Option("--brand", help="Of this brand.")] = None,
    operation_id: Annotated[str | None, typer.Option("--operation-id", help="Of this operation.")] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", help="Of this correlation id.")] = None,
    after: Annotated[int, typer.Option("--after", help="Behind this number: the next page.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List what waits for a person, oldest first, without key and payload."""
    wanted = Filter(
        consumer=consumer,
        handler=handler,
        tenant=tenant,
        brand=brand,
        operation_id=operation_id,
        correlation_id=correlation_id,
    )
    asyncio.run(reviewing.list_cases(access(app, config, NEEDS, token_file), wanted, after, limit, as_json))


@review_app.command()
def show(
    reference: Reference,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the call's result too: audited, with a reason.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="With --payload: why, for the audit.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Show one case: the event, its call, what was done about it, and what can be said of it."""
    if payload and not reason.strip():
        raise ConfigurationError.of("--reason", "it is not said why", "a reveal needs a reason: it stands in the audit")
    asyncio.run(reviewing.show(access(app, config, NEEDS, token_file), reference, payload, reason, as_json))


@review_app.command()
def resolve(
    references: Annotated[list[str], typer.Argument(metavar="CASE...", help="Numbers of events, or effect:NUMBER.")],
    reason: Annotated[str, typer.Option("--reason", help="How you know: it stands in the audit.")],
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    done: Annotated[bool, typer.Option("--done", help="It was done.")] = False,
    not_done: Annotated[bool, typer.Option("--not-done", help="It was surely not done, and will not be.")] = False,
    run_again: Annotated[bool, typer.Option("--run-again", help="Nothing is in doubt: run the handler again.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Nobody wants it any more.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", help="With --done: what the call returned, as JSON.")
    ] = None,
    external_id: Annotated[
        str | None, typer.Option("--external-id", help="With --done: the id that the service gave it.")
    ] = None,
    same_key: Annotated[
        bool | None,
        typer.Option("--same-key/--new-key", help="With --not-done: whether the call keeps its idempotency key."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of it. The handler then runs again, except behind --discard, and writes what belongs to it."""
    said = [verb for verb, chosen in zip(Verb, (done, not_done, run_again, discard), strict=True) if chosen]
    if len(said) != 1:
        raise ConfigurationError.of(
            "CASE", "it is not said what became of it", "give one of --done, --not-done, --run-again and --discard"
        )
    rulings = [
        Ruling(
            reason=reason,
            reference=reference,
            verb=said[0],
            result=NOT_GIVEN if result is None else _json(result),
            external_id=external_id,
            same_key=same_key,
        )
        for reference in references
    ]
    if not asyncio.run(reviewing.resolve(access(app, config, NEEDS, token_file), rulings, as_json)):
        raise typer.Exit(1)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError.of(
            "--result", "it is no JSON", "give what the call returned: '{\"id\": 17}'"
        ) from error
