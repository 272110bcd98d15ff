"""A command's event that failed for good and comes again: it stands once in the failure table, with one letter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.services.topics import Topic
from tests.support.running import ID, Sent, Stage, unique
from tidegate.consumers import App, Event, Json, header
from tidegate.consumers.worker import repeats


@dataclass(frozen=True)
class Refuse:
    """Whatever it is, no."""


async def test_a_repeat_of_a_dead_event_is_linked_to_it_and_has_no_letter(stage: Stage, topic: Topic) -> None:
    """1. Both records are delivered together, so the intake's probe sees neither. 2. The first one is dead. 3. The
    second one runs after it, fails too, and is known by then.
    """
    name = topic(partitions=2)
    app = App("shop", owner="tests")
    things = app.consumer(unique("things"), topics=[name], codec=Json(), event_id=header(ID))
    topic(partitions=1, name=f"{name}.{things.name}.dlq")

    @app.handler(Refuse)
    async def refuse(command: Refuse) -> None:
        raise ValueError("no")

    @things.command("refuse", on="Thing")
    def to_refuse(event: Event[dict[str, int]]) -> Refuse:
        return Refuse()

    same, other = Sent("e1", {"n": 1}), Sent("e1", {"n": 1}, key=b"other", partition=1)
    await stage.send(name, same, same, other)
    worker = await stage.start(app)
    await worker.until(lambda: worker.metrics.value("records_consumed", name, "1") == 1)

    async def is_told() -> bool:
        return await stage.checkpoints("refuse") == {0: 2, 1: 1}

    await worker.until(is_told)
    states = sorted(state for _, state, _ in await stage.failures("refuse"))
    assert states.count("dead") == 1
    assert set(states) <= {"dead", "linked"}
    assert await stage.value("SELECT count(*) FROM tidegate.outbox WHERE kind = 'letter'") == 1
    assert await worker.stop() == 0


async def test_a_repeat_that_runs_because_it_was_forgotten_is_linked_all_the_same(
    stage: Stage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is older than the worker, whose group asks only for what is new, and for what was met when it came."""
    name, ran = topic(partitions=1), 0
    app = App("shop", owner="tests")
    things = app.consumer(unique("things"), topics=[name], codec=Json(), event_id=header(ID))
    topic(partitions=1, name=f"{name}.{things.name}.dlq")

    @app.handler(Refuse)
    async def refuse(command: Refuse) -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise ValueError("no")

    @things.command("refuse", on="Thing")
    def to_refuse(event: Event[dict[str, int]]) -> Refuse:
        return Refuse()

    await stage.send(name, Sent("e1", {"n": 1}))
    await _work_off(stage, app, 1)
    monkeypatch.setattr(repeats, "SUSPECTS_MAX", 0)
    await stage.send(name, Sent("e1", {"n": 1}, key=b"other"))
    await _work_off(stage, app, 2)
    assert ran == 2, "it was forgotten"
    assert sorted(state for _, state, _ in await stage.failures("refuse")) == ["dead", "linked"]
    assert await stage.value("SELECT count(*) FROM tidegate.claim_1") == 0


async def _work_off(stage: Stage, app: App, position: int) -> None:
    """A worker of its own, until it is there."""
    worker = await stage.start(app)

    async def is_there() -> bool:
        return await stage.checkpoints("refuse") == {0: position}

    await worker.until(is_there)
    assert await worker.stop() == 0
