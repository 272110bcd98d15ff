"""`tidegate dlq replay` and its options; `replaying.py` does what it says.

Exit codes: 0 everything that was asked for is done (with `--wait`: succeeded), 1 only a part of it, 3 no letter
matches, 130 interrupted (`replay resume ID` goes on); 2, 70 and 78 as everywhere.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from ...dlq.replay_journal import TOPIC
from ...dlq.replay_order import Order
from ...dlq.replays import Pace, Replays
from ...inbox.errors import ConfigurationError
from . import adopting, replaying
from .access import Access, access, open_gate
from .filtering import Chosen, choosing
from .options import AppOption, ConfigOption, JsonOption, TokenOption
from .replaying import Manner

NEEDS: Final = ("database.url",)


@choosing(named_tenant=True)
def replay(
    letters: Chosen,
    reason: Annotated[str | None, typer.Option("--reason", help="Why now: it stands in the audit.")] = None,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="The letters of every tenant are meant, not of one.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without it you only see what would be done.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, as without --yes.")] = False,
    rate: Annotated[float | None, typer.Option("--rate", min=0.1, help="At most so many letters a second.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also letters that were replayed twice already, or handled.")
    ] = False,
    new_operation: Annotated[
        bool, typer.Option("--new-operation", help="As another operation: its calls to the outside are made anew.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until each of them has come to its end.")] = False,
    wait_s: Annotated[float | None, typer.Option("--wait-s", min=0, help="With --wait: at most so long.")] = None,
    from_topic: Annotated[
        str | None,
        typer.Option(
            "--from-topic", metavar="TOPIC", help="Letters whose rows are gone, out of this dead-letter topic."
        ),
    ] = None,
    to_source: Annotated[
        str | None,
        typer.Option(
            "--to-source",
            metavar="TOPIC",
            help="Send the records to their source topic again, where every group sees them. Type its name.",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="With --from-topic: it must be this cluster.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put letters back into their handlers' queue; the event ids stay, so nothing happens twice.

    `replay resume ID` goes on with a replay that was interrupted.
    """
    manner = Manner(yes and not dry_run, Pace(rate), wait, wait_s, as_json)
    asked = access(app, config, NEEDS, token_file)
    if letters.references[:1] == ("resume",):
        work = _resume(asked, _number(letters.references), app, config, manner)
    else:
        order = replace(
            _order(asked.caller.actor, letters, reason, all_tenants, force, new_operation, manner), to_source=to_source
        )
        _refuse_both(order, from_topic)
        if from_topic is None:
            work = replaying.replay(asked, app, letters, order, manner)
        else:
            f = letters.filter
            origin = adopting.Origin(asked.caller, app, config, from_topic, f.consumer, f.handler, f.topic, cluster)
            work = adopting.adopt(origin, adopting.order_for(order, f), manner)
    if code := replaying.guarded(work):
        raise typer.Exit(code)


async def _resume(access: Access, run_id: int, app: str | None, config: Path | None, manner: Manner) -> int:
    async with open_gate(access, "dlq replay") as gate:
        run = await Replays(gate.store, gate.caller).run(run_id)
        if run.source == TOPIC and run.ended_at is None:
            return await adopting.resume(gate, run, app, config, manner)
        return await replaying.go_on(gate, run, manner)


def _refuse_both(order: Order, from_topic: str | None) -> None:
    if order.to_source is not None and (from_topic is not None or order.new_operation):
        raise ConfigurationError.of(
            "--to-source", "it goes with neither --from-topic nor --new-operation", "put the letters back first"
        )


def _order(
    actor: str, letters: Chosen, reason: str | None, all_tenants: bool, force: bool, new_operation: bool, manner: Manner
) -> Order:
    if not reason and manner.yes:
        raise ConfigurationError.of("--reason", "it is not given", "say why: it stands in the audit")
    return Order(
        actor=actor,
        reason=reason or "dry run",
        references=letters.references,
        filter=None if letters.references else letters.filter,
        dry_run=not manner.yes,
        force=force,
        new_operation=new_operation,
        tenant=letters.filter.tenant,
        all_tenants=all_tenants,
    )


def _number(references: tuple[str, ...]) -> int:
    if len(references) != 2 or not references[1].isdigit():
        raise ConfigurationError.of(
            "resume", "it is not said which replay", "give its number: `tidegate dlq replays` lists them"
        )
    return int(references[1])


def replays(
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="At most so many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the last replays: what each one asked for, how far it came, and what became of it."""
    asyncio.run(replaying.latest(access(app, config, NEEDS, token_file), limit, as_json))


def add_to(verbs: typer.Typer) -> None:
    """Both verbs."""
    verbs.command()(replay)
    verbs.command()(replays)
