"""Laws of the engine: on single parts, and on the whole of it in a world that does anything at any time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.engine_desk import LANES, P0, P1, STREAM, Desk, of, part
from tests.support.engine_world import LANES as LANE_TRACKS
from tests.support.engine_world import PARTITIONS, World
from tidegate.consumers.engine.commit_point import CommitPoint
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.engine.signals import Commit, LaneTrack, Lost, Pause, Reached, Resume
from tidegate.consumers.engine.slices import behind, split
from tidegate.inbox.event import Partition

LAWS = settings(max_examples=150, deadline=None)
ascending = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


@LAWS
@given(offsets=ascending, data=st.data())
def test_the_point_never_passes_an_incomplete_offset_and_never_falls(offsets: list[int], data: st.DataObject) -> None:
    point = CommitPoint(0)
    point.deliver(offsets)
    position = offsets[-1] + data.draw(st.integers(1, 5))
    left = set(offsets)
    points = [point.at(position)]
    for offset in data.draw(st.permutations(offsets)):
        prospect = point.after([offset], position)
        point.finish([offset])
        left.remove(offset)
        points.append(point.at(position))
        assert points[-1] == prospect == min(left, default=position)
    assert all(before <= after for before, after in pairwise(points))


@LAWS
@given(offsets=ascending, data=st.data())
def test_any_order_of_completions_ends_in_the_same_commit(offsets: list[int], data: st.DataObject) -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, offsets))
    applied_after = data.draw(st.integers(0, len(offsets)))
    for turn, offset in enumerate(data.draw(st.permutations(offsets))):
        if turn == applied_after:
            desk.applied(1)
        desk.finished(P0, offset)
    desk.applied(1)
    assert desk.committed(P0) == offsets[-1] + 1
    assert desk.engine.window() == (0, 0)


@LAWS
@given(offsets=ascending, end=st.integers(0, 30))
def test_gaps_never_block(offsets: list[int], end: int) -> None:
    """The client's position is committed once all that was delivered is done, wherever the gaps are."""
    desk = Desk(STREAM, LANES)
    desk.live(P0)
    desk.deliver(part(P0, offsets))
    desk.tell(Reached(P0, 1, offsets[-1] + 1 + end))
    desk.applied(1)
    desk.finished(P0, *offsets)
    assert desk.committed(P0) == offsets[-1] + 1 + end


@LAWS
@given(keys=st.lists(st.sampled_from([b"a", b"b", b"", None]), min_size=1, max_size=25), data=st.data())
def test_order_within_a_key_holds_whatever_finishes_first(keys: list[bytes | None], data: st.DataObject) -> None:
    desk = Desk(LANES)
    desk.live(P0)
    desk.deliver(part(P0, range(len(keys)), keys={o: key for o, key in enumerate(keys) if key is not None}))
    running = desk.started()
    while running:
        offset = data.draw(st.sampled_from(running))
        running.remove(offset)
        running += desk.started(desk.finished(P0, offset))
    started = desk.started()
    assert sorted(started) == list(range(len(keys)))
    for key in {key for key in keys if key is not None}:
        of_key = [offset for offset in started if keys[offset] == key]
        assert of_key == sorted(of_key)


@LAWS
@given(data=st.data(), polls=st.lists(st.integers(1, 6), min_size=1, max_size=40))
def test_the_window_never_holds_more_than_its_maximum_and_one_poll(data: st.DataObject, polls: list[int]) -> None:
    """A client that honours pauses; pauses and resumes alternate, and nothing resumes above the low mark."""
    desk = Desk(LANES, policy=EnginePolicy(window_records_max=12, window_records_low=6))
    desk.live(P0, P1)
    position, running, paused = 0, list[int](), False
    for poll in polls:
        if not paused:
            actions = desk.deliver(part(P0, range(position, position + poll)))
            position += poll
        else:
            finished = data.draw(st.lists(st.sampled_from(running), min_size=1, unique=True))
            running = [offset for offset in running if offset not in finished]
            actions = desk.finished(P0, *finished)
        running += desk.started(actions)
        assert desk.engine.window()[0] <= 12 + 6
        for change in [*of(actions, Pause), *of(actions, Resume)]:
            assert isinstance(change, Resume) == paused
            assert (desk.engine.window()[0] <= 6) == isinstance(change, Resume)
            paused = isinstance(change, Pause)
        assert paused == desk.engine.progress()[P0].paused == desk.engine.progress()[P1].paused


@LAWS
@given(offsets=ascending, late=st.lists(st.integers(0, 60), max_size=10))
def test_results_of_a_lost_epoch_change_nothing(offsets: list[int], late: list[int]) -> None:
    desk = Desk(STREAM, LANES)
    desk.live(P0, epoch=1)
    desk.deliver(part(P0, offsets))
    desk.tell(Lost({P0: 1}))
    desk.live(P0, epoch=2)
    before = desk.engine.progress()
    assert [*desk.applied(1), *desk.finished(P0, *offsets, *late), *desk.deliver(part(P0, offsets))] == []
    assert desk.engine.progress() == before


@LAWS
@given(offsets=ascending, count=st.integers(1, 20), cut=st.integers(0, 70))
def test_slices_are_cut_without_loss(offsets: list[int], count: int, cut: int) -> None:
    whole = part(P0, offsets, lanes={LANES.name: tuple(range(0, len(offsets), 2))})
    rest = behind(whole, cut)
    assert [each.offset for each in rest.events] == [offset for offset in offsets if offset >= cut]
    assert [rest.events[index].offset for index in rest.lanes[LANES.name]] == [o for o in offsets[::2] if o >= cut]
    if count < len(offsets):
        head, tail = split(whole, count)
        assert head.events + tail.events == whole.events
        assert head.events[-1].offset < head.next_offset <= tail.events[0].offset
        assert tail.next_offset == whole.next_offset
        assert head.size_bytes + tail.size_bytes == whole.size_bytes


@LAWS
@given(moves=st.lists(st.tuples(st.floats(0, 1.5), st.integers(0, 3)), min_size=1, max_size=20))
def test_commits_are_an_interval_apart_and_each_says_something_new(moves: list[tuple[float, int]]) -> None:
    desk = Desk(policy=EnginePolicy(commit_interval_s=1.0))
    said: list[tuple[float, int]] = []
    desk.live(P0)
    position = 0
    for seconds, step in moves:
        position += step
        actions = [*desk.after(seconds), *desk.tell(Reached(P0, 1, position))]
        said += [(desk.now_s, commit.offsets[P0][1]) for commit in of(actions, Commit)]
    assert all(late - early >= 1.0 for (early, _), (late, _) in pairwise(said))
    assert all(low < high for (_, low), (_, high) in pairwise(said))


class EngineInTheWorld(RuleBasedStateMachine):
    """Anything may happen at any time; `World` checks each action, and at the end nothing may be left over."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.assign(PARTITIONS[:2])
        self.ready(0)

    def ready(self, back: int) -> None:
        for partition in list(self.world.taking):
            self.world.ready(partition, back)

    @rule(partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def assign(self, partitions: set[Partition]) -> None:
        self.world.assign(sorted(partitions))

    @precondition(lambda self: self.world.taking)
    @rule(back=st.integers(0, 3))
    def takeovers_succeed(self, back: int) -> None:
        self.ready(back)

    @precondition(lambda self: self.world.taking or self.world.lives)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        self.world.refuse(data.draw(st.sampled_from(sorted({*self.world.taking, *self.world.lives}))))

    @precondition(lambda self: self.world.lives)
    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        self.world.fence(data.draw(st.sampled_from(sorted(self.world.lives))))

    @precondition(lambda self: self.world.owned() or self.world.given_up)
    @rule(data=st.data(), budget_s=st.sampled_from([0.0, 0.5, 5.0]))
    def revoke(self, data: st.DataObject, budget_s: float) -> None:
        theirs = sorted({*self.world.owned(), *self.world.given_up})
        self.world.revoke(data.draw(st.lists(st.sampled_from(theirs), min_size=1, unique=True)), budget_s)

    @precondition(lambda self: self.world.owned())
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        theirs = sorted({*self.world.owned(), *self.world.lives})
        self.world.lose(data.draw(st.lists(st.sampled_from(theirs), min_size=1, unique=True)))

    @precondition(lambda self: self.world.unpaused())
    @rule(count=st.integers(0, 6))
    def deliver(self, count: int) -> None:
        self.world.deliver({life.partition: count for life in self.world.unpaused()})

    @precondition(lambda self: self.world.lives)
    @rule(data=st.data(), stale=st.booleans())
    def deliver_late(self, data: st.DataObject, stale: bool) -> None:
        """A poll that was under way when its partition was paused or revoked, or that is of an older epoch."""
        self.world.deliver({data.draw(st.sampled_from(sorted(self.world.lives))): 2}, stale)

    @precondition(lambda self: self.world.lives)
    @rule(data=st.data(), gap=st.integers(0, 3))
    def reach(self, data: st.DataObject, gap: int) -> None:
        self.world.reach(data.draw(st.sampled_from(sorted(self.world.lives))), gap)

    @precondition(lambda self: self.world.batches)
    @rule(data=st.data(), lost=st.booleans())
    def apply(self, data: st.DataObject, lost: bool) -> None:
        track = data.draw(st.sampled_from(sorted(self.world.batches)))
        gone = data.draw(st.frozensets(st.sampled_from(PARTITIONS))) if lost else frozenset[Partition]()
        self.world.apply(track, gone)

    @rule(track=st.sampled_from(LANE_TRACKS), count=st.integers(1, 3))
    def come_back(self, track: LaneTrack, count: int) -> None:
        self.world.come_back(track.name, count)

    @precondition(lambda self: self.world.flights)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        indexes = st.lists(st.integers(0, len(self.world.flights) - 1), min_size=1, unique=True)
        self.world.finish([self.world.flights[index] for index in data.draw(indexes)])

    @rule(name=st.sampled_from(["database", "registry"]), away=st.booleans())
    def depend(self, name: str, away: bool) -> None:
        self.world.depend(name, away)

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.3, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: not self.world.quiet and self.world.now_s > 3.0)
    @rule()
    def go_quiet(self) -> None:
        self.world.go_quiet()

    @invariant()
    def both_agree_on_what_is_ours(self) -> None:
        if hasattr(self, "world"):
            assert set(self.world.engine.progress()) == {
                *self.world.owned(),
                *self.world.lives,
            }

    def teardown(self) -> None:
        world = self.world
        if not world.intact:
            return
        world.finish_everything()
        assert not world.answers_due
        if world.quiet:
            assert world.drained == 1
            return
        assert world.engine.window() == (0, 0)
        assert not world.engine.causes()
        for life in world.live():
            assert not any(life.waiting.values())
            assert not any(life.incomplete.values())
            assert life.partition not in world.paused
            assert world.committed[life.partition, life.epoch] >= life.bound()


TestEngineInTheWorld = EngineInTheWorld.TestCase
TestEngineInTheWorld.settings = settings(
    max_examples=600, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
