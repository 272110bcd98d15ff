"""An event that is skipped is claimed, counted, and logged once with the reason."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from tests.integration.worker.test_parking import LATER
from tests.services.topics import Topic
from tests.support.desk import Do, letters, write
from tests.support.running import Sent, Stage, reader, table_of
from tidegate.consumers import Context, Event, Skipped, TransientError, skip_on


async def test_a_skip_is_logged_once_with_its_reason_whoever_said_it_and_whichever_way_it_went(
    stage: Stage, topic: Topic
) -> None:
    """By the handler, with a transaction or without, or by a rule; on the fast way or the slow one. What the trigger
    makes nothing of is counted alone, and a repeat is none.

    Case: B38
    Parts: real (PostgreSQL, Kafka)
    Red when: completing.py `_count` logs no skip
    """
    await table_of(stage)
    name, seen = topic(partitions=1), set[str]()
    app = reader(name)
    letters(app, topic)
    (consumer,) = app.consumers.values()

    @app.handler(Do)
    async def do(command: Do, ctx: Context) -> object:
        if command.says.get("later") and command.id not in seen:
            seen.add(command.id)
            raise TransientError("later")
        if command.says.get("rule"):
            raise KeyError("nobody asked")
        if command.says.get("tx"):
            await write(command, ctx)
        return Skipped(f"{command.id} is nobody's")

    @consumer.command("do", on="Thing", retry=LATER, rules=[skip_on(KeyError, because="the rule says so")])
    def to_do(event: Event[dict[str, Any]]) -> Do | None:
        return None if event.value.get("nothing") else Do(event.id_text, event.value)

    says = {
        "plain": {}, "tx": {"tx": 1}, "rule": {"rule": 1}, "nothing": {"nothing": 1},
        "late": {"later": 1}, "late-tx": {"later": 1, "tx": 1}, "late-rule": {"later": 1, "rule": 1},
    }  # fmt: skip
    with capture_logs() as lines:
        worker = await stage.ready(app)
        await stage.send(name, *[Sent(id_, value, key=id_.encode()) for id_, value in says.items()])
        await worker.until_counted("events", "do", "skipped", n=len(says))
        await stage.send(name, Sent("plain", key=b"plain"))
        await worker.until_counted("events", "do", "skipped_duplicate", n=1)
    told = sorted(
        (line["event_id"], line["why"], line["attempt"]) for line in lines if line["event"] == "event_skipped"
    )
    assert told == [
        ("late", "late is nobody's", 2),
        ("late-rule", "the rule says so", 2),
        ("late-tx", "late-tx is nobody's", 2),
        ("plain", "plain is nobody's", 1),
        ("rule", "the rule says so", 1),
        ("tx", "tx is nobody's", 1),
    ]
    assert sorted(row[0] for row in await stage.rows("SELECT id FROM public.effect")) == ["late-tx", "tx"]
