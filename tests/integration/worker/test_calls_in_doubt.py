"""An event one of whose calls nobody knows the end of does not die: a person decides, and its key waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.services.topics import Topic
from tests.support.desk import Do, letters
from tests.support.reviewing import say
from tests.support.running import RunningWorker, Sent, Stage, reader
from tidegate.consumers import Context, Dead, EffectHandle, Event, Reason, RetryLater, RetryPolicy, idempotent_key
from tidegate.dlq.review import Verb

QUICK = RetryPolicy(attempts_max=3, base_s=0.001, cap_s=0.002)
QUEUED = RetryPolicy(attempts_max=3, base_s=0.001, cap_s=0.002, in_place_max_s=0.0)
"""Each retry is a row of the queue."""


class Refusal(Exception):
    """The service says no."""


Answer = Callable[[EffectHandle, int], None]


@dataclass
class Service:
    """Does what it is asked for, and answers the n-th call for an event as it is told."""

    answer: Answer
    before: Callable[[int], None] = lambda n: None
    """What the handler meets in its n-th attempt before it calls."""
    behind: Callable[[], object] = lambda: None
    """And behind the call."""
    keys: list[str] = field(default_factory=list[str])
    results: list[Any] = field(default_factory=list[Any])


def loses(effect: EffectHandle, n: int) -> None:
    raise TimeoutError


def loses_then(answer: Answer) -> Answer:
    return lambda effect, n: loses(effect, n) if n == 1 else answer(effect, n)


def answers(effect: EffectHandle, n: int) -> None:
    effect.complete({"from": "call"})


def refuses(effect: EffectHandle, n: int) -> None:
    raise Refusal


def says_that_it_refused(effect: EffectHandle, n: int) -> None:
    effect.refused("no such card")
    raise ValueError("refused")


def leaves(effect: EffectHandle, n: int) -> None:
    raise SystemExit(3)


async def charging(
    stage: Stage, topic: Topic, service: Service, retry: RetryPolicy = QUICK, says: Dead | None = None
) -> RunningWorker:
    """A worker whose command calls the service for e1, and one event behind it."""
    app = reader(topic(partitions=1))
    letters(app, topic)
    app.effect(
        "charge",
        rule=idempotent_key(valid_s=3600),
        deadline_s=0.5,
        margin_s=0.0,
        not_done=lambda error: isinstance(error, Refusal),
    )

    @app.handler(Do)
    async def do(command: Do, ctx: Context) -> Dead | None:
        if command.id != "e1":
            return None
        service.before(ctx.attempt)
        try:
            async with ctx.effect("charge") as effect:
                if not effect.is_done:
                    service.keys.append(effect.key)
                    service.answer(effect, effect.attempt)
        except Refusal:
            if says is None:
                raise
            return says
        service.results.append(effect.result)
        service.behind()
        return None

    (consumer,) = app.consumers.values()

    @consumer.command("do", on="Thing", retry=retry)
    def to_do(event: Event[dict[str, Any]]) -> Do:
        return Do(event.id_text, event.value)

    worker = await stage.ready(app)
    await stage.send(consumer.topics[0], Sent("e1"), Sent("e2"))
    return worker


async def is_for_review(stage: Stage, worker: RunningWorker) -> None:
    """e1 waits for a person with its call, and e2 behind it."""
    await worker.until_counted("events", "do", "unknown", n=1)

    async def both_wait() -> bool:
        return await stage.failures() == [("e1", "unknown", "unknown_effect"), ("e2", "queued", "behind")]

    await worker.until(both_wait)
    tied = "SELECT e.state FROM tidegate.failure f JOIN tidegate.effect e ON e.id = f.effect_id AND f.state = 'unknown'"
    assert await stage.value(tied) == "unknown"
    assert worker.events("do", "failed") == worker.events("do", "completed") == 0


ENDS: dict[str, Answer] = {
    "refused": loses_then(refuses),
    "said to be refused": loses_then(says_that_it_refused),
    "exhausted": loses,
    "left": leaves,
}


@pytest.mark.parametrize("retry", [QUICK, QUEUED], ids=["in place", "in the queue"])
@pytest.mark.parametrize("end", ENDS)
async def test_what_would_be_dead_waits_for_a_person_while_its_call_is_in_doubt(
    stage: Stage, topic: Topic, end: str, retry: RetryPolicy
) -> None:
    worker = await charging(stage, topic, Service(ENDS[end]), retry)
    await is_for_review(stage, worker)


async def test_a_handler_that_gives_up_behind_a_doubt_is_for_a_person_too(stage: Stage, topic: Topic) -> None:
    service = Service(loses_then(refuses))
    worker = await charging(stage, topic, service, says=Dead(Reason.REJECTED, "the card was refused"))
    await is_for_review(stage, worker)
    assert "the card was refused" in await stage.value("SELECT message FROM tidegate.failure WHERE state = 'unknown'")


@pytest.mark.parametrize("retry", [QUICK, QUEUED], ids=["in place", "in the queue"])
async def test_a_doubt_outlasts_attempts_that_never_come_to_their_call(
    stage: Stage, topic: Topic, retry: RetryPolicy
) -> None:
    def wrong(n: int) -> None:
        if n > 1:
            raise ValueError("the order is gone")

    worker = await charging(stage, topic, Service(loses, before=wrong), retry)
    await is_for_review(stage, worker)


async def test_a_queued_row_names_its_call_that_is_in_doubt(stage: Stage, topic: Topic) -> None:
    far = RetryPolicy(attempts_max=3, base_s=0.001, cap_s=3600.0, age_max_s=7200.0)

    def wrong(n: int) -> None:
        if n > 1:
            raise RetryLater("tomorrow", after_s=1800.0)

    worker = await charging(stage, topic, Service(loses, before=wrong), far)
    await worker.until_counted("parked", "do", n=2)
    tied = "SELECT f.state FROM tidegate.failure f JOIN tidegate.effect e ON e.id = f.effect_id"
    assert await stage.rows(tied) == [("queued",)]


@pytest.mark.parametrize("retry", [QUICK, QUEUED], ids=["in place", "in the queue"])
async def test_what_is_known_by_then_is_no_doubt(stage: Stage, topic: Topic, retry: RetryPolicy) -> None:
    """The first call's answer was lost, the second one's was not, and then the event fails by itself."""

    def wrong() -> None:
        raise ValueError("no such order")

    worker = await charging(stage, topic, Service(loses_then(answers), behind=wrong), retry)
    await worker.until_counted("dead", "do", "rejected", n=1)
    await worker.until_counted("events", "do", "completed", n=1)
    assert await stage.value("SELECT state FROM tidegate.effect") == "completed"


async def test_a_call_that_was_surely_not_done_is_no_doubt(stage: Stage, topic: Topic) -> None:
    worker = await charging(stage, topic, Service(refuses))
    await worker.until_counted("events", "do", "failed", n=1)
    await worker.until_counted("events", "do", "completed", n=1)
    assert await stage.value("SELECT state FROM tidegate.effect") == "failed"


WORDS: dict[str, tuple[Verb, dict[str, Any]]] = {
    "done": (Verb.DONE, {"result": {"from": "a person"}}),
    "not done, same key": (Verb.NOT_DONE, {"same_key": True}),
    "not done, new key": (Verb.NOT_DONE, {"same_key": False}),
    "discarded": (Verb.DISCARD, {}),
}


@pytest.mark.parametrize("word", WORDS)
async def test_a_persons_word_ends_it(stage: Stage, topic: Topic, word: str) -> None:
    service = Service(loses_then(refuses))
    worker = await charging(stage, topic, service)
    await is_for_review(stage, worker)
    service.answer = answers
    verb, more = WORDS[word]
    await say(stage, verb, "e1", **more)
    await worker.until_counted("events", "do", "completed", n=1 if verb is Verb.DISCARD else 2)
    assert await stage.failures() == ([("e1", "discarded", "unknown_effect")] if verb is Verb.DISCARD else [])
    asked = service.keys[2:]
    if verb is not Verb.NOT_DONE:
        assert asked == []
        assert service.results == ([{"from": "a person"}] if verb is Verb.DONE else [])
    else:
        assert len(asked) == 1
        assert (asked[0] == service.keys[0]) is more["same_key"]


async def test_what_a_person_found_not_done_dies_like_any_other(stage: Stage, topic: Topic) -> None:
    """The call is surely not done by then, and refused anew: the event is dead, and its key goes on."""
    worker = await charging(stage, topic, Service(loses_then(refuses)))
    await is_for_review(stage, worker)
    await say(stage, Verb.NOT_DONE, "e1", same_key=True)
    await worker.until_counted("events", "do", "failed", n=1)
    await worker.until_counted("events", "do", "completed", n=1)
    assert await stage.value("SELECT state FROM tidegate.effect") == "failed"
