"""The client thread around a stand-in that plays what a Kafka client may do to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from tests.support.kafka_desk import Desk
from tests.support.stand_in import P0, P1, P3, TOPIC, StandIn, StillCluster, client, end, error, raising, record
from tidegate.consumers.client.admin import TopicFacts
from tidegate.consumers.client.ports import ClientStopped, CommitAnswer
from tidegate.consumers.client.thread import KafkaThread


@contextlib.asynccontextmanager
async def running(
    stand_in: StandIn, desk: Desk | None = None, **options: Any
) -> AsyncGenerator[tuple[KafkaThread, Desk]]:
    desk = desk or Desk()
    port = client(stand_in, desk, **options)
    port.start()
    try:
        yield port, desk
    finally:
        await port.stop(5)


async def played(stand_in: StandIn, port: KafkaThread) -> None:
    """Until every read was played and the thread has turned twice since."""
    await asyncio.to_thread(stand_in.read_all.wait, 5)
    for _ in range(2):
        await port.committed([])


async def test_a_callback_that_raises_is_fatal_and_loses_no_read() -> None:
    """Nothing flies through the client's C frames: the process is told to leave, with nothing handed over or committed.

    Case: B01
    Parts: fake (stand-in consumer)
    Red when: rebalance.py's on_assign runs without `with self._containment`
    """

    class Broken(Desk):
        def assigned(self, partitions: Any) -> None:
            raise ValueError("a bug")

    stand_in = StandIn()
    went_on: list[bool] = []

    def read(_: StandIn) -> list[Message]:
        stand_in.gives(P0)(stand_in)
        went_on.append(True)
        return [record(P0, 0)]

    stand_in.play(read)
    async with running(stand_in, Broken()) as (port, desk):
        await desk.until(lambda: bool(desk.said("fatal")))
        assert desk.said("fatal")[0].value.exit_code == 70
        await port.committed([])
        assert went_on == [True]
        assert desk.count() == 0
        assert not stand_in.named("commit")


async def test_after_an_exception_out_of_a_read_everything_owned_is_read_again() -> None:
    """A read that raises may have taken records along: the client is put back to what was handed over.

    Case: B01
    Parts: fake (stand-in consumer)
    Red when: thread.py's `_read` does not call `rewind_all` when the read raises
    """
    stand_in = StandIn()

    def breaks(_: StandIn) -> list[Message]:
        raise raising(KafkaError._FAIL)

    stand_in.play(stand_in.gives(P0))
    async with running(stand_in) as (port, desk):
        await played(stand_in, port)
        stand_in.play([record(P0, 0), record(P0, 1)], breaks)
        await played(stand_in, port)
        assert stand_in.named("seek") == [(P0, 0), (P0, 2)]
        stand_in.play([record(P0, 2)])
        await desk.until(lambda: desk.offsets(P0) == [0, 1, 2])


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._NO_OFFSET,
        KafkaError._STATE,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
    ],
)
async def test_a_commit_refused_by_a_rebalance_stops_nothing(code: int) -> None:
    """The loop goes on polling, liveness goes on, the answer is a value.

    Case: B03
    Parts: fake (stand-in consumer)
    Red when: commits.py's `ask` lets KafkaException out
    """
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in) as (port, desk):
        await played(stand_in, port)
        stand_in.commit_errors.append(code)
        (answer,) = (await port.commit({P0: 1})).values()
        assert answer in (CommitAnswer.REFUSED, CommitAnswer.UNREACHABLE)
        before = port.polled_at()
        stand_in.play([record(P0, 0)])
        await desk.until(lambda: desk.offsets(P0) == [0])
        assert port.polled_at() > before
        assert not desk.said("fatal")
        assert (await port.commit({P0: 1})) == {P0: CommitAnswer.ACCEPTED}


async def test_a_poll_interval_that_was_missed_is_counted_and_the_loop_goes_on() -> None:
    """Lost, not revoked: nothing is committed for the lost epoch, the rest of the read is dropped, the next joins.

    Case: B05
    Parts: fake (stand-in consumer)
    Red when: errors.py maps _MAX_POLL_EXCEEDED to Kind.FATAL
    """
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in) as (port, desk):
        await played(stand_in, port)
        exceeded = [error(KafkaError._MAX_POLL_EXCEEDED), record(P0, 0)]
        stand_in.play(stand_in.loses(P0, and_returns=exceeded), stand_in.gives(P0))
        await desk.until(lambda: desk.owned == {P0: 2})
        await played(stand_in, port)
        assert [(n.partition, n.epoch) for n in desk.said("lost")] == [(P0, 1)]
        assert (port.counts.poll_exceeded, port.counts.lost) == (1, 1)
        assert not stand_in.named("commit")
        assert not desk.said("fatal")
        assert desk.count() == 0


async def test_a_revoked_partition_is_drained_inside_the_callback_then_committed_then_given_up() -> None:
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0, P1))
    async with running(stand_in, Desk(drains=False)) as (port, desk):
        await played(stand_in, port)
        stand_in.play(stand_in.takes(P0, P1))
        await desk.until(lambda: len(desk.said("revoking")) == 2)
        port.let_go(P0, 7, 3)  # of another epoch: changes nothing
        port.let_go(P0, 1, 3)
        assert await port.commit({P1: 1}) == {P1: CommitAnswer.ACCEPTED}, "a commit is answered while Kafka waits"
        assert not stand_in.named("incremental_unassign")
        port.let_go(P1, 1, None)
        await played(stand_in, port)
        assert stand_in.named("commit") == [{P1: 1}, {P0: 3}]
        assert stand_in.named("incremental_unassign") == [[P0, P1]]


async def test_a_partition_waits_for_its_seek_under_a_plain_offset() -> None:
    """Under a logical one (the end, say) a seek loses against librdkafka's look-up of it, and records are skipped."""
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0, P1))
    async with running(stand_in) as (port, _):
        await played(stand_in, port)
        assert stand_in.assigned_at == [0, 0]
        assert [name for name, _ in stand_in.calls][1:3] == ["incremental_assign", "pause"]


async def test_whoever_resumes_partitions_wakes_their_brokers_threads() -> None:
    """A resume alone leaves them asleep for up to a second; a request wakes them."""
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0, P1))
    async with running(stand_in) as (port, _):
        await played(stand_in, port)
        assert {partition for woken in stand_in.named("offsets_for_times") for partition in woken} == {P0, P1}
        names = [name for name, _ in stand_in.calls]
        assert names[-1] == "offsets_for_times"
        assert "resume" in names


async def test_a_drain_that_outlasts_its_budget_is_cut_off() -> None:
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in, Desk(drains=False), revoke_budget_s=0.2) as (port, desk):
        await played(stand_in, port)
        stand_in.play(stand_in.takes(P0))
        await played(stand_in, port)
        assert desk.said("revoking")[0].value == 0.2
        assert stand_in.named("incremental_unassign") == [[P0]]
        assert not stand_in.named("commit")
        port.let_go(P0, 1, 9)  # too late: changes nothing
        await port.committed([])
        assert not stand_in.named("commit")


async def test_empty_and_unknown_partitions_in_callbacks_change_nothing() -> None:
    """A revocation of what was never owned, and empty lists, are no events.

    Case: B10
    Parts: fake (stand-in consumer)
    Red when: rebalance.py's on_revoke does not ask the table what of it is owned
    """
    stand_in = StandIn()
    stand_in.play(stand_in.takes(), stand_in.takes(P3), stand_in.gives(), stand_in.loses(), stand_in.loses(P3))
    async with running(stand_in) as (port, desk):
        await played(stand_in, port)
        assert desk.notes == []
        assert [name for name, _ in stand_in.calls] == ["subscribe"]
        assert (port.counts.lost, port.counts.errors) == (0, {})


async def test_a_fatal_client_error_is_told_once_and_nothing_is_read_after_it() -> None:
    """A dead client is not polled for ever while it looks alive.

    Case: B12
    Parts: fake (stand-in consumer)
    Red when: feed.py does nothing for Kind.FATAL
    """
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in) as (port, desk):
        await played(stand_in, port)
        fenced = error(KafkaError.FENCED_INSTANCE_ID, fatal=True)
        stand_in.play([fenced, fenced], [record(P0, 0)])
        await desk.until(lambda: bool(desk.said("fatal")))
        await port.committed([])
        (note,) = desk.said("fatal")
        assert note.value.exit_code == 70
        assert "group.instance.id" in note.value.fix
        assert desk.count() == 0
        assert len(stand_in.reads) == 1, "not read any more"


async def test_a_topic_that_is_missing_stays_latched_until_metadata_shows_it() -> None:
    """Kafka says it once; we say it until it is no longer so.

    Case: B12
    Parts: fake (stand-in consumer)
    Red when: topics.py's `seen` drops the latch of a topic that metadata still does not show
    """
    missing = TopicFacts(None, 0, "UNKNOWN_TOPIC_OR_PART: no such topic")
    cluster = StillCluster({TOPIC: missing})
    stand_in = StandIn()
    async with running(stand_in, admin=cluster) as (_, desk):
        await desk.until(lambda: bool(desk.said("topic_error")))
        cluster.facts[TOPIC] = TopicFacts(None, 4)
        await desk.until(lambda: len(desk.said("topic_error")) == 2)
        first, second = (note.value for note in desk.said("topic_error"))
        assert first == (TOPIC, missing.error)
        assert second == (TOPIC, None)


async def test_a_stop_ends_a_drain_in_a_rebalance_callback() -> None:
    """Leaving does not wait for an answer that nobody will give.

    Case: B13
    Parts: fake (stand-in consumer)
    Red when: rebalance.py's `_drain` does not look at `stopping`
    """
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in, Desk(drains=False), revoke_budget_s=60.0) as (port, desk):
        await played(stand_in, port)
        stand_in.play(stand_in.takes(P0))
        await desk.until(lambda: bool(desk.said("revoking")))
        started = time.monotonic()
        await port.stop(5)
        assert time.monotonic() - started < 2
        assert stand_in.calls[-1] == ("close", None)


async def test_a_close_that_hangs_is_left_behind_at_the_deadline_and_waiting_calls_end() -> None:
    """The deadline is ours, not librdkafka's.

    Case: B13
    Parts: fake (stand-in consumer)
    Red when: thread.py's `stop` joins the thread without a timeout
    """
    release = threading.Event()

    class Hangs(StandIn):
        def close(self) -> None:
            release.wait(20)

        def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition] | None:
            return None  # never answered

    stand_in = Hangs()
    desk = Desk()
    port = client(stand_in, desk)
    port.start()
    waiting = asyncio.create_task(port.commit({P0: 1}))
    await port.committed([])
    started = time.monotonic()
    await port.stop(0.3)
    assert time.monotonic() - started < 2
    with pytest.raises(ClientStopped):
        await waiting
    with pytest.raises(ClientStopped):
        await port.commit({P0: 1})
    release.set()


async def test_polling_goes_on_while_the_event_loop_is_blocked() -> None:
    """A handler that blocks the loop costs no membership: the client has a thread of its own.

    Case: B16
    Parts: fake (stand-in consumer)
    Red when: thread.py runs `_turn` as a callback of the event loop
    """
    stand_in = StandIn()
    async with running(stand_in) as (port, _):
        before = port.polled_at()
        time.sleep(0.3)  # what a bad handler does
        assert port.polled_at() - before > 0.25


async def test_short_pauses_hold_and_lasting_ones_pause() -> None:
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in) as (port, desk):
        await played(stand_in, port)
        before = len(stand_in.named("pause"))
        port.pause(frozenset({P0}))
        await port.committed([])
        port.resume(frozenset({P0}))
        await port.committed([])
        assert len(stand_in.named("pause")) == before, "held only"
        port.pause(frozenset({P0}))
        stand_in.play([])
        await asyncio.to_thread(stand_in.read_all.wait, 5)  # read again: it is really paused by now
        assert stand_in.named("pause")[before:] == [[P0]]
        port.resume(frozenset({P0}))
        stand_in.play([record(P0, 0)])
        await desk.until(lambda: desk.offsets(P0) == [0])


async def test_the_end_is_told_where_it_moves_the_position_over_a_gap() -> None:
    """The position behind transaction markers and compacted records is what an idle consumer commits.

    Case: B53
    Parts: fake (stand-in consumer)
    Red when: feed.py's `_reach` takes only an end equal to the position
    """
    stand_in = StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in, Desk(start_at=lambda _: 98)) as (port, desk):
        await played(stand_in, port)
        stand_in.play([record(P0, 98), record(P0, 99), end(P0, 101)], [end(P0, 101)])
        await played(stand_in, port)
        assert [(n.partition, n.value) for n in desk.said("reached")] == [(P0, 101)]


async def test_a_refusal_that_kafka_never_explains_ends_in_joining_anew() -> None:
    class Late:
        """A clock that a test moves on."""

        ahead_s = 0.0

        def monotonic_s(self) -> float:
            return time.monotonic() + self.ahead_s

        def now(self) -> Any:
            raise NotImplementedError

        def random(self) -> float:
            return 0.5

        def new_id(self) -> str:
            raise NotImplementedError

    clock, stand_in = Late(), StandIn()
    stand_in.play(stand_in.gives(P0))
    async with running(stand_in, clock=clock) as (port, _):
        await played(stand_in, port)
        stand_in.commit_errors.append(KafkaError.UNKNOWN_MEMBER_ID)
        assert await port.commit({P0: 1}) == {P0: CommitAnswer.REFUSED}
        await port.committed([])
        assert not stand_in.named("unsubscribe")
        clock.ahead_s = 60.0
        await played(stand_in, port)
        await port.committed([])
        assert [name for name, _ in stand_in.calls][-2:] == ["unsubscribe", "subscribe"]
