"""Backfills as they stand, and the end of one that nobody goes on with. It needs the inbox only, neither app nor Kafka.

What becomes of an abandoned one: what it handled is handled, so its claims stay, and its rows too, which the live
worker tries again. Its journal stays as it is; what it had in hand is not counted. Its fences go, and with them the
right to write of a process that still works on it. What it held goes on (`held`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dlq.permission import Gate, Place
from ...dlq.reach import SEVERAL
from ...dlq.verbs import Verb
from ...inbox import backfills, fence, holds
from ...inbox.backfills import Run
from ...inbox.errors import ConfigurationError
from ...inbox.safe_text import Detail
from . import held


def place_of(run: Run) -> Place:
    """It reads whole partitions: what is not of one tenant is of all, and brands are not told apart."""
    return Place(run.consumer, run.handler, run.wanted["tenant"] or SEVERAL, SEVERAL)


async def listed(gate: Gate) -> Sequence[Run]:
    """The latest that the caller may see, newest first, without their parts. Raises NotPermitted."""
    async with gate.asked(Verb.LIST_BACKFILLS) as asked:
        return [run for run in await backfills.latest(asked.conn, asked.t) if asked.reach.covers(place_of(run))]


async def find(gate: Gate, number: int) -> Run:
    """A backfill as it stands. Raises ConfigurationError where the caller knows none of this number."""
    async with gate.store.look() as conn:
        run = await backfills.read(conn, gate.store.tables, number)
    if run is None or not gate.caller.sees.covers(place_of(run)):
        raise _unknown(number)
    return run


async def abandon(gate: Gate, number: int, reason: str) -> Run:
    """Nobody goes on with it, and what it held goes on: lock order 1, 7, 8, 9.

    1. A process that works on it has a transaction open under its fence. 2. This one waits for its end before it
    removes the fence, and only then reads how far it came. 3. What that process writes next finds no fence.

    Raises:
        NotPermitted: the caller may not do this to its handler.
        ConfigurationError: there is none of this number, or it is over already.
    """
    async with gate.asked(Verb.ABANDON_BACKFILL, reason, named=True) as asked:
        run = await backfills.read(asked.conn, asked.t, number)
        if run is None or not asked.knows(place := place_of(run)):
            raise _unknown(number)
        asked.require(place)
        await fence.remove(asked.conn, asked.t, run.group)
        now = await backfills.read(asked.conn, asked.t, number)
        assert now is not None, "nothing of the journal is ever removed"
        await asked.write(place, {**figures(now), "abandoned": True})
        await holds.let_go(asked.conn, asked.t, number, held.goes_on_at(now.parts, ended=False))
        if not await backfills.abandon(asked.conn, asked.t, number):
            raise ConfigurationError.of("BACKFILL", f"backfill {number} is over already", "see: tidegate backfill list")
    return await find(gate, number)


def _unknown(number: int) -> ConfigurationError:
    return ConfigurationError.of("BACKFILL", f"there is no backfill {number}", "see: tidegate backfill list")


def figures(run: Run) -> dict[str, Detail]:
    """Of its line in the audit."""
    counts = run.counts
    return {
        "backfill": run.id,
        "read": counts.read,
        "handled": counts.handled,
        "skipped": counts.skipped,
        "refused": counts.refused,
        "failed": counts.failed,
    }
