"""What an attempt at a command that came back amounts to; its transaction is committed with the claim, or undone.

What if the process stops before the commit? Claim, outbox rows and what the handler wrote are gone together. After it?
The claim answers when the event is read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.fates import REVIEW, ForReview
from ...dlq.guard import HandlerRaised, Raised, Returned
from ...dlq.outcomes import outcome_of
from ...inbox import claim, outbox
from ...inbox.claim import ClaimKey, FailureFound
from ...inbox.errors import RetryLater
from ...inbox.failure_rows import Verdict
from ...inbox.outcome import Dead, Reason, Retry, Skipped, Unknown
from ...inbox.points import Point, reach
from ...inbox.store import Store
from .attempt import Attempt
from .completion import COMMAND_VERSION, Fate, conflict_fate
from .handling import NothingToDo
from .repeats import CONFLICT, standing
from .transaction import LazyTx

ENDED_ITSELF: Final = Dead(
    Reason.REJECTED, "the handler ended the transaction of ctx.tx itself: leave commit and rollback to the framework"
)

Finish = Callable[[AsyncConnection], Awaitable[None]]
"""Ends a row of the slow way in the transaction that claims its event."""


class Ended(NamedTuple):
    """How the attempts ended. `claimed`: the claim is durable; as a `repeat` it is another transaction's.

    `skipped` says why there was nothing to do: `NOTHING` where the trigger made nothing of it, which is not logged.
    """

    outgoing: tuple[outbox.NewOutgoing, ...] = ()
    fate: Fate | None = None
    claimed: bool = False
    repeat: bool = False
    skipped: str | None = None


SUCCESS: Final = Ended()

NOTHING: Final = ""


@final
class Conclusion:
    """Owned by the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def conclude(self, attempt: Attempt, outcome: Returned[object] | Raised, finish: Finish | None) -> Ended:
        """What an attempt that came back amounts to; its transaction is committed with the claim, or undone."""
        tx = attempt.opened
        for ending in attempt.on_their_way:
            await ending
        if tx is None:  # nobody asked for it, and nobody gets it any more
            return _meant(attempt, outcome)
        if isinstance(outcome, Raised) and outcome.alive:
            await tx.give_up()
        await tx.seal()
        try:
            meant = _meant(attempt, outcome)
        except HandlerRaised as raised:
            await tx.close(raised)
            raise
        if meant.fate is not None:
            if tx.opened is not None:
                await tx.opened.rollback()
            await tx.close()
            return meant
        if tx.opened is None:
            return meant
        if tx.ended_by_handler:
            await tx.opened.rollback()
            await tx.close()
            return Ended(fate=ENDED_ITSELF)
        try:
            ended = await self._complete_in(tx, attempt, meant, finish)
        except BaseException as error:
            await tx.close(error)
            raise
        await tx.close()
        return ended

    async def _complete_in(self, tx: LazyTx, attempt: Attempt, ended: Ended, finish: Finish | None) -> Ended:
        """Claim and outbox rows in the handler's transaction (steps 3, 4, 6, 7); a repeat undoes what it wrote.

        What stands in the failure table under the same id makes an event of the fast way wait for that. A row of the
        slow way is one of these itself: what is linked to it ends with it, and among others the claim decides.
        """
        conn, tables, bound, event = tx.opened, self._store.tables, attempt.bound, attempt.event
        assert conn is not None, "the handler opened it"
        key = (bound.handler_id, COMMAND_VERSION)
        failing: Sequence[FailureFound] = ()
        if finish is None:
            generations = await claim.lock_generations(conn, tables, [bound.handler_id], self._store.failing)
            known = await claim.probe(conn, tables, [key], [event.event_id], generations, newest=False)
            failing = known.failures.get(ClaimKey(*key, event.event_id), ())
        else:
            await claim.lock_generations(conn, tables)
        mine = [(event.event_id, event.payload_hash)]
        claimed = await claim.claim(conn, tables, *key, mine, optimistic=False)
        if failing or (claimed.new is not None and event.event_id not in claimed.new):
            await conn.rollback()
            if failing:
                return Ended(fate=standing(event.payload_hash, failing))
            if claimed.taken.get(event.event_id, event.payload_hash) != event.payload_hash:
                return Ended(fate=conflict_fate(CONFLICT, bound.command.policy, attempt.number))
            return Ended(claimed=True, repeat=True)
        reach(Point.CLAIMED, bound.command.name)
        if finish is not None:
            await finish(conn)
        await outbox.put(conn, tables, list(ended.outgoing))
        await tx.commit(bound.command.name)
        return ended._replace(claimed=True)


def _meant(attempt: Attempt, outcome: Returned[object] | Raised) -> Ended:
    """What the handler said, or raised, apart from its transaction. Raises HandlerRaised."""
    if isinstance(outcome, Raised):
        raise HandlerRaised(outcome.error)
    nothing = isinstance(outcome.value, NothingToDo)
    returned = outcome_of(None if nothing else outcome.value, attempt.event.record)
    if isinstance(returned, Retry):
        raise HandlerRaised(RetryLater(returned.why, after_s=returned.after_s))
    if isinstance(returned, Dead):
        return Ended(fate=returned)
    if isinstance(returned, Unknown):
        return Ended(fate=ForReview(Verdict(REVIEW, returned.why), attempt.number))
    if isinstance(returned, Skipped):
        return Ended(attempt.outgoing, skipped=returned.why or Skipped().why)
    return Ended(attempt.outgoing, skipped=NOTHING if nothing else None)
