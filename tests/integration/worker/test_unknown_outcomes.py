"""From a call without an answer to the event's good end: through a person's word, and through the service's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.services.topics import Topic
from tests.support.desk import Do, at_desk, letters
from tests.support.reviewing import say
from tests.support.running import RunningWorker, Sent, Stage, reader
from tidegate.consumers import App, Context
from tidegate.dlq.review import Verb
from tidegate.inbox.effect_rules import Asked, Done, EffectRule, NotDone, probe, review


@dataclass
class Bank:
    """Loses answers for as long as it is told to."""

    answers: bool = False
    calls: list[str] = field(default_factory=list[str])
    results: list[Any] = field(default_factory=list[Any])
    says: Done | NotDone = field(default_factory=NotDone)


def charging(app: App, bank: Bank, rule: EffectRule) -> None:
    """A command that charges at the bank and publishes what came of it."""
    app.effect("charge", rule=rule, deadline_s=0.2, margin_s=0.1, provider="bank")

    async def act(command: Do, ctx: Context) -> None:
        async with ctx.effect("charge") as effect:
            if not effect.is_done:
                bank.calls.append(effect.key)
                if not bank.answers:
                    raise TimeoutError
                effect.complete({"from": "call"})
        bank.results.append(effect.result)

    at_desk(app, act)


@pytest.fixture
def bank() -> Bank:
    """A bank that loses every answer at first."""
    return Bank()


async def unknown(stage: Stage, topic: Topic, bank: Bank) -> RunningWorker:
    """A worker with one event of unknown outcome, and another one behind it."""
    app = reader(topic(partitions=1))
    letters(app, topic)
    charging(app, bank, review())
    worker = await stage.ready(app)
    await stage.send(app.consumers[worker.consumer].topics[0], Sent("e1"), Sent("e2"))
    await worker.until_counted("events", "do", "unknown", n=1)
    await worker.until_counted("parked", "do", n=1)
    bank.answers = True
    return worker


async def test_done_by_a_persons_word_runs_again_with_the_result_and_makes_no_call(
    stage: Stage, topic: Topic, bank: Bank
) -> None:
    worker = await unknown(stage, topic, bank)
    await say(stage, Verb.DONE, "e1", result={"from": "a person"}, external_id="c-1")
    await worker.until_counted("events", "do", "completed", n=2)
    assert bank.results == [{"from": "a person"}, {"from": "call"}], "in the order of the key"
    assert len(bank.calls) == 2, "one for each event, and none for the repeat"
    assert await stage.value("SELECT count(*) FROM tidegate.claim_1") == 2
    assert await stage.failures() == []


@pytest.mark.parametrize("same_key", [True, False])
async def test_not_done_by_a_persons_word_calls_again(stage: Stage, topic: Topic, bank: Bank, same_key: bool) -> None:
    worker = await unknown(stage, topic, bank)
    await say(stage, Verb.NOT_DONE, "e1", same_key=same_key)
    await worker.until_counted("events", "do", "completed", n=2)
    first, again, _ = bank.calls
    assert (first == again) is same_key


async def test_what_is_discarded_lets_its_key_go_on(stage: Stage, topic: Topic, bank: Bank) -> None:
    worker = await unknown(stage, topic, bank)
    await say(stage, Verb.DISCARD, "e1")
    await worker.until_counted("events", "do", "completed", n=1)
    assert [row[:2] for row in await stage.failures()] == [("e1", "discarded")]
    assert len(bank.calls) == 2


async def test_figures_say_what_waits(stage: Stage, topic: Topic, bank: Bank) -> None:
    worker = await unknown(stage, topic, bank)
    await worker.until_counted("events_unknown", n=1)
    await worker.until_counted("effects_unknown", n=1)
    await say(stage, Verb.DISCARD, "e1")
    await worker.until(lambda: worker.metrics.value("events_unknown") == 0)


async def test_a_call_whose_service_can_be_asked_needs_no_person(stage: Stage, topic: Topic, bank: Bank) -> None:
    """Its service is asked, and the event ends with what it says."""

    async def ask(asked: Asked) -> Done | NotDone:
        return bank.says

    bank.says = Done({"from": "the bank"}, "c-1")
    app = reader(topic(partitions=1))
    letters(app, topic)
    charging(app, bank, probe(ask))
    worker = await stage.ready(app)
    await stage.send(app.consumers[worker.consumer].topics[0], Sent("e1"))
    await worker.until_counted("events", "do", "completed", n=1)
    assert bank.results == [{"from": "the bank"}]
    assert len(bank.calls) == 1
