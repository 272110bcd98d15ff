"""`tidegate backfill`: shows a plan, or does it with a progress bar, and ends with a table of what became of it.

Ctrl-C and SIGTERM end it behind the chunk in hand; a second one, or a kill, at once. Either way nothing is lost and
nothing is done twice: `tidegate backfill resume ID` goes on.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import os
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import uvloop
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ...dlq.reach import Caller
from ...inbox.backfills import Counts, Part, Run
from ..backfill import held, oversight
from ..backfill.backfiller import Backfiller, Planned
from ..backfill.order import Order
from ..backfill.oversight import find, listed
from ..backfill.sifting import REFUSED, SKIPPED, Cause, Tally
from .access import Access, open_gate
from .options import ERR, OUT
from .preparing import Prepared, open_store
from .running import STOP_MARGIN_S
from .stopping import Stopping

EXIT_DONE: Final = 0
EXIT_PART: Final = 1
EXIT_NOTHING: Final = 3
EXIT_INTERRUPTED: Final = 130


def plan(prepared: Prepared, caller: Caller, order: Order, as_json: bool) -> int:
    """A dry run."""
    return _run(_plan(prepared, caller, order, as_json))


def start(prepared: Prepared, caller: Caller, order: Order, as_json: bool, *, later: bool = False) -> int:
    """Begin one, and work until it is done or a signal comes; `later`: it is only begun."""

    async def begin() -> int:
        async with _opened(prepared, caller) as backfiller:
            run = await backfiller.start(order)
            if later:
                _show_run(run, as_json)
                ERR.print(f"nothing is handled yet: `tidegate backfill resume {run.id}` does")
                return EXIT_DONE
            return await _go_on(prepared, backfiller, run, order.actor, order.reason, as_json, stopping.event())

    stopping = _listening(prepared)
    return _run(begin())


def resume(prepared: Prepared, caller: Caller, number: int, reason: str, rate: float | None, as_json: bool) -> int:
    """Go on with one, at another `rate` if one is given; one that has ended is only told about."""

    async def go_on() -> int:
        async with _opened(prepared, caller) as backfiller:
            run = await backfiller.find(number)
            return await _go_on(prepared, backfiller, run, caller.actor, reason, as_json, stopping.event(), rate)

    stopping = _listening(prepared)
    return _run(go_on())


def abandon(prepared: Prepared, caller: Caller, number: int, reason: str, yes: bool, as_json: bool) -> int:
    """Give one up; without `yes` it is only shown."""
    return _run(_abandon(prepared, caller, number, reason, yes, as_json))


def latest(prepared: Prepared, caller: Caller, as_json: bool) -> int:
    """All of them, newest first."""
    return _run(_latest(prepared, caller, as_json))


def _run(work: Coroutine[Any, Any, int]) -> int:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _listening(prepared: Prepared) -> Stopping:
    """A stop waits for what is in hand, and not for ever."""
    worker = prepared.settings.worker
    stopping = Stopping(_told_to_stop, worker.drain_budget_s + worker.close_budget_s + STOP_MARGIN_S)
    stopping.listen()
    return stopping


def _told_to_stop() -> None:
    """In a signal's handler: nothing that takes a lock."""
    os.write(2, b"stopping behind what is in hand; once more to stop at once\n")


@asynccontextmanager
async def _opened(prepared: Prepared, caller: Caller) -> AsyncGenerator[Backfiller]:
    store = open_store(prepared.settings, "backfill")
    try:
        yield Backfiller(prepared.app, prepared.settings, store, caller)
    finally:
        await store.database.close()


# ----------------------------------------------------------------------------------------------------------- doing it


async def _plan(prepared: Prepared, caller: Caller, order: Order, as_json: bool) -> int:
    async with _opened(prepared, caller) as backfiller:
        with _progress() as progress:
            bar = progress.add_task("looking", total=None)
            planned = await backfiller.plan(order, lambda _, tally: progress.advance(bar, _all(tally)), _waits)
    total = Tally()
    for tally in planned.tallies.values():
        total.handled += tally.handled
        total.causes.update(tally.causes)
    if as_json:
        OUT.print_json(json.dumps(_plan_plain(order, planned, total)))
    else:
        _show_plan(order, planned, total)
    return _exit_code(total.counts())


async def _go_on(
    prepared: Prepared,
    backfiller: Backfiller,
    run: Run,
    actor: str,
    reason: str,
    as_json: bool,
    stop: asyncio.Event,
    rate: float | None = None,
) -> int:
    where = f"cluster {run.cluster_id or '(unnamed)'}, {prepared.settings.kafka.bootstrap_servers}"
    ERR.print(
        f"backfill {run.id} of {escape(run.consumer)}/{escape(run.handler)} as group {escape(run.group)}, {where}"
    )
    with _progress() as progress:
        offsets = sum(part.end_offset - part.start_offset for part in run.parts)
        done = sum(part.next_offset - part.start_offset for part in run.parts)
        bar = progress.add_task(f"backfill {run.id}", total=offsets, completed=done)
        reached = {part.partition: part.next_offset for part in run.parts}

        def told(part: Part, _: Tally) -> None:
            progress.advance(bar, part.next_offset - reached[part.partition])
            reached[part.partition] = part.next_offset

        run = await backfiller.go_on(run.id, actor=actor, reason=reason, stop=stop, rate=rate, told=told, waits=_waits)
    _show_run(run, as_json)
    if run.ended_at is None:
        ERR.print(f"interrupted: `tidegate backfill resume {run.id}` goes on")
        return EXIT_INTERRUPTED
    return _exit_code(run.counts)


async def _latest(prepared: Prepared, caller: Caller, as_json: bool) -> int:
    async with open_gate(Access(prepared.settings, caller), "backfill") as gate:
        runs = await listed(gate)
    if as_json:
        OUT.print_json(json.dumps([_plain(run) for run in runs]))
        return EXIT_DONE
    columns = ("id", "consumer/handler", "started", "by", "why", *COUNTS, "state")
    table = Table(*columns, box=None, pad_edge=False)
    for run in runs:
        state = _state(run)
        place, counts = f"{run.consumer}/{run.handler}", [str(getattr(run.counts, name)) for name in COUNTS]
        words = (str(run.id), escape(place), _when(run.started_at), escape(run.actor), escape(run.why))
        table.add_row(*words, *counts, state)
    OUT.print(table if runs else "no backfills")
    return EXIT_DONE


async def _abandon(prepared: Prepared, caller: Caller, number: int, reason: str, yes: bool, as_json: bool) -> int:
    async with open_gate(Access(prepared.settings, caller), "backfill") as gate:
        run = await (oversight.abandon(gate, number, reason) if yes else find(gate, number))
    _show_run(run, as_json)
    for part in held.abandoned_inside(run.parts):
        ERR.print(
            f"{part.partition} was applied again up to {part.next_offset} of {part.live_offset}: some of its keys may"
            " hold older values than before, until another backfill with --hold has gone through"
        )
    if not yes:
        ERR.print(f"nothing was done: --yes gives backfill {number} up ({_state(run)})")
    return EXIT_DONE


def _state(run: Run) -> str:
    if run.abandoned_at is not None:
        return "abandoned"
    if run.ended_at is not None:
        return "ended"
    return f"{'holds its handler, ' if run.holds else ''}to be gone on with: backfill resume {run.id}"


COUNTS: Final = ("read", "handled", "skipped", "refused", "failed")


def _waits(why: str) -> None:
    ERR.print(f"waits: {escape(why)}")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=ERR, transient=True, disable=not ERR.is_terminal)


def _all(tally: Tally) -> int:
    return tally.handled + tally.causes.total()


def _exit_code(counts: Counts) -> int:
    """0 all of it is handled, 1 a part, 3 there was nothing. What was skipped was done before, or is nobody's here."""
    if counts.read == 0:
        return EXIT_NOTHING
    return EXIT_PART if counts.refused or counts.failed else EXIT_DONE


# -------------------------------------------------------------------------------------------------------- telling it


def _show_plan(order: Order, planned: Planned, total: Tally) -> None:
    table = Table(
        "partition", "from", "to", "records", "would handle", "skip", "refuse", "fail", box=None, pad_edge=False
    )
    for part in planned.parts:
        counts = planned.tallies[part.partition].counts()
        numbers = (part.start_offset, part.end_offset, counts.read, counts.handled, counts.skipped)
        table.add_row(str(part.partition), *map(str, (*numbers, counts.refused, counts.failed)))
    OUT.print(table)
    OUT.print(f"would handle {total.handled:,} of {_all(total):,} records")
    _show_causes(total.counts().causes or {})
    OUT.print(f"cluster {planned.cluster_id or '(unnamed)'}, consumer {order.consumer}, handler {order.handler}")
    ERR.print("nothing was done: --yes does it")


def _show_run(run: Run, as_json: bool) -> None:
    if as_json:
        OUT.print_json(json.dumps({"dry_run": False, **_plain(run)}))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in COUNTS:
        table.add_row(name, f"{getattr(run.counts, name):,}")
    OUT.print(f"backfill {run.id}")
    OUT.print(table)
    _show_causes(run.counts.causes or {})


def _show_causes(causes: Mapping[str, int]) -> None:
    for cause, n in sorted(causes.items()):
        verb = "skipped" if cause in SKIPPED else "refused" if cause in REFUSED else "failed"
        OUT.print(f"  {verb} {n:,}: {WORDS[Cause(cause)]}")


WORDS: Final[Mapping[Cause, str]] = {
    Cause.NOT_FOR_HANDLER: "of types that the handler does not take",
    Cause.OUTSIDE_WINDOW: "of a time outside the window, among its offsets",
    Cause.OTHER_TENANT: "of other tenants",
    Cause.HANDLED_BEFORE: "handled before",
    Cause.IN_INBOX: "they stand in the inbox already: see tidegate dlq list --all",
    Cause.DISCARDED: "discarded by a person",
    Cause.REPEAT: "repeats within the window",
    Cause.TOO_OLD: "older than the inbox remembers: nobody can tell whether they were handled (--force runs them)",
    Cause.AFTER_RESTORE: "from before a restore of the database: a missing claim proves nothing (--force runs them)",
    Cause.QUEUED: "not yet: the live worker tries them again",
    Cause.DEAD: "dead: see tidegate dlq list",
    Cause.UNKNOWN: "for a person: see tidegate review list",
    Cause.UNREADABLE: "nobody can read them: see tidegate dlq list",
    Cause.RETENTION: "offsets that retention took meanwhile",
}


def _plan_plain(order: Order, planned: Planned, total: Tally) -> dict[str, Any]:
    parts = [
        {"topic": p.partition.topic, "partition": p.partition.number, "from": p.start_offset, "to": p.end_offset,
         **_counts_plain(planned.tallies[p.partition].counts())}
        for p in planned.parts
    ]  # fmt: skip
    place = {"cluster_id": planned.cluster_id, "consumer": order.consumer, "handler": order.handler}
    return {"dry_run": True, **place, **_counts_plain(total.counts()), "parts": parts}


def _plain(run: Run) -> dict[str, Any]:
    told = {"backfill": run.id, "consumer": run.consumer, "handler": run.handler, "group": run.group}
    words = {"actor": run.actor, "why": run.why, "cluster_id": run.cluster_id, "wanted": dict(run.wanted)}
    over = {
        "ended_at": None if run.ended_at is None else _when(run.ended_at),
        "abandoned_at": None if run.abandoned_at is None else _when(run.abandoned_at),
    }
    return {**told, **words, **_counts_plain(run.counts), "started_at": _when(run.started_at), **over}


def _counts_plain(counts: Counts) -> dict[str, Any]:
    return {**{name: getattr(counts, name) for name in COUNTS}, "causes": dict(counts.causes or {})}


def _when(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
