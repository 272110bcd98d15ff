"""The steps of the one lock order, as a batch of projections takes them: fence, lanes, lock and probe, claims, rows,
what goes out, checkpoints.

`open` takes 1 to 3, `admit` 4, the caller runs the user's function (5), `close` takes 6 to 8. Which keys are parked is
read before anything is claimed. What if one is parked between that look and the commit? Only this handler parks its
keys: in this partition it does so one batch at a time, and an event that another partition has of the same key (there
were fewer partitions once) is then as if this batch had come first. What if one is released in between? Then its new
row is a queue of one. Rows get their places in the lane before the probe; one that turns out to be a repeat leaves its
place empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, final

from sqlalchemy.ext.asyncio import AsyncConnection

from ..dlq.burial import Buried, letters_of
from ..dlq.parked_limits import Newcomer, ParkedLimits
from ..inbox import checkpoint, claim, failure, fence, lanes, outbox
from ..inbox.clock import Clock
from ..inbox.errors import DependencyError
from ..inbox.event import Event, Partition
from ..inbox.holding import Holdings
from ..inbox.identity import key_hash16
from ..inbox.meter import Meter
from ..inbox.moving import judge
from ..inbox.points import Point, reach
from ..inbox.store import Store
from ..inbox.tables import Tables
from .attempt import Attempt, Share
from .batch import BoundProjection
from .fates import BEHIND, NO_VERDICTS, TOO_MANY, Fate, Lane, Later, Verdicts, in_order, is_conflict
from .rows import Rows
from .verdicts import Admitted, admit, in_batch_order

LIMIT: Final = "parked_limit"
"""With the handler's name behind it: what its batches wait for where too many of its events wait already."""


Mover = Callable[[AsyncConnection, Tables, Sequence[checkpoint.Move]], Awaitable[list[checkpoint.Mismatch]]]
"""Lock order 8: moves the batch's checkpoints, and gives back those that stood elsewhere."""


class TooManyWait(Exception):
    """There is no room in the queue for these events, and they are dead then: their letters must be admitted first."""

    def __init__(self, bound: BoundProjection, events: Sequence[Event[Any]]) -> None:
        self.bound = bound
        self.events = tuple(events)
        super().__init__()


@final
class Steps:
    """For the projections of one stream track. Owned by the event loop."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        holdings: Holdings,
        rows: Rows,
        meter: Meter,
        clock: Clock,
        wrote_outbox: Callable[[], None],
        limits: ParkedLimits | None = None,
        move: Mover = checkpoint.move,
    ) -> None:
        self._tables = store.tables
        self._failing = store.failing
        self._consumer = consumer
        self._holdings = holdings
        self._rows = rows
        self._meter = meter
        self._clock = clock
        self._wrote_outbox = wrote_outbox
        self._limits = limits
        self._move = move
        self._optimistic = True

    # -------------------------------------------------------------------------------------------------------- 1 to 3

    async def open(
        self,
        conn: AsyncConnection,
        attempt: Attempt,
        projections: Sequence[BoundProjection],
        verdicts: Verdicts = NO_VERDICTS,
    ) -> None:
        """Who may write and what that leaves, the lanes of what fails or waits, and what is known of all that."""
        await self._hold(conn, attempt, projections)
        for bound in projections:
            events = attempt.batch.events_of(bound, attempt.holdings)
            attempt.shares[bound.key] = Share(events, verdicts, verdicts.fates)
        await self._line_up(conn, attempt, projections)
        await self._probe(conn, attempt, projections)

    async def _hold(self, conn: AsyncConnection, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Step 1."""
        fences = self._holdings.fences(attempt.batch.partitions)
        held = await fence.hold(conn, self._tables, self._consumer, fences)
        attempt.holdings = {
            partition: holding
            for partition, epoch in attempt.batch.partitions.items()
            if partition in held and (holding := self._holdings.current(partition, epoch)) is not None
        }
        attempt.lost = frozenset(attempt.batch.partitions) - frozenset(attempt.holdings)

    async def _line_up(self, conn: AsyncConnection, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Step 2: whose key is parked waits; rows of what fails or waits get their places."""
        blocking = [bound for bound in projections if bound.projection.policy.on_failure == "block"]
        parked = await self._parked(conn, attempt, blocking)
        now = self._clock.now()
        rows: list[failure.NewFailure] = []
        for bound in projections:
            share = attempt.share(bound)
            policy, its_parked = bound.projection.policy, parked.get(bound.handler_id, set[Lane]())
            share.fates = in_order(share.events, share.verdicts.fates, its_parked, policy, now)
            if share.fates:
                for event in share.events:
                    if (fate := share.fates.get(id(event))) is not None:
                        made = self._rows.make(bound, event, fate, attempt.incarnation(event))
                        share.made[id(event)] = made
                        rows.append(made.row)
        if rows:
            attempt.places = await failure.draw_places(conn, self._tables, rows)
            await self._limit(conn, attempt, projections)

    async def _limit(self, conn: AsyncConnection, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Where too many wait already, a newcomer to the queue is dead, or the whole batch waits, as is declared.

        Raises TooManyWait for those that would be dead, and DependencyError for a batch that waits.
        """
        queued = [
            (bound, event)
            for bound in projections
            for event in attempt.share(bound).events
            if isinstance(attempt.share(bound).fates.get(id(event)), Later)
        ]
        if self._limits is None or not queued:
            return
        newcomers = [_newcomer(attempt.share(bound).made[id(event)].row) for bound, event in queued]
        answers = await self._limits.beyond(conn, self._tables, newcomers)
        found: list[tuple[BoundProjection, Event[Any]]] = []
        for (bound, event), answer in zip(queued, answers, strict=True):
            share = attempt.share(bound)
            if answer == "pause":
                raise no_room(bound)
            if answer == "dead" and share.verdicts.fates.get(id(event)) != TOO_MANY:
                found.append((bound, event))
            elif answer == "dead":
                share.fates = {**share.fates, id(event): TOO_MANY}
                share.made[id(event)] = self._rows.make(bound, event, TOO_MANY, attempt.incarnation(event))
        if found:
            first = found[0][0]
            raise TooManyWait(first, [event for bound, event in found if bound is first])

    async def _parked(
        self, conn: AsyncConnection, attempt: Attempt, blocking: Sequence[BoundProjection]
    ) -> Mapping[int, set[Lane]]:
        """Handler id -> its parked lanes among those of the batch."""
        parked: dict[int, set[Lane]] = {bound.handler_id: set() for bound in blocking}
        told: lanes.Told = await lanes.tell(conn, self._tables, parked) if parked else {}
        if not told:
            return parked
        asked = {
            (bound.handler_id, topic, key_hash16(key)): (topic, key)
            for bound in blocking
            if bound.handler_id in told
            for topic, key in {(event.topic, event.record.key) for event in attempt.share(bound).events}
            if key is not None
        }
        for lane in await lanes.parked(conn, self._tables, asked, told):
            parked[lane[0]].add(asked[lane])
        return parked

    async def _probe(self, conn: AsyncConnection, attempt: Attempt, projections: Sequence[BoundProjection]) -> None:
        """Step 3: what stands in the failure table already, and of those that only wait also what was handled."""
        handler_ids = [bound.handler_id for bound in projections]
        generations = await claim.lock_generations(conn, self._tables, handler_ids, self._failing)
        if generations.failing:
            ids = {event.event_id for share in attempt.shares.values() for event in share.events}
            keys = [bound.key for bound in projections]
            attempt.known = await claim.probe(conn, self._tables, keys, sorted(ids), generations, newest=False)
        for bound in projections:
            share = attempt.share(bound)
            waiting = {event.event_id for event in share.events if _waits(share.fates.get(id(event)))}
            if waiting:
                found = await claim.probe(conn, self._tables, [bound.key], sorted(waiting), generations)
                attempt.known = claim.Probe(
                    {**attempt.known.claims, **found.claims}, {**attempt.known.failures, **found.failures}
                )

    # ------------------------------------------------------------------------------------------------------------- 4

    async def admit(self, conn: AsyncConnection, attempt: Attempt, bound: BoundProjection) -> Admitted:
        """What is ours to apply, claimed."""
        share = attempt.share(bound)
        admitted = admit(share.events, attempt.known, bound.key, share.fates)
        rows = sorted([(event.event_id, event.payload_hash) for event in admitted.fresh])
        if rows:
            claimed = await claim.claim(conn, self._tables, *bound.key, rows, optimistic=self._optimistic)
            self._optimistic = claimed.new is None  # repeats come in runs: ask for each id until a batch has none
            if claimed.new is not None:
                admitted.sort_out(claimed.new, claimed.taken)
        admitted.judge_rest()
        reach(Point.CLAIMED, bound.name)
        return admitted

    # -------------------------------------------------------------------------------------------------------- 6 to 8

    async def close(self, conn: AsyncConnection, attempt: Attempt) -> None:
        """Failure rows, repeats of what stands there, records to go out, checkpoints."""
        await self._put(conn, attempt)
        await self._link(conn, attempt)
        attempt.outgoing += [record for result in attempt.results for record in result.projected.outgoing]
        await outbox.put(conn, self._tables, attempt.outgoing)
        attempt.moves = [
            move for result in attempt.results for move in attempt.batch.moves(result.bound, attempt.holdings)
        ]
        judge(await self._move(conn, self._tables, attempt.moves), len(attempt.moves))

    async def _put(self, conn: AsyncConnection, attempt: Attempt) -> None:
        aside = [
            (result.bound, event)
            for result in attempt.results
            if result.admitted.aside
            for event in in_batch_order(attempt.share(result.bound).events, result.admitted.aside)
        ]
        if not aside:
            return
        made = [attempt.share(bound).made[id(event)] for bound, event in aside]
        puts = await failure.put(conn, self._tables, [one.row for one in made], attempt.places)
        for (bound, event), put in zip(aside, puts, strict=True):
            fate = attempt.share(bound).fates[id(event)]
            if not is_conflict(fate):
                attempt.put[(bound.key, event.event_id)] = put.id
            if put.created:
                attempt.told.append((bound.name, event, fate))
        dead = [(put, Buried(one.row, one.letter)) for put, one in zip(puts, made, strict=True) if one.letter]
        attempt.outgoing += letters_of([put for put, _ in dead], [buried for _, buried in dead])

    async def _link(self, conn: AsyncConnection, attempt: Attempt) -> None:
        """A repeat of what stands in the failure table is linked to it: visible, not run, ending with it."""
        rows = [
            linked
            for result in attempt.results
            for event in result.admitted.duplicates
            if (linked := self._linked(attempt, result.bound, event)) is not None
        ]
        if rows:
            await failure.link(conn, self._tables, rows)

    def _linked(self, attempt: Attempt, bound: BoundProjection, event: Event[Any]) -> failure.NewFailure | None:
        original = attempt.put.get((bound.key, event.event_id))
        if original is None:
            found = attempt.known.failures.get(claim.ClaimKey(*bound.key, event.event_id), ())
            same = [row for row in found if row.payload_hash == event.payload_hash]
            if not same or any(_is_at(row, event) for row in found):
                return None
            original = same[0].duplicate_of or same[0].failure_id
        return self._rows.linked(bound, event, original, attempt.incarnation(event))

    # -------------------------------------------------------------------------------------------- after the commit

    def confirm(self, attempt: Attempt) -> None:
        """The commit was answered: from here on the checkpoints are what we remember."""
        for move in attempt.moves:
            holding = attempt.holdings[Partition(move.topic, move.partition)]
            holding.checkpoints[(move.handler_id, move.version)] = move.new
        if attempt.outgoing:
            self._wrote_outbox()
        for result in attempt.results:
            name, skipped = result.bound.name, attempt.share(result.bound).verdicts.skipped
            left_out = [event for event in result.admitted.fresh if id(event) in skipped] if skipped else []
            self._meter.handled(name, len(result.admitted.fresh) - len(left_out), result.seconds)
            if result.projected.stale:
                self._meter.stale(name, result.projected.stale)
            if result.admitted.duplicates:
                self._meter.duplicates(name, len(result.admitted.duplicates))
            for event in left_out:
                self._rows.tell_skipped(name, event, skipped[id(event)])
        for name, event, fate in attempt.told:
            self._rows.tell(name, event, fate)
        if self._limits is not None and attempt.told:
            ids = {result.bound.name: result.bound.handler_id for result in attempt.results}
            self._limits.added(ids[name] for name, _, fate in attempt.told if isinstance(fate, Later))


def no_room(bound: BoundProjection) -> DependencyError:
    """What a batch waits for where too many events of its projection wait already."""
    return DependencyError(f"{LIMIT}:{bound.name}", "too many of its events wait already")


def _waits(fate: Fate | None) -> bool:
    return isinstance(fate, Later) and fate.verdict == BEHIND


def _newcomer(row: failure.NewFailure) -> Newcomer:
    return Newcomer(row.handler, None if row.alone else lanes.lane_of(row))


def _is_at(row: claim.FailureFound, event: Event[Any]) -> bool:
    return (*row.partition, row.offset) == (event.topic, event.partition, event.offset)
