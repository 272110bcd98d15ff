"""What turned out to be a conflict while its group claimed, or that the database refuses it: whoever would write its
letter asks the breaker first.

The group's transaction is over, nothing of the event is written, and its id is still in flight here. That its handler
came back well, which was told, is taken back first. Where the breaker is closed the letter goes into the next group.
Where it holds the event back, the event waits beside the completer, for everything else goes on; when it is let in it
claims once more, for somebody may have resolved the other one meanwhile, and that it could is a good end. What of the
good ends of other handlers that are not claimed yet? They begin the row anew, so as many conflicts more than the row
allows may be written as handlers are under way.
What if the process stops? It is dropped, and read again by whoever is next.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from ...dlq.breakers import DeadBreakers
from ...inbox.errors import OwnershipLost
from ...inbox.outcome import Dead
from .completion import Completion
from .repeats import REPEAT


@final
class Conflicts:
    """Owned by the event loop. `add` gives an event to the completer, `drop` to whoever owns its partition next."""

    def __init__(
        self,
        breakers: DeadBreakers,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        add: Callable[[Completion], None],
        drop: Callable[[Sequence[Completion]], None],
    ) -> None:
        self._breakers = breakers
        self._spawn = spawn
        self._add = add
        self._drop = drop

    def admitted(self, again: Mapping[Completion, Dead]) -> list[Completion]:
        """Those that may be written now, as what they turned out to be. The others come back by themselves."""
        written: list[Completion] = []
        for found, dead in again.items():
            member = replace(found, landed=found.landed.landed) if isinstance(found.landed, _Tried) else found
            ended = member.as_conflict(dead)
            if ended.fate is REPEAT or not isinstance(ended.fate, Dead):
                written.append(ended)
                continue
            self._breakers.not_fine(member.track)
            if self._breakers.admits_now(member.track):
                written.append(ended)
            else:
                self._spawn(self._wait(member, ended))
        return written

    async def _wait(self, member: Completion, ended: Completion) -> None:
        try:
            admitted = await self._breakers.admits(member.track)
        except OwnershipLost:
            self._drop([member])
            return
        self._add(ended if admitted else replace(member, landed=_Tried(self._breakers, member)))


@final
class _Tried:
    """What lands once an event that was held back is durable: it was claimed this time, which is a good end."""

    __slots__ = ("_breakers", "_track", "landed")

    def __init__(self, breakers: DeadBreakers, member: Completion) -> None:
        self._breakers = breakers
        self._track = member.track
        self.landed = member.landed

    def __call__(self) -> None:
        self._breakers.fine(self._track)
        self.landed()
