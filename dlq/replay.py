"""The operator's service on dead letters: list and count them. One letter is shown by `looking`, replays stand in
`replays`, one step of one in `replay_steps` and `replay_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import grouping
from .grouping import By, LetterGroup
from .permission import Gate
from .replay_order import Order, Refusal, Report
from .replay_rows import replay
from .selection import Entry, Filter, entries
from .verbs import Verb

__all__ = ["Entry", "Filter", "Order", "Refusal", "Report", "list_groups", "list_letters", "replay"]


async def list_letters(gate: Gate, wanted: Filter, *, after: int = 0, limit: int = 100) -> list[Entry]:
    """Letters within the caller's reach that `wanted` matches, oldest first, behind the row number `after`."""
    async with gate.asked(Verb.LIST_LETTERS) as asked:
        return await entries(asked.conn, asked.t, wanted, within=asked.reach, after=after, limit=limit)


async def list_groups(gate: Gate, wanted: Filter, by: Sequence[By], *, limit: int = 100) -> list[LetterGroup]:
    """How many of them have what in common, the largest group first."""
    async with gate.asked(Verb.LIST_LETTERS) as asked:
        return await grouping.grouped(asked.conn, asked.t, wanted, by, within=asked.reach, limit=limit)
