"""A backfill that holds its projection's live version: what that means, and when it may begin. No IO.

Events that are applied out of order can leave an old value in the place of a new one. A projection that does not guard
its writes must therefore see a window and everything behind it in their order. Beside a live version that goes on this
cannot be had; so with `--hold` the live version writes nothing from the start of the backfill on (`inbox.holds`), and
goes on exactly where the backfill ends. What is read between is of two kinds, and the place where the live version
stood when it was held, `live_offset`, parts them:

* below it events were applied before. They are applied **again**, in order, under claims of the run's own: those of the
  live version would skip them all.
* from there on nothing was. Events are applied **for the first time**, under the live version's own claims, rows and
  lanes: it is the live version that does so, only by another reader. So a repeat that comes behind the end is one.

From this follows what a held backfill reads, whatever times were asked for:

1. It ends at the log's end as it was at the start, and never below `live_offset`. Were there live events behind its
   end, its old values would stand over theirs. An end before that is refused.
2. It begins at the window's begin, or at `live_offset` if that is lower. What lay between the two would be handled by
   nobody: the live version goes on behind the end.
3. Nothing between is left out: no time, no tenant.

Which covers: a new projection that wants the history (it is live since its deploy; what it applied until now is applied
again, behind the history), one whose tables were emptied, and one that fell behind. What adds up (`n = n + 1`) adds up
twice unless the tables are emptied once it is held: `--later` holds it and leaves the rest to `backfill resume`.

What if it is killed? The live version stays held, and `backfill resume` goes on. What if it is given up (`backfill
abandon`)? The live version goes on where it stood, or behind what the run applied for the first time if that is more:
no event is left out. But of a part that ended below `live_offset` some keys may hold older values than before, until
another backfill has gone through; `abandoned_inside` says so.

What order is kept? That of each partition, as ever; the partitions come one behind the other. A key that moved to
another partition, because some were added, has its events in the order of the partitions' numbers: a projection that
minds needs guarded writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ...inbox.backfills import Part
from ...inbox.errors import ConfigurationError, Problem
from ...inbox.event import Partition

Standing = Mapping[Partition, tuple[int, int, int | None]]
"""Partition -> (incarnation, next offset, the backfill that holds it) of the live version."""


def parts_of(parts: Sequence[Part], standing: Standing, open_ended: Collection[Partition]) -> list[Part]:
    """The parts as a held backfill reads them, where the live version stands there.

    `open_ended` are those whose window reaches to the log's end: what came into the log since it was looked at, and was
    applied, belongs to them.

    Raises ConfigurationError for what is held already, or would not end behind the live version.

    >>> T = Partition("t", 0)
    >>> [part] = parts_of([Part(T, 0, 20, 20, 90)], {T: (0, 60, None)}, [T])
    >>> part.start_offset, part.live_offset, part.end_offset
    (20, 60, 90)
    """
    if problems := [problem for part in parts if (problem := _problem(part, standing, open_ended)) is not None]:
        raise ConfigurationError(problems)
    return [_part(part, standing.get(part.partition, (0, part.start_offset, None))[1]) for part in parts]


def _part(part: Part, live_offset: int) -> Part:
    start = min(part.start_offset, live_offset)
    end = max(part.end_offset, live_offset)
    return replace(part, start_offset=start, next_offset=start, end_offset=end, live_offset=live_offset)


def _problem(part: Part, standing: Standing, open_ended: Collection[Partition]) -> Problem | None:
    if part.partition not in standing:
        return None
    incarnation, live_offset, held = standing[part.partition]
    if held is not None:
        fix = f"end that first: tidegate backfill resume {held}, or abandon {held}"
        return Problem("--hold", f"backfill {held} holds the handler in {part.partition}", fix)
    if incarnation != part.incarnation:
        what = f"the handler's checkpoint in {part.partition} is one of a former topic of this name"
        return Problem("--hold", what, "let the consumer begin with the new topic first")
    if part.end_offset < live_offset and part.partition not in open_ended:
        what = (
            f"in {part.partition} the window ends at {part.end_offset} and the handler stands at {live_offset}:"
            " what lies between was applied, and old values would come over it"
        )
        return Problem("--to", what, "let the window reach to now, or later")
    return None


def goes_on_at(parts: Sequence[Part], *, ended: bool) -> dict[Partition, int]:
    """Where the live version goes on: behind the end, or, abandoned, where nothing is left out."""
    return {
        part.partition: part.end_offset if ended else max(part.live_offset, part.next_offset)
        for part in parts
        if part.live_offset is not None
    }


def abandoned_inside(parts: Sequence[Part]) -> list[Part]:
    """Parts that were begun and not brought back to where the live version stood: older values may stand there."""
    return [part for part in parts if part.is_again and (part.next_offset > part.start_offset or part.chunk_end)]
