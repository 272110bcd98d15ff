"""Makes handled commands durable in groups: claims, outbox rows, failure rows and checkpoints in one commit.

One flush is under way at a time; whatever completes meanwhile is the next group. What if the process stops before the
commit? Nothing of the group happened, its events are read again. After it, but before the engine is told? The events
are read again, and their claims answer. An id that does not come back from the claim was handled before: its records do
not go out. Only errors of the data are bisected, so that one bad row never holds up its neighbours.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import final

from sqlalchemy.ext.asyncio import AsyncConnection

from ...dlq.burial import Buried, letters_of
from ...dlq.failure_text import dead as dead_outcome
from ...dlq.fates import Later
from ...dlq.parked_limits import OVER, Newcomer, ParkedLimits
from ...dlq.reporting import COMMAND, report_skipped
from ...inbox import checkpoint, claim, failure, fence, outbox
from ...inbox.errors import DependencyError, OwnershipLost
from ...inbox.faults import Fault, classify
from ...inbox.holding import Holdings
from ...inbox.lanes import lane_of
from ...inbox.meter import Meter
from ...inbox.moving import Points, behind, judge, raise_checkpoints
from ...inbox.outcome import Reason
from ...inbox.points import Point, Writes, reach
from ...inbox.quick import QuickStore
from ...inbox.store import STORE_ERRORS, Store
from .completion import COMMAND_VERSION, Admitted, Completion, all_of_them
from .dead_groups import DeadGroups
from .failed_rows import FailedRows, Made
from .group import Group, Progress
from .parked_keys import ParkedKeys
from .plain_groups import PlainGroups
from .repeats import CONFLICT, standing
from .spacing import Spacing
from .troubled import Troubled


@final
class Completer:
    """Owned by the event loop. `add` never waits; `run` flushes until it is cancelled."""

    def __init__(
        self,
        store: Store,
        consumer: str,
        holdings: Holdings,
        rows: FailedRows,
        progress: Progress,
        meter: Meter,
        wait_for: Callable[[str], Awaitable[None]],
        parked: ParkedKeys,
        limits: ParkedLimits | None = None,
    ) -> None:
        self._store = store
        self._tables = store.tables
        self._consumer = consumer
        self._holdings = holdings
        self._rows = rows
        self._progress = progress
        self._meter = meter
        self._wait_for = wait_for
        self._parked = parked
        self._limits = limits
        self._admitted: Admitted = all_of_them
        self._may_die: Callable[[str], bool] = lambda _: True
        self._quick_store = QuickStore(store.database)
        self._plain = PlainGroups(store, self._quick_store, consumer, holdings, progress)
        self._dead = DeadGroups(store, self._quick_store, consumer, holdings, rows, progress)
        self._held: list[Completion] = []
        self._quiet = False
        self._waiting: list[Completion] = []
        self._troubled = Troubled()
        self._wake = asyncio.Event()
        self._spacing = Spacing()
        self._lock = asyncio.Lock()

    def assemble(self, admitted: Admitted, may_die: Callable[[str], bool]) -> None:
        """Who says which conflicts may be written now (`Conflicts`), and whether one more letter may (breakers)."""
        self._admitted, self._may_die = admitted, may_die

    def add(self, completion: Completion) -> None:
        """This event came to an end: write it with the next group."""
        self._waiting.append(completion)
        self._wake.set()

    def again(self) -> None:
        """There was a new count of what waits: whoever was beyond a limit is asked about once more."""
        if self._held:
            self._waiting, self._held = self._held + self._waiting, []
            self._wake.set()

    def quiet(self) -> None:
        """The process stops: whoever is beyond a limit is left to the next owner."""
        self._quiet = True
        self.again()

    async def run(self) -> None:
        """Flush for ever."""
        try:
            await self._plain.ready()
            await self._dead.ready()
            await self._run()
        finally:
            await self._quick_store.close()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await self._space()
            self._wake.clear()
            members, self._waiting = self._waiting, []
            others = await self._flush_plain(members)
            if self._troubled.may_wait(others):
                self._troubled.gather(others, self._wake.set)
            elif others := self._troubled.and_these(others):
                await self._flush(await self._flush_dead(others))

    async def _space(self) -> None:
        """Let those come who are about to."""
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._spacing.wait_s(loop.time(), waiting=len(self._waiting), running=self._progress.running())
            if not wait_s:
                break
            await asyncio.sleep(wait_s)
        self._spacing.begin(loop.time())

    async def _flush_plain(self, members: list[Completion]) -> list[Completion]:
        """Write those that went well and send nothing; gives back all that is left to be written."""
        async with self._lock:
            group, left = await self._plain.write(members)
        if group is not None:
            self._tell(group)
        return left

    async def _flush_dead(self, members: list[Completion]) -> list[Completion]:
        """Write those that are dead and hold nobody; gives back all that is left to be written."""
        while True:
            async with self._lock:
                group = await self._dead.write(members)
            if group is None:
                return members
            self._report(group)
            members = _but(members, group)

    async def _flush(self, members: list[Completion]) -> None:
        """Write the group; wait for a database that is away; split a group that holds bad data."""
        while members:
            for member in members:
                if member.fate is not None and (lane := member.lane) is not None:
                    self._parked.decided(lane, member.item.partition)
            try:
                group = await self._write(members)
            except OwnershipLost:
                self.drop(members)
                return
            except DependencyError as error:
                await self._wait_for(error.dependency)
                continue
            except STORE_ERRORS as error:
                fault = classify(error)
                if fault in (Fault.DATA, Fault.PROGRAM):
                    await self._split(members, error)
                    return
                await self._wait_for("postgresql")
                continue
            self._report(group)
            self._hold(group.held)
            for lane in {lane for member in group.over if (lane := member.lane) is not None}:
                self._parked.taken_back(lane)
            members = self._admitted(group.again) + self._dying(group.over)

    def _dying(self, over: list[Completion]) -> list[Completion]:
        """Those beyond a limit whose letters may be written. Whom the breaker holds back waits as under `pause`.

        It is asked behind the commit: a group that is written again must not count its dead twice.
        """
        dying: list[Completion] = []
        for member in over:
            if self._may_die(member.track):
                dying.append(member.ending_as(OVER))
            else:
                self._hold([member])
        return dying

    def _hold(self, members: list[Completion]) -> None:
        """Until the next count; where the process stops, for whoever is next."""
        if self._quiet:
            self.drop(members)
        else:
            self._held += members

    def drop(self, members: Sequence[Completion]) -> None:
        """Somebody else moved our checkpoints: everything is read again by whoever owns it."""
        for partition, epoch in {(member.item.partition, member.item.epoch) for member in members}:
            self._progress.lost(partition, epoch)
        for member in members:
            member.landed()

    async def _split(self, members: list[Completion], error: Exception) -> None:
        if len(members) > 1:
            middle = len(members) // 2
            await self._flush(members[:middle])
            await self._flush(members[middle:])
            return
        only = members[0]
        if only.fate is not None:
            raise error
        dead = dead_outcome(Reason.REJECTED, error, only.item.event.record)
        await self._flush(self._admitted({only: dead}))

    async def _write(self, members: list[Completion]) -> Group:
        async with self._lock, self._store.transaction(Writes.GROUP, members[0].track) as conn:
            group = await self._open(conn, members)
            await self._claim(conn, group)
            await self._close(conn, group)
        return group

    async def raise_to(self, track: str, handler_id: int, points: Points) -> bool:
        """Raise the track's checkpoints to points below which everything is durable. False: not while a group runs."""
        key = (handler_id, COMMAND_VERSION)
        if self._lock.locked():
            return not behind(self._holdings, key, points)
        async with self._lock:
            await raise_checkpoints(self._store, self._consumer, self._holdings, key, points)
        return True

    async def _open(self, conn: AsyncConnection, members: list[Completion]) -> Group:
        """Steps 1, 2 and 3."""
        epochs = {member.item.partition: member.item.epoch for member in members}
        held = await fence.hold(conn, self._tables, self._consumer, self._holdings.fences(epochs))
        group = Group([*members])
        for partition, epoch in epochs.items():
            holding = self._holdings.current(partition, epoch)
            if holding is not None and partition in held:
                group.holdings[partition] = holding
        return group

    async def _claim(self, conn: AsyncConnection, group: Group) -> None:
        """Steps 2 to 7: places of the failed, the lock, the probe, the claims, rows, what goes out."""
        mine = group.ours()
        failed = {
            member: self._rows.make(member, member.fate, group.incarnation(member))
            for member in mine
            if member.fate is not None
        }
        places = await failure.draw_places(conn, self._tables, [made.row for made in failed.values()])
        await self._keep_limits(conn, group, failed)
        claimed = [member for member in mine if member.claimed]
        group.durable += [*failed, *claimed]
        self._sort_claimed(group, claimed)
        open_ones = [member for member in mine if member.fate is None and not member.claimed]
        handler_ids = {member.handler_id for member in (*open_ones, *failed)}
        if not handler_ids:
            return
        generations = await claim.lock_generations(conn, self._tables, handler_ids, self._store.failing)
        outgoing = await self._claim_each(conn, group, open_ones, generations) if open_ones else []
        if failed:
            outgoing += await self._put_failed(conn, group, failed, places, generations)
        if outgoing:
            await outbox.put(conn, self._tables, outgoing)
        group.wrote_outbox = bool(outgoing)

    async def _keep_limits(self, conn: AsyncConnection, group: Group, failed: dict[Completion, Made]) -> None:
        """With the lanes locked: a newcomer beyond a limit gets no row here, whatever its handler declares."""
        waits = [member for member in failed if isinstance(member.fate, Later)]
        if self._limits is None or not waits:
            return
        newcomers = [Newcomer(m.handler_id, None if m.alone else lane_of(failed[m].row)) for m in waits]
        for member, beyond in zip(waits, await self._limits.beyond(conn, self._tables, newcomers), strict=True):
            if beyond is not None:
                del failed[member]
                group.members.remove(member)
                (group.over if beyond == "dead" else group.held).append(member)

    def _sort_claimed(self, group: Group, claimed: list[Completion]) -> None:
        for member in claimed:
            if member.repeat:
                group.duplicates[member.track] += 1
            else:
                group.handled.append(member)

    async def _put_failed(
        self,
        conn: AsyncConnection,
        group: Group,
        failed: Mapping[Completion, Made],
        places: failure.Places,
        generations: claim.Generations,
    ) -> list[outbox.NewOutgoing]:
        """A row for each (and a letter for the dead), unless it repeats what was handled, or what stands there already
        and is linked then.
        """
        keys = [(handler_id, COMMAND_VERSION) for handler_id in sorted({m.handler_id for m in failed})]
        ids = sorted({member.item.event.event_id for member in failed})
        known = await claim.probe(conn, self._tables, keys, ids, generations)
        leaders: dict[tuple[claim.ClaimKey, int], Completion] = {}
        repeats: list[Completion] = []
        for member in failed:
            if known.claims.get(member.claim_key) == member.item.event.payload_hash:
                group.duplicates[member.track] += 1
            elif _original(member, known) is not None or leaders.setdefault(member.known_by, member) is not member:
                repeats.append(member)
        rows = [failed[member] for member in leaders.values()]
        puts = await failure.put(conn, self._tables, [made.row for made in rows], places)
        group.put += [m for m, put in zip(leaders.values(), puts, strict=True) if put.created]
        now = dict(zip(leaders, (put.id for put in puts), strict=True))
        links = [self._link(group, member, _original(member, known) or now[member.known_by]) for member in repeats]
        if links:
            await failure.link(conn, self._tables, links)
        dead = [
            (put, Buried(made.row, made.letter))
            for put, made in zip(puts, rows, strict=True)
            if made.letter is not None
        ]
        return letters_of([put for put, _ in dead], [buried for _, buried in dead])

    def _link(self, group: Group, member: Completion, original: int) -> failure.NewFailure:
        group.duplicates[member.track] += 1
        return self._rows.linked(member, original, group.incarnation(member))

    async def _claim_each(
        self, conn: AsyncConnection, group: Group, members: list[Completion], generations: claim.Generations
    ) -> list[outbox.NewOutgoing]:
        by_handler: defaultdict[int, list[Completion]] = defaultdict(list)
        for member in members:
            by_handler[member.handler_id].append(member)
        keys = [(handler_id, COMMAND_VERSION) for handler_id in sorted(by_handler)]
        ids = sorted({member.item.event.event_id for member in members})
        known = await claim.probe(conn, self._tables, keys, ids, generations, newest=False)
        outgoing: list[outbox.NewOutgoing] = []
        for handler_id in sorted(by_handler):
            admitted = await self._claim_for(conn, group, handler_id, by_handler[handler_id], known)
            for member in admitted:
                if member.outgoing:
                    outgoing += member.outgoing
        return outgoing

    async def _claim_for(
        self, conn: AsyncConnection, group: Group, handler_id: int, members: list[Completion], known: claim.Probe
    ) -> list[Completion]:
        """Claims of one handler. Gives back those whose records may go out."""
        fresh: dict[bytes, int] = {}
        for member in members:
            event = member.item.event
            if known.failures and (found := known.failures.get(member.claim_key)) is not None:
                group.again[member] = standing(event.payload_hash, found)
            else:
                fresh.setdefault(event.event_id, event.payload_hash)
        rows = sorted(fresh.items())
        claimed = await claim.claim(conn, self._tables, handler_id, COMMAND_VERSION, rows, optimistic=False)
        reach(Point.CLAIMED, members[0].track)
        if claimed.new is None and len(fresh) == len(members):
            group.durable += members
            group.handled += members
            return members
        ours = set(fresh if claimed.new is None else claimed.new)
        hashes = {**fresh, **claimed.taken}
        return [member for member in members if member not in group.again and _is_ours(group, member, ours, hashes)]

    async def _close(self, conn: AsyncConnection, group: Group) -> None:
        """Step 8: the checkpoints of the lane tracks, below the lowest incomplete event."""
        group.settle()
        group.plan_moves(self._progress)
        judge(await checkpoint.move(conn, self._tables, group.moves), len(group.moves))

    def _report(self, group: Group) -> None:
        """The commit was answered: tell the engine, remember the checkpoints, trust look-ups again."""
        if lanes := [lane for m in group.durable if m.fate is not None and (lane := m.lane) is not None]:
            self._parked.committed(lanes)
            self._progress.queued()
        if group.wrote_outbox or any(member.claimed for member in group.members):
            self._progress.wrote_outbox(group.new_letters)
        held = {(partition, holding.epoch) for partition, holding in group.holdings.items()}
        for partition, epoch in {member.item[:2] for member in group.members} - held:
            self._progress.lost(partition, epoch)
        self._tell(group)

    def _tell(self, group: Group) -> None:
        group.moved()
        self._progress.finished(group.finished())
        self._count(group)
        for member in group.members:
            if member not in group.again:
                member.landed()

    def _count(self, group: Group) -> None:
        runs: defaultdict[str, list[float]] = defaultdict(list)
        skipped: defaultdict[str, int] = defaultdict(int)
        for member in group.handled:
            if member.skipped is not None:
                skipped[member.track] += 1
                if member.skipped:
                    report_skipped(member.item.event, member.track, COMMAND, member.skipped, member.attempts)
            else:
                runs[member.track].append(member.seconds)
        for track, seconds in runs.items():
            self._meter.handled_each(track, seconds)
        for track, n in skipped.items():
            self._meter.skipped(track, n)
        for member in group.put:
            self._rows.tell(member)
        if self._limits is not None:
            self._limits.added(member.handler_id for member in group.put if isinstance(member.fate, Later))
        for track, n in group.duplicates.items():
            self._meter.duplicates(track, n)


def _but(members: list[Completion], group: Group) -> list[Completion]:
    """Those that are not in the group."""
    if len(group.members) == len(members):
        return []
    written = set(group.members)
    return [member for member in members if member not in written]


def _is_ours(group: Group, member: Completion, ours: set[bytes], hashes: Mapping[bytes, int]) -> bool:
    """Whether the claim is this member's; what it is if not."""
    event_id, payload_hash = member.item.event.event_id, member.item.event.payload_hash
    if hashes.get(event_id, payload_hash) != payload_hash:
        group.again[member] = CONFLICT
        return False
    group.durable.append(member)
    if event_id not in ours:
        group.duplicates[member.track] += 1
        return False
    ours.discard(event_id)
    group.handled.append(member)
    return True


def _original(member: Completion, known: claim.Probe) -> int | None:
    """The failure row that a dead event is a repeat of; None where there is none but its own."""
    event = member.item.event
    found = known.failures.get(member.claim_key, ())
    if any((row.partition, row.offset) == (member.item.partition, member.item.offset) for row in found):
        return None
    same = [row for row in found if row.payload_hash == event.payload_hash]
    return (same[0].duplicate_of or same[0].failure_id) if same else None
