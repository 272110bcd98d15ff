"""What a handler or a consumer that the app no longer has left behind, and the word that nobody misses it.

Nothing of it is deleted: its open rows become `discarded`, which answers probes like a claim; its number, claims and
checkpoints stay, so that a handler of that name which comes back goes on where the old one stopped. Rows come in
transactions of bounded size, each with its audit line. What if it stops between two of them? The handler still counts
as gone, and the same command goes on with what is left. What if an app that has the handler runs meanwhile? Each row is
discarded at the version at which it was read; what that worker completes first is done.

A consumer that is gone has handlers that are gone, the reserved one too, and nobody who sends what stands in its
outbox. Its calls in doubt are ended one by one, as all are (`review`): a word on the whole would be a guess at each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import failure, outbox
from ..inbox.handlers import known_handlers, mark_discarded
from ..inbox.outcome import FailureState
from ..inbox.states import Act, sources
from ..inbox.tables import Tables
from .permission import Gate
from .reach import Columns, Reach, Whole
from .verbs import Verb

ROWS_MAX: Final = 1_000
"""Rows in one transaction: as many as one replay takes; their lanes are locked for a moment only."""


_ALL: Final = sa.true()


@final
@dataclass(frozen=True, slots=True)
class Left:
    """What a handler left: its rows by their state, and the partitions that it has checkpoints in."""

    rows: Mapping[FailureState, int]
    partitions: int

    @property
    def open_rows(self) -> int:
        """Rows that something is still to be done about."""
        return sum(count for state, count in self.rows.items() if state in sources(Act.DISCARD))

    def __str__(self) -> str:
        rows = [f"{count} {state} rows" for state, count in sorted(self.rows.items())]
        return ", ".join([*rows, f"checkpoints in {self.partitions} partitions"])


@final
@dataclass(frozen=True, slots=True)
class ConsumerLeft:
    """What a consumer left: its handlers that nobody discarded (name -> id) and theirs; what nobody sends and ends."""

    handlers: Mapping[str, int]
    left: Left
    unsent: int
    calls: int

    def __str__(self) -> str:
        return f"{self.left}, {self.beside}"

    @property
    def beside(self) -> str:
        """What is of no handler alone."""
        return f"{self.unsent} records that were not sent, {self.calls} calls whose end is not known"


async def known(gate: Gate, consumer: str) -> dict[str, Left]:
    """The consumer's handlers that the caller sees something of, with what each has within their reach."""
    async with gate.asked(Verb.LIST_HANDLERS) as asked:
        ids = await known_handlers(asked.conn, asked.t, consumer)
        return {
            name: await left_by(asked.conn, asked.t, [ids[name]], _of(asked.reach, asked.t, consumer, name))
            for name in sorted(ids)
            if asked.reach.touches(Whole(consumer, name))
        }


def _of(reach: Reach, t: Tables, consumer: str, name: str) -> sa.ColumnElement[bool]:
    f = t.failure.c
    return reach.rows(Columns(sa.literal(consumer), sa.literal(name), f.tenant, f.brand))


async def ask(gate: Gate, consumer: str, name: str | None) -> None:
    """Before anything is told of a handler, or of a whole consumer. Raises NotPermitted."""
    async with gate.asked(Verb.DISCARD_HANDLER, dry_run=True, named=True) as asked:
        asked.require_whole(Whole(consumer, name))


async def look(gate: Gate, consumer: str, name: str, handler_id: int) -> Left:
    """What `discard` would discard. Raises NotPermitted."""
    async with gate.asked(Verb.DISCARD_HANDLER, dry_run=True, named=True) as asked:
        asked.require_whole(Whole(consumer, name))
        return await left_by(asked.conn, asked.t, [handler_id])


async def discard(gate: Gate, consumer: str, name: str, handler_id: int, reason: str) -> Left:
    """Discard what a gone handler left, of all tenants, and have nobody miss it; what there was.

    Raises:
        NotPermitted: the caller may not do this to all of the handler.
    """
    left = await look(gate, consumer, name, handler_id)
    while await _discard_some(gate, Whole(consumer, name), handler_id, reason, left):
        pass
    return left


async def beside(gate: Gate, consumer: str) -> str | None:
    """What a gone consumer left that is of no handler, for those who see all of it."""
    async with gate.asked(Verb.LIST_HANDLERS) as asked:
        sees = asked.reach.covers_whole(Whole(consumer))
        return (await left_by_consumer(asked.conn, asked.t, consumer)).beside if sees else None


async def look_consumer(gate: Gate, consumer: str) -> ConsumerLeft:
    """What `discard_consumer` would discard. Raises NotPermitted."""
    async with gate.asked(Verb.DISCARD_HANDLER, dry_run=True, named=True) as asked:
        asked.require_whole(Whole(consumer))
        return await left_by_consumer(asked.conn, asked.t, consumer)


async def discard_consumer(gate: Gate, consumer: str, reason: str) -> ConsumerLeft:
    """Discard what a gone consumer left, but its calls, and have nobody miss it; what there was.

    Raises:
        NotPermitted: the caller may not do this to all of the consumer.
    """
    left = await look_consumer(gate, consumer)
    while left.unsent and await _give_up_some(gate, consumer, reason, left):
        pass
    for name, handler_id in left.handlers.items():
        await discard(gate, consumer, name, handler_id, reason)
    return left


async def _give_up_some(gate: Gate, consumer: str, reason: str, left: ConsumerLeft) -> bool:
    """One transaction, lock order 7: up to `ROWS_MAX` records are not sent; whether there may be more."""
    whole = Whole(consumer)
    async with gate.asked(Verb.DISCARD_HANDLER, reason, named=True) as asked:
        asked.require_whole(whole)
        count = await outbox.give_up(asked.conn, asked.t, consumer, ROWS_MAX)
        await asked.write(whole.place, {"left": str(left), "not_sent": count})
        return count == ROWS_MAX


async def _discard_some(gate: Gate, whole: Whole, handler_id: int, reason: str, left: Left) -> bool:
    """One transaction, lock order 2, 6, 7: up to `ROWS_MAX` open rows, or the last word where there are none."""
    async with gate.asked(Verb.DISCARD_HANDLER, reason, named=True) as asked:
        asked.require_whole(whole)
        rows = await _open_rows(asked.conn, asked.t, handler_id)
        if not rows:
            await mark_discarded(asked.conn, asked.t, handler_id)
            await asked.write(whole.place, {"left": str(left), "closed": True})
            return False
        done = await failure.discard(asked.conn, asked.t, rows)
        counts = {"discarded": len(done), "changed_meanwhile": len(rows) - len(done)}
        await asked.write(whole.place, {"left": str(left), **counts})
        return True


async def left_by(
    conn: AsyncConnection, t: Tables, handler_ids: Collection[int], within: sa.ColumnElement[bool] = _ALL
) -> Left:
    """Count it; no lock."""
    ids = sorted(handler_ids)
    f, c = t.failure.c, t.checkpoint.c
    counted = sa.select(f.state, sa.func.count()).where(f.handler.in_(ids), within).group_by(f.state)
    rows = {FailureState(state): count for state, count in await conn.execute(counted)}
    places = sa.select(c.topic, c.partition).where(c.handler.in_(ids)).distinct().subquery()
    return Left(rows, await conn.scalar(sa.select(sa.func.count()).select_from(places)) or 0)


async def left_by_consumer(conn: AsyncConnection, t: Tables, consumer: str) -> ConsumerLeft:
    """Count it; no lock."""
    handlers = await known_handlers(conn, t, consumer)
    left = await left_by(conn, t, handlers.values())
    unsent = (await outbox.pending(conn, t, consumer)).count
    return ConsumerLeft(handlers, left, unsent, sum((await open_effects(conn, t, consumer)).values()))


async def open_effects(conn: AsyncConnection, t: Tables, consumer: str) -> dict[str, int]:
    """How many calls of each effect the consumer made or began, and nobody knows the end of."""
    e = t.effect.c
    counted = sa.select(e.name, sa.func.count()).where(e.state.in_(("intended", "unknown")), e.consumer == consumer)
    rows = await conn.execute(counted.group_by(e.name).order_by(e.name))
    return {row[0]: row[1] for row in rows}


async def _open_rows(conn: AsyncConnection, t: Tables, handler_id: int) -> list[tuple[int, int]]:
    f = t.failure.c
    is_open = f.state.in_(sorted(state.value for state in sources(Act.DISCARD)))
    wanted = sa.select(f.id, f.row_version).where(f.handler == handler_id, is_open).order_by(f.id).limit(ROWS_MAX)
    return [(row.id, row.row_version) for row in await conn.execute(wanted)]
