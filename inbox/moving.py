"""Moves checkpoints for those who own them, and judges what it means when one does not stand where it was left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import checkpoint, fence
from .errors import FatalError, OwnershipLost
from .event import Partition
from .holding import HandlerVersion, Holding, Holdings
from .points import Writes
from .store import Store

Points = Mapping[Partition, tuple[int, int]]
"""Partition -> (epoch, next offset)."""


def judge(mismatches: Sequence[checkpoint.Mismatch], moves: int) -> None:
    """A checkpoint does not stand where we left it: done already, taken from us, or the database went back in time."""
    if not mismatches:
        return
    if len(mismatches) == moves and all(miss.found == miss.move.new for miss in mismatches):
        return  # the answer to our own commit was lost: this batch is there already, and this attempt changed nothing
    behind = [miss for miss in mismatches if miss.found is None or miss.found < miss.move.old]
    if behind:
        miss = behind[0]
        raise FatalError(
            f"the database went back in time: the checkpoint of {miss.move.topic}/{miss.move.partition}"
            f" is {miss.found}, but {miss.move.old} was confirmed",
            fix="if it was restored, run `tidegate restored`; then start again",
        )
    raise OwnershipLost("a checkpoint was moved by somebody else")


def behind(holdings: Holdings, key: HandlerVersion, points: Points) -> dict[Partition, Holding]:
    """Those of our partitions in which this handler's checkpoint stands below the point."""
    held = {p: h for p, (epoch, _) in points.items() if (h := holdings.current(p, epoch)) is not None}
    return {p: h for p, h in held.items() if h.checkpoints[key] < points[p][1]}


async def raise_checkpoints(
    store: Store, consumer: str, holdings: Holdings, key: HandlerVersion, points: Points
) -> None:
    """Raise one handler's checkpoints to points below which everything is durable.

    Steps 1 and 8. The caller keeps other transactions that move this handler's checkpoints away meanwhile.
    """
    below = behind(holdings, key, points)
    if not below:
        return
    async with store.transaction(Writes.RAISE) as conn:
        ours = await fence.hold(conn, store.tables, consumer, holdings.fences(below))
        moves = [
            checkpoint.Move(*key, p.topic, p.number, holding.checkpoints[key], points[p][1])
            for p, holding in below.items()
            if p in ours
        ]
        judge(await checkpoint.move(conn, store.tables, moves), len(moves))
    for move in moves:
        below[Partition(move.topic, move.partition)].checkpoints[key] = move.new
