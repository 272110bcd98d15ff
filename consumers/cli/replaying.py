"""`tidegate dlq replay`: shows a plan, or does it with a progress bar, and ends with a table of what became of it.

Ctrl-C at any time is safe: what was queued is counted, and `tidegate dlq replay resume ID` goes on behind it.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ...dlq.permission import Gate
from ...dlq.replay_journal import Outcomes, Run
from ...dlq.replay_order import Order
from ...dlq.replays import Pace, Plan, Replays
from ..settings import Settings, masked_address
from .access import Access, open_gate
from .filtering import Chosen
from .loading import load_app
from .options import ERR, OUT

EXIT_DONE: Final = 0
EXIT_PART: Final = 1
EXIT_NOTHING: Final = 3
EXIT_INTERRUPTED: Final = 130

SHOWN_MAX: Final = 10
"""Lines of a histogram: the largest classes, and one line for the others."""


@final
@dataclass(frozen=True, slots=True)
class Manner:
    """How it is done and told."""

    yes: bool
    pace: Pace
    wait: bool
    patience_s: float | None
    as_json: bool


def guarded(work: Coroutine[Any, Any, int]) -> int:
    """Run it to its exit code. Ctrl-C is one too."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


async def replay(access: Access, app: str | None, letters: Chosen, order: Order, manner: Manner) -> int:
    """Show the plan; with `yes` do it."""
    async with open_gate(access, "dlq replay") as gate:
        async with gate.store.look() as conn:
            chosen = await letters.resolved(conn, gate.store.tables, gate.caller.sees)
        order = replace(order, filter=chosen, versions=versions_of(app))
        replays = Replays(gate.store, gate.caller)
        if not manner.yes:
            return show_plan(await replays.plan(order), _place(access.settings), manner.as_json, order.to_source)
        return await go_on(gate, await replays.start(order), manner)


async def latest(access: Access, limit: int, as_json: bool) -> None:
    """Print the last runs."""
    async with open_gate(access, "dlq replay") as gate:
        runs = await Replays(gate.store, gate.caller).latest(limit)
    if as_json:
        OUT.print_json(json.dumps([_plain(run) for run in runs]))
        return
    columns = ("id", "started", "by", "why", "read", "replayed", "skipped", "refused", "state")
    table = Table(*columns, box=None, pad_edge=False)
    for run in runs:
        counts = (str(n) for n in (run.read, run.replayed, run.skipped, run.refused))
        state = "ended" if run.ended_at is not None else f"to be gone on with: replay resume {run.id}"
        table.add_row(str(run.id), _when(run.started_at), escape(run.actor), escape(run.why), *counts, state)
    OUT.print(table if runs else "no replays")


def versions_of(app: str | None) -> dict[tuple[str, str], int]:
    """The versions of the handlers of the app that was named: an older release's must not handle a newer one's."""
    if app is None:
        return {}
    consumers = load_app(app).consumers.values()
    return {(c.name, p.name): p.version for c in consumers for p in c.projections.values()}


# ----------------------------------------------------------------------------------------------------------- doing it


async def go_on(gate: Gate, run: Run, manner: Manner) -> int:
    """Do what is left of a replay of rows, and tell what became of it."""
    replays = Replays(gate.store, gate.caller)
    left = 0 if run.ended_at is not None else await replays.left(run)
    return await finish(gate, run, manner, lambda: queue(gate, replays.go_on, run, run.read + left, manner))


async def finish(gate: Gate, run: Run, manner: Manner, work: Callable[[], Awaitable[Run]]) -> int:
    """Queue what is left, wait where that was asked for, and tell what became of it; the exit code."""
    try:
        run = await work() if run.ended_at is None else run
        outcomes = await _outcomes(Replays(gate.store, gate.caller), run, manner)
    except asyncio.CancelledError:
        ERR.print(f"interrupted: `tidegate dlq replay resume {run.id}` goes on")
        raise
    _show_run(run, outcomes, manner)
    return exit_code(run, outcomes, waited=manner.wait)


async def queue(gate: Gate, work: GoOn, run: Run, total: int | None, manner: Manner) -> Run:
    """With a bar, which has an end where it is known how many there are."""
    with _progress() as progress:
        bar = progress.add_task(f"replay {run.id}", total=total)
        return await work(run.id, gate.caller.actor, manner.pace, lambda now: progress.update(bar, completed=now.read))


GoOn = Callable[[int, str, Pace, Callable[[Run], None]], Awaitable[Run]]
"""Does what is left of a run: (its number, who asks, how fast, who wants to know)."""


async def _outcomes(replays: Replays, run: Run, manner: Manner) -> Outcomes:
    if not manner.wait or not run.replayed:
        return await replays.outcomes(run.id)
    with _progress() as progress:
        bar = progress.add_task("worked", total=run.replayed)
        return await replays.wait(
            run.id, manner.patience_s, lambda waiting: progress.update(bar, completed=run.replayed - waiting)
        )


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal)


def exit_code(run: Run, outcomes: Outcomes, *, waited: bool) -> int:
    """0 all of it, 1 a part, 3 there was nothing. What was skipped is done, or somebody else is at it."""
    if run.read == 0:
        return EXIT_NOTHING
    failed = outcomes.dead_again + outcomes.unknown + outcomes.discarded + (outcomes.waiting if waited else 0)
    return EXIT_PART if run.refused or run.skipped or failed else EXIT_DONE


# -------------------------------------------------------------------------------------------------------- telling it


def _place(settings: Settings) -> str:
    return f"{masked_address(settings.database.dsn())}, schema {settings.database.schema_name}"


def show_plan(plan: Plan, place: str, as_json: bool, to_source: str | None = None) -> int:
    """Print what would be done, and where; the exit code."""
    if as_json:
        counts: dict[str, Any] = {"dry_run": True, "place": place, "read": plan.read, "replayed": plan.replayed}
        causes = {"skipped": dict(plan.skipped), "refused": dict(plan.refused)}
        OUT.print_json(json.dumps({**counts, **causes, "by": {name: dict(found) for name, found in plan.by.items()}}))
    else:
        OUT.print(f"would replay {_letters(plan.replayed)}")
        if to_source is not None:
            OUT.print(f"  by sending them to {escape(to_source)}, where every group that reads it sees them again")
        for name, found in plan.by.items():
            _show_histogram(name, found)
        _show_causes("skip", plan.skipped)
        _show_causes("refuse", plan.refused)
        ERR.print(f"in {escape(place)}; {_next(plan)}")
    if plan.read == 0:
        return EXIT_NOTHING
    return EXIT_PART if plan.skipped or plan.refused else EXIT_DONE


def _next(plan: Plan) -> str:
    """What whoever reads a plan does now."""
    if plan.read == 0:
        return NOTHING
    return "nothing was done: --yes does it" if plan.replayed else "nothing was done, and --yes would do nothing either"


NOTHING: Final = "no letter matches: `tidegate dlq groups --all` counts what there is, in any state"


def _show_histogram(name: str, found: Counter[str]) -> None:
    if not found or set(found) == {"-"}:
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    most = found.most_common(SHOWN_MAX)
    for value, n in most:
        table.add_row(f"  {name}", escape(value), f"{n:,}", "#" * max(1, round(30 * n / most[0][1])))
    if rest := found.total() - sum(n for _, n in most):
        table.add_row(f"  {name}", f"{len(found) - SHOWN_MAX} others", f"{rest:,}")
    OUT.print(table)


def _show_causes(verb: str, causes: Mapping[str, int]) -> None:
    for cause, n in sorted(causes.items()):
        OUT.print(f"  would {verb} {n:,}: {escape(cause)}")


def _show_run(run: Run, outcomes: Outcomes, manner: Manner) -> None:
    if manner.as_json:
        OUT.print_json(json.dumps({"dry_run": False, **_plain(run), "outcomes": outcomes._asdict()}))
        return
    OUT.print(f"replayed {_letters(run.replayed)} (replay {run.id})")
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, n in _lines(run, outcomes):
        table.add_row(f"  {name}", f"{n:,}")
    for cause, n in sorted(run.causes.items()):
        table.add_row(f"    {escape(cause)}", f"{n:,}")
    OUT.print(table)
    if run.read == 0:
        ERR.print(NOTHING)
    if outcomes.waiting:
        waiting = f"{_letters(outcomes.waiting)} still to be worked by a running worker that owns the partition"
        ERR.print(f"{waiting}: `tidegate dlq replay resume {run.id} --wait` waits for it")


def _lines(run: Run, outcomes: Outcomes) -> list[tuple[str, int]]:
    told = [
        ("read", run.read),
        ("replayed", run.replayed),
        ("succeeded", outcomes.succeeded),
        ("handled already", outcomes.repeats),
        ("dead again", outcomes.dead_again),
        ("to be reviewed", outcomes.unknown),
        ("discarded meanwhile", outcomes.discarded),
        ("waiting", outcomes.waiting),
        ("skipped", run.skipped),
        ("refused", run.refused),
    ]
    always = {"read", "replayed", "succeeded", "dead again", "skipped", "refused"}
    return [(name, n) for name, n in told if n or name in always]


def _letters(n: int) -> str:
    return f"{n:,} letter{'' if n == 1 else 's'}"


def _plain(run: Run) -> dict[str, Any]:
    counts = {name: getattr(run, name) for name in ("read", "replayed", "skipped", "refused")}
    ended = None if run.ended_at is None else _when(run.ended_at)
    told = {"replay": run.id, "source": run.source, "actor": run.actor, "why": run.why, **counts}
    return {**told, "causes": dict(run.causes), "started_at": _when(run.started_at), "ended_at": ended}


def _when(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
