"""What a replay queues is worked many at a time: in order, each once, and one that fails keeps nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, write
from tests.support.running import RunningWorker, Sent, Stage, note, reader, table_of
from tidegate.consumers import App, Context, Event
from tidegate.consumers.intake import EventIntake
from tidegate.consumers.worker import row_batches, slow_way
from tidegate.consumers.worker.taking_up import RowEvents, events_of_rows
from tidegate.inbox.failure_rows import Failure

MANY = 250


def nothing() -> None:
    """What happens at a batch."""


class Ward:
    """Events of these ids cannot be handled until they are healed; how many came at once is remembered."""

    def __init__(self, *ids: str) -> None:
        self.ill = set(ids)
        self.batches: list[int] = []
        self.on_batch: Callable[[], None] = nothing

    async def project(self, events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        """Refuse what is ill, else write."""
        self.on_batch()
        self.batches.append(len(events))
        if found := self.ill.intersection(event.id_text for event in events):
            raise ValueError(f"{sorted(found)[0]} is ill")
        await note(events, tx)


def projecting(topic_name: str, ward: Ward, **options: Any) -> App:
    app = reader(topic_name)
    (consumer,) = app.consumers.values()
    consumer.projection("rows", breaker=None, **options)(ward.project)
    return app


def ids(n: int) -> list[str]:
    return [f"e-{number:04}" for number in range(n)]


async def dead(stage: Stage, worker: RunningWorker, n: int) -> None:
    async def holds() -> bool:
        return await stage.value("SELECT count(*) FROM tidegate.failure WHERE state = 'dead'") == n

    await worker.until(holds)


async def none_queued(stage: Stage, worker: RunningWorker) -> None:
    async def holds() -> bool:
        return await stage.value("SELECT count(*) FROM tidegate.failure WHERE state = 'queued'") == 0

    await worker.until(holds)


async def effects(stage: Stage) -> list[str]:
    return [row[0] for row in await stage.rows("SELECT id FROM public.effect ORDER BY written")]


async def test_replayed_letters_of_a_projection_are_applied_together_in_their_order(stage: Stage, topic: Topic) -> None:
    name, ward = topic(partitions=1), Ward(*ids(MANY))
    worker = await stage.start(projecting(name, ward))
    await table_of(stage)
    await stage.send(name, *[Sent(id_, key=b"k-%d" % n) for n, id_ in enumerate(ids(MANY))])
    await dead(stage, worker, MANY)
    ward.ill.clear()
    ward.batches.clear()
    assert len((await stage.replay()).replayed) == MANY
    await none_queued(stage, worker)
    assert await effects(stage) == ids(MANY)
    assert ward.batches == [MANY]
    named = "SELECT act, jsonb_array_length(details->'failure_ids') FROM tidegate.audit ORDER BY 1"
    assert await stage.rows(named) == [("completed", MANY), ("dlq_replay", MANY)], "one line, with all"


async def test_what_comes_behind_a_batch_is_worked_without_another_look(
    stage: Stage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten at a time, each once; from the first batch on the slow way itself looks but once more.

    Of all but the first the events are read before their turn. Keys differ, and all are due at one moment: which
    ten come first is for the index to say.
    """
    read_late: list[int] = []

    def late(intake: EventIntake, rows: Sequence[Failure]) -> RowEvents:
        read_late.append(len(rows))
        return events_of_rows(intake, rows)

    monkeypatch.setattr(row_batches, "events_of_rows", late)
    name, ward = topic(partitions=1), Ward(*ids(45))
    worker = await stage.start(projecting(name, ward, batch_max=10))
    await table_of(stage)
    await stage.send(name, *[Sent(id_, key=b"k-%d" % n) for n, id_ in enumerate(ids(45))])
    await dead(stage, worker, 45)
    ward.ill.clear()
    ward.batches.clear()
    ward.on_batch = lambda: monkeypatch.setattr(slow_way, "LOOK_MIN_S", 3_600.0)
    await stage.replay()
    await none_queued(stage, worker)
    assert sorted(await effects(stage)) == ids(45)
    assert ward.batches == [10, 10, 10, 10, 5]
    assert read_late == [10]


async def test_letters_replayed_while_their_handler_is_stopped_wait_for_it(stage: Stage, topic: Topic) -> None:
    """No worker is there: they are queued, and a second replay finds them queued. With the worker each runs once.

    Case: B39
    Parts: real (PostgreSQL, Kafka)
    Red when: dlq/replay_order.py's obstacle does not look at the state
    """
    name, ward = topic(partitions=1), Ward(*ids(5))
    app = projecting(name, ward)
    worker = await stage.start(app)
    await table_of(stage)
    await stage.send(name, *[Sent(id_, key=id_.encode()) for id_ in ids(5)])
    await dead(stage, worker, 5)
    assert await worker.stop() == 0
    ward.ill.clear()
    numbers = [row[0] for row in await stage.rows("SELECT id FROM tidegate.failure ORDER BY id")]
    assert len((await stage.replay()).replayed) == 5
    again = await stage.replay(*numbers)
    assert [refusal.cause for refusal in again.refused] == ["it is queued already"] * 5
    assert [state for _, state, _ in await stage.failures()] == ["queued"] * 5
    assert await effects(stage) == []
    worker = await stage.start(app)
    await none_queued(stage, worker)
    assert sorted(await effects(stage)) == ids(5)
    assert await stage.failures() == []


async def test_one_letter_that_fails_again_keeps_none_of_its_batch(stage: Stage, topic: Topic) -> None:
    """The halves without it are applied; it alone is dead once more, with another letter.

    Case: B36, B40
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/row_batches.py returns all rows of a part that fails instead of halving it
    """
    name, ward = topic(partitions=1), Ward(*ids(MANY))
    worker = await stage.start(projecting(name, ward))
    await table_of(stage)
    await stage.send(name, *[Sent(id_, key=b"k-%d" % n) for n, id_ in enumerate(ids(MANY))])
    await dead(stage, worker, MANY)
    ward.ill = {"e-0100"}
    ward.batches.clear()
    await stage.replay()
    await none_queued(stage, worker)
    await dead(stage, worker, 1)
    assert sorted(await effects(stage)) == sorted(set(ids(MANY)) - ward.ill)
    assert await stage.failures("rows") == [("e-0100", "dead", "rejected")]
    assert len(ward.batches) < 30
    assert await stage.value("SELECT replay_count FROM tidegate.failure") == 1


async def test_replayed_letters_of_one_key_that_block_are_applied_in_their_order(stage: Stage, topic: Topic) -> None:
    name, ward = topic(partitions=1), Ward(*ids(30))
    worker = await stage.start(projecting(name, ward, on_failure="block"))
    await table_of(stage)
    await stage.send(name, *[Sent(id_, key=b"k-%d" % (n % 3)) for n, id_ in enumerate(ids(30))])
    await dead(stage, worker, 30)
    ward.ill.clear()
    await stage.replay()
    await none_queued(stage, worker)
    applied = await effects(stage)
    for key in range(3):
        assert [id_ for id_ in applied if int(id_[2:]) % 3 == key] == ids(30)[key::3]


async def test_a_replayed_letter_whose_event_was_handled_meanwhile_is_a_repeat(stage: Stage, topic: Topic) -> None:
    """Also through a handler with a transaction of its own: nothing is written twice, and the row ends.

    Case: B40
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/slow_way.py leaves `or ended.repeat` out
    """
    name, ill = topic(partitions=1), {"a", "b"}

    async def act(command: Do, ctx: Context) -> None:
        if command.id in ill:
            raise ValueError("ill")
        await write(command, ctx)

    app = reader(name)
    at_desk(app, act, breaker=None)
    worker = await stage.start(app)
    await table_of(stage)
    await stage.send(name, Sent("a", key=b"a"), Sent("b", key=b"b"))
    await dead(stage, worker, 2)
    await stage.execute(
        "INSERT INTO tidegate.claim_1 SELECT handler, version, event_id, payload_hash8 FROM tidegate.failure"
        " WHERE id_text = 'a'"
    )
    ill.clear()
    await stage.execute(
        "UPDATE tidegate.failure SET state = 'queued', due = now(), replay_count = 1, row_version = row_version + 1"
        " WHERE id_text = 'a'",
        "UPDATE tidegate.parked_key p SET waiting = 1, head_seq = f.seq, head_due = f.due,"
        " head_home_topic = home_topic, head_home_partition = home_partition FROM tidegate.failure f"
        " WHERE f.lane = p.key_hash AND f.state = 'queued'",
    )
    await none_queued(stage, worker)
    assert await stage.failures("do") == [("b", "dead", "rejected")]
    assert await effects(stage) == []
    assert await stage.rows("SELECT act FROM tidegate.audit") == [("completed_repeat",)]


async def test_a_repaired_letter_runs_with_its_new_bytes_and_claims_both_identities(stage: Stage, topic: Topic) -> None:
    """The run has an identity of its own; at its success the received event is done too, under the hash of its bytes.

    Case: B40
    Parts: real (PostgreSQL, Kafka)
    Red when: consumers/worker/row_ends.py claims no row's own event_id
    """
    name = topic(partitions=1)
    app = reader(name)
    seen: list[Any] = []
    (consumer,) = app.consumers.values()

    @consumer.projection("rows", breaker=None)
    async def rows(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
        if any(event.value.get("n") == 1 for event in events):
            raise ValueError("1 is wrong")
        seen.extend((event.value["n"], event.operation_id) for event in events)

    worker = await stage.start(app)
    await stage.send(name, Sent("a", {"n": 1}))
    await dead(stage, worker, 1)
    await stage.execute(
        "UPDATE tidegate.failure SET edited_value = '{\"n\": 2}', edit_id = decode(repeat('0a', 16), 'hex'),"
        " row_version = row_version + 1"
    )
    hash8 = await stage.value("SELECT payload_hash8 FROM tidegate.failure")
    own = await stage.value("SELECT event_id FROM tidegate.failure")
    await stage.replay()
    await none_queued(stage, worker)
    assert seen == [(2, "a")]
    claims = dict(await stage.rows("SELECT event_id, payload_hash8 FROM tidegate.claim_1"))
    assert len(claims) == 2
    assert claims[own] == hash8
    await stage.send(name, Sent("a", {"n": 1}))
    await worker.until_counted("events", "rows", "skipped_duplicate", n=1)
    assert seen == [(2, "a")]
