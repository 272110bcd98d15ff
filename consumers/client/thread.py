"""The client thread: the one owner of the Kafka consumer. It reads, decodes, and carries out what others ask for.

One turn: serve the mail, bring pauses and positions in line, read, hand over. It goes on turning while handlers run,
while everything is paused and while the event loop is blocked, so that Kafka never takes the process for dead because
of a slow handler (B05, B16). Rebalance callbacks run inside the read. All that others want comes through the mail;
nobody else touches the consumer (B13).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar, final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from ...inbox.clock import Clock, SystemClock
from ...inbox.errors import ConfigurationError, FatalError, OwnershipLost, TransientError
from ...inbox.event import Partition
from ...inbox.points import Point, reach
from .admin import Admin, Cluster, TopicFacts
from .commits import Commits
from .config import ClientOptions, admin_config, consumer_config
from .containment import Containment
from .errors import Kind, kind_of
from .feed import Counts, Feed
from .mail import Mail, Replies, Reply
from .partitions import PartitionTable
from .ports import ClientStopped, CommitAnswer, Intake, Listener
from .rebalance import Rebalance
from .split import Trouble
from .steering import Steering
from .topics import TopicWatch

T = TypeVar("T")

POLL_S: Final = 0.02
"""The longest wait for a first record, and so for the mail to be served: 50 turns a second cost an idle core 0.1 %."""

LINGER_S: Final = 0.002
"""How long a read waits for more records behind the first: enough to make batches, too little to be felt."""

READ_MAX: Final = 5_000
"""Records in one read, as many as the largest batch takes: the intake's work on them (about 30 ms) is what a command in
the mail waits for."""

READ_SHARE: Final = 8
"""One read may hold this part of the memory budget; the size of its first record says how many that is."""

UNSEEN_BYTES: Final = 10_000
"""What a record is thought to weigh before one was seen: a guess on the large side."""

COMMITTED_MAX_S: Final = 5.0
"""How long the poll loop may stand still for the group's offsets: far below a poll interval."""

REJOIN_AFTER_S: Final = 30.0
"""Longer than Kafka needs to tell a member that it is none any more (a few heartbeats)."""

Connect = Callable[[dict[str, Any]], Consumer]

_log = logging.getLogger("tidegate.client")


@final
class KafkaThread:
    """The real `KafkaPort`.

    Raises:
        ConfigurationError: with every problem of the options, before anything is started.
    """

    def __init__(
        self,
        options: ClientOptions,
        intake: Intake,
        listener: Listener,
        *,
        clock: Clock | None = None,
        revoke_budget_s: float = 30.0,
        connect: Connect = Consumer,
        admin: Cluster | None = None,
    ) -> None:
        self._options = options
        self._clock: Clock = clock or SystemClock()
        self._connect = connect
        self._mail = Mail()
        self._replies = Replies()
        self._table = PartitionTable()
        self._steering = Steering(self._table)
        self._topics = TopicWatch(options.topics, listener, self._look_at_topics)
        self._feed = Feed(self._table, intake, listener, self._clock, self._topics.latch)
        self._commits = Commits(self._feed.counts, self._refused)
        self._containment = Containment(self._broke)
        self._rebalance = Rebalance(
            self._table,
            listener,
            self._commits,
            self._feed.counts,
            self._containment,
            self._serve,
            self._clock,
            revoke_budget_s,
        )
        self._config = consumer_config(options, {"on_commit": self._on_commit, "error_cb": self._on_error})
        self._admin = admin
        self._errands = ThreadPoolExecutor(2, "tidegate-admin")
        self._consumer: Consumer | None = None
        self._thread = threading.Thread(target=self._run, name="tidegate-client", daemon=True)
        self._stopping = threading.Event()
        self._polled_at_s = self._clock.monotonic_s()

    # ------------------------------------------------------------------------------------------------- from outside

    def start(self) -> None:
        """Start the thread, which joins the group."""
        self._check_open()
        try:
            self._consumer = self._connect(self._config)
            self._admin = self._admin or Admin(admin_config(self._options))
        except KafkaException as error:
            problem = ("kafka", str(error.args[0].str()), "correct the key; librdkafka's CONFIGURATION.md lists them")
            raise ConfigurationError.of(*problem) from error
        self._thread.start()

    def pause(self, partitions: frozenset[Partition]) -> None:
        """See `KafkaPort`."""
        self._post(lambda: self._table.pause(partitions))

    def resume(self, partitions: frozenset[Partition]) -> None:
        """See `KafkaPort`."""
        self._post(lambda: self._table.resume(partitions))

    def seek(self, partition: Partition, epoch: int, offset: int) -> None:
        """See `KafkaPort`."""

        def place() -> None:
            if state := self._table.get(partition, epoch):
                state.seek(offset)

        self._post(place)

    def let_go(self, partition: Partition, epoch: int, offset: int | None) -> None:
        """See `KafkaPort`."""
        self._post(lambda: self._rebalance.let_go(partition, epoch, offset))

    async def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        """See `KafkaPort`."""
        reply: Reply[dict[Partition, int | None]] = Reply()
        return await self._asked(reply, lambda: self._committed(partitions, reply))

    async def commit(self, offsets: Mapping[Partition, int]) -> dict[Partition, CommitAnswer]:
        """See `KafkaPort`."""
        reply: Reply[dict[Partition, CommitAnswer]] = Reply()
        return await self._asked(reply, lambda: self._commit(offsets, reply))

    async def watermarks(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """See `KafkaPort`."""
        return await self._errand(lambda admin: admin.watermarks(partitions))

    async def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """See `KafkaPort`."""
        facts = await self._errand(lambda admin: admin.describe(topics))
        return {topic: fact.topic_id for topic, fact in facts.items()}

    async def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """See `KafkaPort`."""
        facts = await self._errand(lambda admin: admin.describe(topics))
        return {topic: fact.partitions for topic, fact in facts.items() if fact.error is None}

    def polled_at(self) -> float:
        """See `KafkaPort`."""
        self._check_open()
        return self._polled_at_s

    @property
    def counts(self) -> Counts:
        """What was counted so far; for metrics, also after the end."""
        return self._feed.counts

    async def stop(self, budget_s: float) -> None:
        """See `KafkaPort`. A second stop waits for the same end."""
        self._stopping.set()
        self._rebalance.stopping = True
        self._mail.wake()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, budget_s)
        self._errands.shutdown(wait=False, cancel_futures=True)
        self._replies.fail_all(ClientStopped())
        if self._thread.is_alive():
            _log.warning("the Kafka client did not close within %.1f s and is left behind", budget_s)

    def _check_open(self) -> None:
        if self._stopping.is_set():
            raise ClientStopped

    def _post(self, call: Callable[[], None]) -> None:
        self._check_open()
        self._mail.put(call)

    async def _asked(self, reply: Reply[T], call: Callable[[], None]) -> T:
        with self._replies.expect(reply):
            self._post(call)
            return await reply

    async def _errand(self, run: Callable[[Cluster], T]) -> T:
        """Ask the admin client in a thread of the pool; a stop ends the wait."""
        self._check_open()
        assert self._admin is not None, "the client was not started"
        reply: Reply[T] = Reply()
        with self._replies.expect(reply):
            self._errands.submit(run, self._admin).add_done_callback(lambda done: _pass_on(done, reply))
            return await reply

    # ------------------------------------------------------------------------------------------ in the client thread

    def _run(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        with self._containment:
            self._subscribe(consumer)
            while not self._stopping.is_set():
                self._turn(consumer)
        self._mail.close()
        self._replies.fail_all(ClientStopped())
        self._stopping.wait()  # broken, not stopped: stay a member, quiet, until the process has decided to leave
        with self._containment:
            consumer.close()

    def _subscribe(self, consumer: Consumer) -> None:
        rebalance = self._rebalance
        consumer.subscribe(
            list(self._options.topics),
            on_assign=rebalance.on_assign,
            on_revoke=rebalance.on_revoke,
            on_lost=rebalance.on_lost,
        )

    def _rejoin_if_refused(self, consumer: Consumer, now_s: float) -> None:
        """Whose commits are refused is lost within a heartbeat or two; if Kafka never says so, join anew."""
        if self._table.refused_since(now_s - REJOIN_AFTER_S):
            _log.warning("commits are refused and the partitions were not taken away: joining the group anew")
            self._table.clear_refused()
            consumer.unsubscribe()
            self._subscribe(consumer)

    def _turn(self, consumer: Consumer) -> None:
        self._serve()
        now_s = self._clock.monotonic_s()
        self._commits.expire(now_s)
        self._table.end_stalls(now_s)
        self._rejoin_if_refused(consumer, now_s)
        self._topics.look(now_s)
        hold_s = POLL_S if self._feed.failed else self._steering.steer(consumer, now_s)
        if hold_s > 0:
            self._serve(min(hold_s, POLL_S))
        else:
            self._read(consumer)

    def _serve(self, wait_s: float = 0.0) -> None:
        self._polled_at_s = self._clock.monotonic_s()
        self._mail.serve(wait_s)

    def _read(self, consumer: Consumer) -> None:
        """A first record as soon as there is one, then what else is there."""
        messages: list[Message] = []
        try:
            first = consumer.poll(POLL_S)
            if first is not None:
                messages = [first, *consumer.consume(self._read_max(first) - 1, LINGER_S)]
        except KafkaException as raised:
            # Records may have been taken off the queue and never returned: read again from what was handed over.
            self._table.rewind_all()
            self._feed.trouble(Trouble(raised.args[0]))
        if messages and not self._feed.failed:
            reach(Point.POLLED)
            self._feed.take(messages)

    def _read_max(self, first: Message) -> int:
        """How many records may be read at once: as large as the first of them, or as those so far were on average."""
        counts = self._feed.counts
        average = counts.bytes / counts.records if counts.records else 1.0
        size = len(first.value() or b"") if first.error() is None else UNSEEN_BYTES
        budget = self._options.window_bytes // READ_SHARE
        return max(2, min(READ_MAX, int(budget / max(1.0, average, size))))

    def _commit(self, offsets: Mapping[Partition, int], reply: Reply[dict[Partition, CommitAnswer]]) -> None:
        assert self._consumer is not None
        if self._rebalance.draining is not None:
            reply.give(self._commits.ask_now(self._rebalance.draining, offsets))
        elif not offsets:
            reply.give({})
        else:
            self._commits.ask(self._consumer, offsets, reply, self._clock.monotonic_s())

    def _committed(self, partitions: Sequence[Partition], reply: Reply[dict[Partition, int | None]]) -> None:
        assert self._consumer is not None
        try:
            places = [TopicPartition(p.topic, p.number) for p in partitions]
            found = self._consumer.committed(places, timeout=COMMITTED_MAX_S) if places else []
            errors = [place.error for place in found if place.error is not None]
            if errors:
                raise KafkaException(errors[0])
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            lost = kind_of(error) is Kind.REBALANCE
            text = f"the group's offsets: {error.str()}"
            reply.fail(OwnershipLost(text) if lost else TransientError(text))
        else:
            reply.give({Partition(p.topic, p.partition): p.offset if p.offset >= 0 else None for p in found})

    def _look_at_topics(self) -> None:
        """For the topic watch: ask in another thread, come back through the mail."""
        assert self._admin is not None
        topics = [topic for topic in self._options.topics if not topic.startswith("^")]
        self._errands.submit(self._admin.describe, topics).add_done_callback(self._saw_topics)

    def _saw_topics(self, done: Future[dict[str, TopicFacts]]) -> None:
        facts = {} if done.cancelled() or done.exception() is not None else done.result()
        if not self._stopping.is_set():
            self._post(lambda: self._topics.seen(facts))

    # --------------------------------------------------------------------------------- callbacks, inside poll and close

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        with self._containment:
            self._commits.answered(error, places)

    def _refused(self, partitions: Sequence[Partition]) -> None:
        self._table.refuse(partitions, self._clock.monotonic_s())

    def _on_error(self, error: KafkaError) -> None:
        with self._containment:
            self._feed.trouble(Trouble(error))

    def _broke(self, error: BaseException) -> None:
        """An exception where none may be. The process leaves; offsets stay where they are."""
        if isinstance(error, FatalError):
            self._feed.fail(error)
        else:
            what = f"the Kafka client thread broke: {type(error).__name__}"
            self._feed.fail(FatalError(what, fix="start again; if it recurs, report it with the stack from the log"))
        _log.error("the client thread broke: %s", type(error).__name__, exc_info=error)


def _pass_on(done: Future[T], reply: Reply[T]) -> None:
    if done.cancelled():
        reply.fail(ClientStopped())
    elif (error := done.exception()) is not None:
        reply.fail(error if isinstance(error, Exception) else TransientError(type(error).__name__))
    else:
        reply.give(done.result())
