"""`tidegate backfill` and its options; `backfilling.py` does what it says.

Exit codes: 0 all of the window is handled, now or before; 1 some of it is not (refused, or a row that waits or is
dead); 3 there is nothing in the window; 130 interrupted (`backfill resume ID` goes on); 2, 70 and 78 as everywhere.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Final

import typer

from ...dlq.reach import Caller
from ...inbox.errors import ConfigurationError
from ..backfill.order import RATE_PER_S, Order
from . import backfilling
from .access import access_to
from .options import AppOption, ConfigOption, JsonOption, TokenOption
from .preparing import Prepared, prepare

NEEDS: Final = ("database.url", "kafka.bootstrap_servers")


def backfill(
    what: Annotated[
        list[str],
        typer.Argument(metavar="CONSUMER | resume ID | abandon ID | list", help="Whose events; or what was begun."),
    ],
    handler: Annotated[
        str | None, typer.Option("--handler", help="The projection or command that handles them.")
    ] = None,
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="The window's begin (ISO, UTC).")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Its end, which is not in it.")] = None,
    app: AppOption = None,
    config: ConfigOption = None,
    token_file: TokenOption = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only these of its topics, by full name.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only events of this tenant.")] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="Events of every tenant are meant.")] = False,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="ID", help="Refuse any other cluster.")] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, help=f"At most so many events a second ({RATE_PER_S:g}).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also what is older than the inbox remembers.")] = False,
    hold: Annotated[bool, typer.Option("--hold", help="The projection stands still until it is through.")] = False,
    later: Annotated[bool, typer.Option("--later", help="Begin (and hold); `backfill resume` does the work.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why now: it stands in the audit.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without it you only see what would be done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Handle the events of a window of time again, beside the live group and without touching it.

    What the inbox knows is skipped. `backfill resume ID` goes on with one that was interrupted, `backfill abandon ID`
    gives one up, `backfill list` shows them all.
    """
    prepared = prepare(app, config, NEEDS)
    caller = access_to(prepared.settings, token_file).caller
    if what == ["list"] and handler is None:
        code = backfilling.latest(prepared, caller, as_json)
    elif len(what) == 2 and what[0] == "resume":
        _refuse_all_but_rate(handler, since, until, topic, tenant, all_tenants, cluster, force, hold, later)
        code = backfilling.resume(prepared, caller, _number(what[1]), reason or "resumed", rate, as_json)
    elif len(what) == 2 and what[0] == "abandon":
        code = backfilling.abandon(prepared, caller, _number(what[1]), _why(reason, yes), yes, as_json)
    else:
        order = Order(
            consumer=_one(what),
            handler=_given("--handler", handler, "name the projection or command"),
            since=_time("--from", since),
            until=_time("--to", until),
            actor=caller.actor,
            reason=_why(reason, yes),
            tenant=tenant,
            all_tenants=all_tenants,
            topics=tuple(topic or ()),
            cluster=cluster,
            rate=rate or RATE_PER_S,
            force=force,
            hold=hold,
        )
        code = _begin(prepared, caller, order, yes, later, as_json)
    if code:
        raise typer.Exit(code)


def _begin(prepared: Prepared, caller: Caller, order: Order, yes: bool, later: bool, as_json: bool) -> int:
    if not yes:
        return backfilling.plan(prepared, caller, order, as_json)
    return backfilling.start(prepared, caller, order, as_json, later=later)


def _one(what: list[str]) -> str:
    if len(what) != 1:
        raise ConfigurationError.of(
            "CONSUMER", "it is not one name", "write one consumer, `resume ID`, `abandon ID` or `list`"
        )
    return what[0]


def _why(reason: str | None, yes: bool) -> str:
    return _given("--reason", reason or None, "say why: it stands in the audit") if yes else reason or "dry run"


def _refuse_all_but_rate(*given: object) -> None:
    if any(given):
        raise ConfigurationError.of(
            "resume", "what it handles was said at its start", "leave all but --rate and --reason out"
        )


def _given(option: str, value: str | None, fix: str) -> str:
    if value is None:
        raise ConfigurationError.of(option, "it is not given", fix)
    return value


def _time(option: str, text: str | None) -> datetime.datetime:
    given = _given(option, text, "give a time as 2026-01-31T08:00:00, in UTC unless it says otherwise")
    try:
        time = datetime.datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigurationError.of(option, f"{given!r} is no time", "write it as 2026-01-31T08:00:00") from error
    return time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time


def _number(text: str) -> int:
    if not text.isdigit():
        raise ConfigurationError.of("ID", f"{text!r} is no number", "see: tidegate backfill list")
    return int(text)
