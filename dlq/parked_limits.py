"""How many events may wait in the failure table: of one key, and of one handler.

Long before the handler's limit reading pauses (`pressure`). What is in memory by then may still come up to a limit: at
it a newcomer is dead (`skipped_limit`) or is not written at all, as the handler declares. Not written, it stays in
memory, incomplete, and is asked about again after the next count. An event that waits for a person always gets its row:
it is the only evidence there is.

The counts of handlers are seconds old, and what this process added since is on top of them, so reading pauses with
the event that is one too many here. It is added behind its commit: a transaction that is undone, and comes again, must
not use the room twice. What other processes added since is not: a handler's limit may be passed by as much as they add
in these seconds, for counting would cost each group a look at every parked key. That of a key is read under the lock of
its lane, so the limit of a key is exact; it is read only where the handler has that many rows at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox import lanes
from ..inbox.lanes import LaneKey
from ..inbox.outcome import Dead, Reason
from ..inbox.tables import Tables
from .policy import AtLimit, FailurePolicy
from .pressure import Pressure

OVER: Final = Dead(
    Reason.SKIPPED_LIMIT, "too many events wait already: of this key (key_parked_max) or of this handler (parked_max)"
)

log = structlog.get_logger(__name__)


class Newcomer(NamedTuple):
    """An event that is about to get a queued row. `lane` is None where it stands in none."""

    handler_id: int
    lane: LaneKey | None


@final
class ParkedLimits:
    """Owned by the event loop. `away` and `back` pause reading and let it go on, under the name that is given."""

    def __init__(
        self,
        policies: Mapping[int, tuple[str, FailurePolicy]],
        away: Callable[[str], None],
        back: Callable[[str], None],
    ) -> None:
        self._policies = policies
        self._pressures = {handler_id: Pressure(policy) for handler_id, (_, policy) in policies.items()}
        self._waiting: Mapping[int, int] = {}
        self._added: Counter[int] = Counter()
        self._now_s = 0.0
        """When it was counted last: patience is measured between counts."""
        self._away = away
        self._back = back

    async def look(self, conn: AsyncConnection, t: Tables, now_s: float) -> Mapping[str, int]:
        """Count what waits, every few seconds: by handler's name. Presses or lets go."""
        self._added.clear()  # before the count: what is added while it is made is counted twice, never not at all
        self._waiting = await lanes.waiting(conn, t, self._policies)
        self._now_s = now_s
        for handler_id in self._policies:
            self._press(handler_id)
        return {name: self._waiting.get(handler_id, 0) for handler_id, (name, _) in self._policies.items()}

    async def beyond(self, conn: AsyncConnection, t: Tables, newcomers: Sequence[Newcomer]) -> list[AtLimit | None]:
        """Behind lock order 2, the newcomers' lanes locked: what its limit makes of each, None where there is room."""
        tight = [newcomer for newcomer in newcomers if self._is_tight(newcomer.handler_id, len(newcomers))]
        asked = {newcomer.lane for newcomer in tight if newcomer.lane is not None}
        waiting = Counter(await lanes.waiting_in(conn, t, asked)) if asked else Counter[LaneKey]()
        more: Counter[int] = Counter()
        answers: list[AtLimit | None] = []
        for newcomer in newcomers:
            _, policy = self._policies[newcomer.handler_id]
            over = self.estimate(newcomer.handler_id) + more[newcomer.handler_id] >= policy.parked_max
            if newcomer.lane is not None:
                over = over or waiting[newcomer.lane] >= policy.key_parked_max
                waiting[newcomer.lane] += not over
            more[newcomer.handler_id] += not over
            answers.append(policy.at_limit if over else None)
        return answers

    def added(self, handler_ids: Iterable[int]) -> None:
        """The rows of these newcomers are durable, one for each: this need not wait for the next count."""
        more = Counter(handler_ids)
        self._added.update(more)
        for handler_id in more:
            self._press(handler_id)

    def estimate(self, handler_id: int) -> int:
        """How many events of the handler wait, as far as this process can know without asking."""
        return self._waiting.get(handler_id, 0) + self._added[handler_id]

    def _is_tight(self, handler_id: int, more: int) -> bool:
        """Whether some key of the handler may be at its limit: none has more rows than the handler has."""
        _, policy = self._policies[handler_id]
        return self.estimate(handler_id) + more > policy.key_parked_max

    def _press(self, handler_id: int) -> None:
        (name, policy), pressure = self._policies[handler_id], self._pressures[handler_id]
        before, waiting = pressure.pressed, self.estimate(handler_id)
        if pressure.counted(waiting, self._now_s) is before:
            return
        if pressure.pressed:
            log.error(
                "too_many_parked", handler=name, waiting=waiting, limit=policy.parked_max, at_limit=policy.at_limit
            )
            self._away(dependency_of(name))
        else:
            log.warning("parked_again_within_limits", handler=name, waiting=waiting, limit=policy.parked_max)
            self._back(dependency_of(name))


def dependency_of(handler: str) -> str:
    """The name under which health shows that too many events of a handler wait."""
    return f"parked:{handler}"
