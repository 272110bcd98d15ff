"""What becomes of an event one of whose calls nobody knows the end of: it is tried again, but it does not die.

Another attempt with the same key may be refused, or fail for a reason of its own; neither says what the one before it
did. So where the event would be dead, a person decides. Asked is the ledger, because a probe, a person or a late answer
may have found it out meanwhile; and only where an attempt left a doubt, which nearly none does.

What if the process stops in between? The row of an event that waits names the call. One that was not written yet is
read again, and learns of the doubt where it makes the call anew.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from ...dlq.rules import DATABASE
from ...inbox import effects
from ...inbox.faults import Fault, classify
from ...inbox.store import STORE_ERRORS, Store
from .completion import Fate, in_doubt_fate
from .dependencies import Dependencies


@final
class Doubts:
    """Owned by the event loop."""

    def __init__(self, store: Store, dependencies: Dependencies) -> None:
        self._store = store
        self._dependencies = dependencies

    async def weigh(self, fate: Fate, effect_ids: Collection[int], attempts: int) -> Fate:
        """What `fate` is, where attempts left these calls in doubt."""
        while True:
            try:
                async with self._store.look() as conn:
                    still_open = await effects.first_open(conn, self._store.tables, effect_ids)
                return in_doubt_fate(fate, still_open, attempts)
            except STORE_ERRORS as error:
                if classify(error) in (Fault.DATA, Fault.PROGRAM):
                    raise
                await self._dependencies.wait(DATABASE)
