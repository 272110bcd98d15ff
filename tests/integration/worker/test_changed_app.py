"""An app that changes: a handler more, a handler less, one with another name. What it left stays until it is said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.services.topics import Topic
from tests.support.cli import Ended, tidegate
from tests.support.desk import Desk, Do, at_desk
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import App, Context, RetryPolicy, review
from tidegate.inbox.errors import ConfigurationError

QUICK = RetryPolicy(attempts_max=2, base_s=0.001, cap_s=0.002)

SHOP = """
from tests.integration.worker.test_changed_app import shop
app = shop({topic!r}, {consumer!r}, {handlers!r})
"""


async def refuse_bad(command: Do, ctx: Context) -> None:
    """What the first release of the new handler could not do."""
    if command.says.get("bad"):
        raise ValueError("not yet")


def shop(topic: str, consumer: str, handlers: tuple[str, ...] = (), **options: Any) -> App:
    """A projection, and these commands besides."""
    app = reader(topic, consumer=consumer)
    app.consumers[consumer].projection("effects")(note)
    for name in handlers:
        at_desk(app, refuse_bad, name, retry=QUICK, **options)
    return app


async def test_a_rolled_back_release_starts_and_leaves_what_the_new_one_left(stage: Stage, topic: Topic) -> None:
    """v2 has a new handler and a dead row of it; v1 starts, warns and touches nothing; v2 goes on where it was."""
    await table_of(stage)
    name = topic(partitions=1)
    name_of = "c-" + name[-20:]
    await stage.send(name, Sent("a"), Sent("b", {"bad": True}), Sent("c"))
    v2 = await stage.start(shop(name, name_of, ("bill",)))
    await v2.until_counted("events", "bill", "completed", n=2)
    await v2.until_counted("dead", "bill", "rejected", n=1)
    await v2.until_counted("events", "effects", "completed", n=3)
    assert await v2.stop() == 0
    assert (await stage.replay()).replayed
    left = await everything_of(stage, "bill")
    await stage.send(name, Sent("d"))
    v1 = await stage.start(shop(name, name_of))
    await v1.until_counted("events", "effects", "completed", n=1)
    assert v1.metrics.value("handlers_gone") == 1
    assert await v1.stop() == 0
    assert await everything_of(stage, "bill") == left
    again = shop(name, name_of)
    desk = at_desk(again, None, "bill", retry=QUICK)
    v2 = await stage.start(again)
    await v2.until(lambda: sorted(desk.went) == ["b", "d"])
    await v2.until_counted("events", "bill", "completed", n=2)
    assert v2.metrics.value("handlers_gone") == 0
    assert await stage.failures("bill") == []
    assert await stage.checkpoints("bill") == {0: 4}


async def everything_of(stage: Stage, handler: str) -> list[Any]:
    """Its rows, its lanes, its claims and its checkpoint; whether that is attached is the worker's to say."""
    of = f"(SELECT id FROM tidegate.handler WHERE name = '{handler}')"
    return [
        await stage.rows(f"SELECT * FROM tidegate.failure WHERE handler = {of} ORDER BY id"),
        await stage.rows(f"SELECT * FROM tidegate.parked_key WHERE handler = {of} ORDER BY key_hash"),
        await stage.rows(f"SELECT * FROM tidegate.claim_1 WHERE handler = {of} ORDER BY event_id"),
        await stage.checkpoints(handler),
    ]


async def test_a_renamed_handler_handles_nothing_twice_also_after_a_rollback(stage: Stage, topic: Topic) -> None:
    """Claims, rows and checkpoints belong to the number, whichever of its names the running release knows."""
    await table_of(stage)
    name = topic(partitions=1)
    name_of = "c-" + name[-20:]
    desks: list[Desk] = []

    async def run(handler: str, ids: list[str], **options: Any) -> None:
        app = shop(name, name_of)
        desks.append(at_desk(app, None, handler, retry=QUICK, **options))
        await stage.send(name, *[Sent(id_) for id_ in ids])
        worker = await stage.start(app)
        await worker.until(lambda: desks[-1].went[-len(ids) :] == ids)
        assert await worker.stop() == 0

    await run("bill", ["a", "b"])
    await run("invoice", ["c"], renamed_from="bill")
    await run("bill", ["d"])
    await run("invoice", ["e"], renamed_from="bill")
    await run("invoice", ["f"])
    assert [desk.went for desk in desks] == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]
    assert await stage.value("SELECT count(*) FROM tidegate.handler WHERE name IN ('bill', 'invoice')") == 1


async def test_a_renaming_that_would_make_one_of_two_is_refused(stage: Stage, topic: Topic) -> None:
    name = topic(partitions=1)
    both = await stage.ready(shop(name, "c-" + name[-20:], ("bill",)))
    assert await both.stop() == 0
    app = shop(name, "c-" + name[-20:])
    at_desk(app, None, "invoice")
    worker = await stage.ready(app)
    assert await worker.stop() == 0
    app = shop(name, "c-" + name[-20:])
    at_desk(app, None, "invoice", renamed_from="bill")
    error = await (await stage.start(app)).ends()
    assert isinstance(error, ConfigurationError)
    assert "renamed from 'bill'" in str(error)
    assert "tidegate handlers discard bill" in str(error)


@pytest.mark.parametrize("renamed_from", ["effects", "other"])
def test_a_name_that_another_handler_has_or_was_called_is_no_former_name(renamed_from: str) -> None:
    app = shop("orders", "c", ("first",), renamed_from="other")
    at_desk(app, None, "second", renamed_from=renamed_from)
    assert any("is the name of another handler too" in problem.what for problem in app.problems())


class Run(Protocol):
    """The command line on an app with these handlers."""

    def __call__(self, *arguments: str, handlers: tuple[str, ...] = ()) -> Ended: ...


def command_line(stage: Stage, topic: str, consumer: str, folder: Path) -> Run:
    def run(*arguments: str, handlers: tuple[str, ...] = ()) -> Ended:
        (folder / "shop.py").write_text(SHOP.format(topic=topic, consumer=consumer, handlers=handlers))
        variables = {
            "TIDEGATE_APP": "shop:app",
            "TIDEGATE_DATABASE_URL": stage.url,
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": stage.bootstrap,
            "PYTHONPATH": f"{folder}:.",
        }
        return tidegate(*arguments, variables=variables)

    return run


async def test_what_a_gone_handler_left_is_discarded_on_a_word_and_check_is_content(
    stage: Stage, topic: Topic, tmp_path: Path
) -> None:
    """`check` names the three ways; a dry run says what is there; --yes discards, with an audit line."""
    await table_of(stage)
    name = topic(partitions=1)
    name_of = "c-" + name[-20:]
    topic(partitions=1, name=f"{name}.{name_of}.dlq")
    await stage.send(name, Sent("a"), Sent("b", {"bad": True}, key=b"x"), Sent("c", {"bad": True}, key=b"y"))
    worker = await stage.start(shop(name, name_of, ("bill",)))
    await worker.until_counted("dead", "bill", "rejected", n=2)
    await worker.until_counted("events", "effects", "completed", n=3)
    assert await worker.stop() == 0
    await stage.replay(1)

    run = command_line(stage, name, name_of, tmp_path)
    checked = await asyncio.to_thread(run, "check")
    assert checked.code == 78
    for said in (
        "handler 'bill'",
        "1 dead rows, 1 queued rows",
        "renamed_from='bill'",
        "tidegate handlers discard bill",
    ):
        assert said in checked.err
    looked = await asyncio.to_thread(run, "handlers", "discard", "bill", "--reason", "gone")
    assert "1 dead rows, 1 queued rows" in looked.out
    assert "--yes" in looked.err
    assert [state for _, state, _ in await stage.failures("bill")] == ["queued", "dead"]
    words = ("handlers", "discard", "bill", "--yes", "--reason", "gone")
    refused = await asyncio.to_thread(lambda: run(*words, handlers=("bill",)))
    assert refused.code == 78
    done = await asyncio.to_thread(run, "handlers", "discard", "bill", "--yes", "--reason", "no bills any more")
    assert done.code == 0, done.err
    assert [state for _, state, _ in await stage.failures("bill")] == ["discarded", "discarded"]
    assert await stage.value("SELECT sum(waiting) FROM tidegate.parked_key") == 0
    lines = await stage.rows(
        "SELECT details->>'why' FROM tidegate.audit WHERE act = 'discard_handler' AND handler = 'bill'"
    )
    assert lines == [("no bills any more",)] * 2
    assert (await asyncio.to_thread(run, "check")).code == 0
    assert (await asyncio.to_thread(run, "handlers", "discard", "bill", "--yes", "--reason", "gone")).code == 78
    listed = await asyncio.to_thread(run, "handlers", "list")
    assert "effects" in listed.out
    assert "bill" not in listed.out


async def test_an_effect_that_is_gone_while_calls_are_open_fails_the_check(
    stage: Stage, topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rule says how those calls end: `check` fails, `run` starts and warns."""
    await table_of(stage)
    name = topic(partitions=1)
    name_of = "c-" + name[-20:]
    topic(partitions=1, name=f"{name}.{name_of}.dlq")
    app = shop(name, name_of)
    app.effect("send", rule=review(), deadline_s=5)

    async def lose(command: Do, ctx: Context) -> None:
        async with ctx.effect("send"):
            raise RuntimeError("whoever knows")

    at_desk(app, lose, "bill", retry=QUICK)
    await stage.send(name, Sent("a"))
    worker = await stage.start(app)
    await worker.until(lambda: waits_for_review(stage))
    assert await worker.stop() == 0
    without = shop(name, name_of)
    at_desk(without, None, "bill", retry=QUICK)
    worker = await stage.ready(without)
    assert await worker.stop() == 0
    assert "effects_gone" in capsys.readouterr().out
    checked = await asyncio.to_thread(command_line(stage, name, name_of, tmp_path), "check", handlers=("bill",))
    assert checked.code == 78
    assert "effect 'send'" in checked.err
    assert "the end of 1 calls" in checked.err


async def waits_for_review(stage: Stage) -> bool:
    return [state for _, state, _ in await stage.failures("bill")] == ["unknown"]
