"""A handler that becomes one of the other kind under its name: refused before anything is handled, in every way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.test_backfills import operator
from tests.integration.worker.test_changed_app import QUICK, refuse_bad
from tests.services.topics import Topic
from tests.support.cli import tidegate
from tests.support.desk import at_desk
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import App
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.handlers import Kind

OTHER: dict[Kind, Kind] = {"command": "projection", "projection": "command"}

APP = """
from tests.integration.worker.test_changed_kinds import shop
app = shop({topic!r}, {consumer!r}, {kind!r}, {name!r}, **{options!r})
"""


def shop(topic: str, consumer: str, kind: Kind, name: str = "bill", **options: Any) -> App:
    """One handler, of this kind; a projection writes rows of `public.effect`."""
    app = reader(topic, consumer=consumer)
    if kind == "command":
        at_desk(app, refuse_bad, name, retry=QUICK, **options)
    else:
        app.consumers[consumer].projection(name, **options)(note)
    return app


async def ran(stage: Stage, name: str, consumer: str, kind: Kind) -> None:
    """Three events of history."""
    await table_of(stage)
    await stage.send(name, Sent("a"), Sent("b"), Sent("c"))
    worker = await stage.start(shop(name, consumer, kind))
    await worker.until_counted("events", "bill", "completed", n=3)
    assert await worker.stop() == 0


async def everything(stage: Stage) -> list[Any]:
    tables = ("handler", "version", "checkpoint", "claim_1", "failure")
    known = [await stage.rows(f"SELECT * FROM tidegate.{table} ORDER BY 1, 2, 3") for table in tables]
    return [*known, await stage.rows("SELECT id FROM public.effect")]


@pytest.mark.parametrize("kind", OTHER)
async def test_a_handler_of_the_other_kind_does_not_start_under_its_name_and_touches_nothing(
    stage: Stage, topic: Topic, kind: Kind
) -> None:
    """Its claims are of versions that the other one never asks for: it would handle everything again."""
    name = topic(partitions=1)
    consumer = "c-" + name[-20:]
    await ran(stage, name, consumer, kind)
    before = await everything(stage)
    error = await (await stage.start(shop(name, consumer, OTHER[kind]))).ends()
    assert isinstance(error, ConfigurationError)
    for said in ("handler 'bill'", f"declares a {OTHER[kind]}", f"'bill' as a {kind}", "a name of its own"):
        assert said in str(error)
    assert await everything(stage) == before
    again = await stage.start(shop(name, consumer, kind))
    await stage.send(name, Sent("d"))
    await again.until_counted("events", "bill", "completed", n=1)
    assert again.events("bill", "skipped_duplicate") == 0


@pytest.mark.parametrize("kind", OTHER)
async def test_what_was_of_one_kind_is_not_renamed_into_the_other(stage: Stage, topic: Topic, kind: Kind) -> None:
    name = topic(partitions=1)
    consumer = "c-" + name[-20:]
    await ran(stage, name, consumer, kind)
    before = await everything(stage)
    error = await (await stage.start(shop(name, consumer, OTHER[kind], "invoice", renamed_from="bill"))).ends()
    assert isinstance(error, ConfigurationError)
    assert f"'bill' as a {kind}" in str(error)
    assert "without renamed_from=" in str(error)
    assert await everything(stage) == before


@pytest.mark.parametrize("kind", OTHER)
async def test_check_names_a_handler_of_the_other_kind_and_is_content_with_a_name_of_its_own(
    stage: Stage, topic: Topic, tmp_path: Path, kind: Kind
) -> None:
    """Under its old name, and renamed; under its own name the old one is gone, and is discarded."""
    name = topic(partitions=1)
    consumer = "c-" + name[-20:]
    topic(partitions=1, name=f"{name}.{consumer}.dlq")
    await ran(stage, name, consumer, kind)
    variables = {
        "TIDEGATE_APP": "billing:app",
        "TIDEGATE_DATABASE_URL": stage.url,
        "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": stage.bootstrap,
        "PYTHONPATH": f"{tmp_path}:.",
    }

    async def run(*arguments: str, handler: str = "bill", **options: Any) -> tuple[int, str]:
        text = APP.format(topic=name, consumer=consumer, kind=OTHER[kind], name=handler, options=options)
        (tmp_path / "billing.py").write_text(text)
        ended = await asyncio.to_thread(tidegate, *arguments, variables=variables)
        return ended.code, ended.err

    for code, err in (await run("check"), await run("check", handler="invoice", renamed_from="bill")):
        assert code == 78
        assert f"'bill' as a {kind}" in err
        assert f"tidegate handlers discard bill --consumer {consumer}" in err
    code, err = await run("check", handler="invoice")
    assert (code, "it left checkpoints in 1 partitions" in err) == (78, True), err
    assert await run("handlers", "discard", "bill", "--reason", "moved", "--yes", handler="invoice") == (0, "")
    assert (await run("check", handler="invoice"))[0] == 0
    assert (await run("check"))[0] == 78, "the number that was discarded is of its kind still"


async def test_a_backfill_is_not_done_by_a_handler_of_the_other_kind(stage: Stage, topic: Topic) -> None:
    """Neither begun nor gone on with: it asks the database as a start does, without being one."""
    name = topic(partitions=1, config={"retention.ms": "-1"})
    consumer = "c-" + name[-20:]
    await ran(stage, name, consumer, "command")
    async with operator(stage, shop(name, consumer, "command")) as who:
        begun = await who.backfiller.start(who.order("bill"))
    async with operator(stage, shop(name, consumer, "projection", only_if_newer=True)) as who:
        for refused in (who.plans("bill"), who.backfiller.start(who.order("bill"))):
            with pytest.raises(ConfigurationError, match="'bill' as a command"):
                await refused
        with pytest.raises(ConfigurationError, match=f"tidegate backfill abandon {begun.id}"):
            await who.goes_on(begun.id)
    assert await stage.value("SELECT count(*) FROM public.effect") == 0
