"""A consumer that the app no longer has: what it left is seen, and discarded on a word; other apps' are not missed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.test_changed_app import QUICK
from tests.services.topics import Topic
from tests.support.cli import Ended, tidegate
from tests.support.desk import Desk, Do, at_desk
from tests.support.running import ID, Sent, Stage
from tidegate.consumers import App, Context, Json, header, review
from tidegate.consumers.identity import os_user

MODULE = """
from tests.integration.worker.test_gone_consumers import shop
app, _ = shop({topic!r}, {consumer!r}, {name!r})
"""
POLICY = """
[[grant]]
who = ["{who}"]
role = "admin"
tenants = "*"
consumers = ["new"]
"""


async def leave_something(command: Do, ctx: Context) -> None:
    """A dead event, or one with a call that nobody knows the end of."""
    if command.says.get("bad"):
        raise ValueError("not yet")
    if command.says.get("call"):
        async with ctx.effect("send"):
            raise RuntimeError("whoever knows")


def shop(topic: str, consumer: str, name: str = "tests") -> tuple[App, Desk]:
    """An app with this consumer only."""
    app = App(name, owner="tests")
    app.effect("send", rule=review(), deadline_s=1, margin_s=0.1)
    app.consumer(consumer, topics=[topic], codec=Json(), event_id=header(ID))
    return app, at_desk(app, leave_something, "bill", retry=QUICK)


class World:
    """A topic of events, `old` that left something of every kind, and `new` that the app has in its place."""

    def __init__(self, stage: Stage, topic: str, folder: Path) -> None:
        self.stage, self.topic, self.folder = stage, topic, folder

    async def old_leaves_something(self) -> None:
        """Its dead-letter topic is not there, so nothing of it is sent."""
        await self.stage.send(
            self.topic,
            Sent("a", key=b"1"), Sent("b", {"bad": True}, key=b"2"), Sent("c", {"call": True}, key=b"3"),
            Sent("d", b"no json", key=b"4"),
        )  # fmt: skip
        worker = await self.stage.start(shop(self.topic, "old")[0])
        await worker.until(self.all_is_left)
        assert await worker.stop() == 0

    async def all_is_left(self) -> bool:
        return await self.left() == LEFT

    async def left(self) -> dict[str, Any]:
        """What `old` has in the database."""
        mine = "FROM tidegate.handler h WHERE h.consumer = 'old'"
        states = "SELECT h.name, f.state FROM tidegate.failure f JOIN tidegate.handler h ON h.id = f.handler"
        return {
            "rows": await self.stage.rows(f"{states} WHERE h.consumer = 'old' ORDER BY f.record_offset"),
            "unsent": await self.stage.value(
                "SELECT count(*) FROM tidegate.outbox WHERE consumer = 'old' AND published_at IS NULL"
            ),
            "calls": await self.stage.value(
                "SELECT count(*) FROM tidegate.effect WHERE consumer = 'old' AND state = 'unknown'"
            ),
            "claims": await self.stage.value(
                f"SELECT count(*) FROM tidegate.claim_1 WHERE handler IN (SELECT h.id {mine})"
            ),
        }

    async def run(self, *arguments: str, consumer: str = "new", name: str = "tests", **variables: str) -> Ended:
        """The command line on an app with this one consumer."""
        (self.folder / "gone_shop.py").write_text(MODULE.format(topic=self.topic, consumer=consumer, name=name))
        settings = {
            "TIDEGATE_APP": "gone_shop:app",
            "TIDEGATE_DATABASE_URL": self.stage.url,
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": self.stage.bootstrap,
            "PYTHONPATH": f"{self.folder}:.",
        }
        return await asyncio.to_thread(tidegate, *arguments, variables=settings | variables)


LEFT = {"rows": [("bill", "dead"), ("bill", "unknown"), ("", "dead")], "unsent": 2, "calls": 1, "claims": 1}
GONE = "consumer 'old' of app 'tests'"
SAID = "2 dead rows, 1 unknown rows, checkpoints in 1 partitions, 2 records that were not sent, 1 calls"


@pytest.fixture
async def world(stage: Stage, topic: Topic, tmp_path: Path) -> World:
    """All of that."""
    name = topic(partitions=1)
    for consumer in ("new", "other"):
        topic(partitions=1, name=f"{name}.{consumer}.dlq")
    world = World(stage, name, tmp_path)
    await world.old_leaves_something()
    return world


async def test_a_worker_of_an_app_without_a_consumer_starts_warns_and_touches_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = await world.stage.ready(shop(world.topic, "new")[0])
    assert worker.metrics.value("consumers_gone") == 1
    assert await worker.stop() == 0
    assert "consumers_gone" in capsys.readouterr().out
    assert await world.left() == LEFT
    back = await world.stage.ready(shop(world.topic, "old")[0])
    assert back.metrics.value("consumers_gone") == 1, "`new` is the one that is gone now"
    assert await back.stop() == 0


async def test_what_a_gone_consumer_left_fails_the_check_until_it_is_discarded_and_its_calls_are_ended(
    world: World,
) -> None:
    """`check` and `handlers list` name it; a dry run says what there is; --yes discards, with audit lines."""
    checked = await world.run("check")
    assert checked.code == 78
    assert f"{GONE}: the database knows it and the app no longer has it; it left {SAID}" in checked.err
    assert "`tidegate handlers discard --consumer old`" in checked.err
    listed = await world.run("handlers", "list")
    for said in ("consumer old, which the app no longer has", "(records without one)", "2 records that were not sent"):
        assert said in listed.out
    words = ("handlers", "discard", "--consumer", "old", "--reason", "moved")
    looked = await world.run(*words)
    assert (looked.code, SAID in looked.out, "--yes" in looked.err) == (0, True, True)
    assert await world.left() == LEFT
    assert (await world.run(*words, "--yes", consumer="old")).code == 78, "the app has it"
    done = await world.run(*words, "--yes")
    assert done.code == 0, done.err
    discarded = [("bill", "discarded"), ("bill", "discarded"), ("", "discarded")]
    assert await world.left() == {"rows": discarded, "unsent": 0, "calls": 1, "claims": 1}
    lines = await world.stage.rows(
        "SELECT DISTINCT act, consumer, details->>'why' FROM tidegate.audit WHERE allowed ORDER BY act"
    )
    assert lines == [("discard_handler", "old", "moved")]
    checked = await world.run("check")
    assert (checked.code, "1 calls whose end is not known" in checked.err) == (78, True), "no word was said on its call"
    number = await world.stage.value("SELECT id FROM tidegate.effect")
    ended = await world.run("review", "resolve", f"effect:{number}", "--discard", "--reason", "asked them")
    assert ended.code == 0, ended.err
    assert (await world.run("check")).code == 0
    assert (await world.run(*words, "--yes")).code == 78, "nothing is left to discard"
    again, desk = shop(world.topic, "old")
    worker = await world.stage.start(again)
    await world.stage.send(world.topic, Sent("e"))
    await worker.until(lambda: desk.went == ["e"])


async def test_one_handler_of_a_gone_consumer_is_discarded_by_its_name(world: World) -> None:
    done = await world.run("handlers", "discard", "bill", "--consumer", "old", "--reason", "moved", "--yes")
    assert done.code == 0, done.err
    left = await world.left()
    assert left["rows"] == [("bill", "discarded"), ("bill", "discarded"), ("", "dead")]
    assert left["unsent"] == 2
    assert f"{GONE}: the database knows it" in (await world.run("check")).err


async def test_a_consumer_of_another_app_in_the_same_schema_is_not_missed(world: World) -> None:
    """Whose it is says the app that started it last: here `tests`, and then the one that took it over."""
    assert (await world.run("check", consumer="other", name="others")).code == 0
    listed = await world.run("handlers", "list", consumer="other", name="others")
    assert "old" not in listed.out
    words = ("handlers", "discard", "--consumer", "old", "--reason", "moved", "--yes")
    assert (await world.run(*words, consumer="other", name="others")).code == 78
    assert await world.left() == LEFT
    worker = await world.stage.ready(shop(world.topic, "old", "others")[0])
    assert await worker.stop() == 0
    assert (await world.run("check")).code == 0
    assert "consumer 'old' of app 'others'" in (await world.run("check", consumer="other", name="others")).err


async def test_a_gone_consumer_is_discarded_and_listed_only_within_reach(world: World) -> None:
    policy = world.folder / "policy.toml"
    policy.write_text(POLICY.format(who=os_user()))
    mine = {"TIDEGATE_PERMISSION_POLICY_FILE": str(policy)}
    words = ("handlers", "discard", "--consumer", "old", "--reason", "moved", "--yes")
    assert (await world.run(*words, **mine)).code == 77
    assert await world.left() == LEFT
    lines = await world.stage.rows("SELECT act, consumer, handler, tenant FROM tidegate.audit WHERE NOT allowed")
    assert lines == [("discard_handler", "old", "*", "*")]
    listed = await world.run("handlers", "list", **mine)
    assert (listed.code, "old" in listed.out) == (0, False)
    assert (await world.run("handlers", "list", "--consumer", "old", **mine)).code == 78
