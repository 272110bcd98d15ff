"""The database is put back to an earlier copy under a consumer that calls: nothing is called twice unknowingly."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.worker.test_effects import RULES, charging
from tests.services.topics import Topic
from tests.support.provider import Provider, provider
from tests.support.running import Sent, Stage
from tidegate.consumers.cli import restoring
from tidegate.consumers.cli.access import access_to
from tidegate.consumers.layers import load

EVENTS = 1_000
KNOWN = 100
"""Of these the copy knows."""

TABLES = ("effect", "claim_1", "checkpoint", "failure", "parked_key", "fence")


@pytest.fixture
async def service() -> AsyncIterator[Provider]:
    async with provider() as running:
        yield running


async def copy(stage: Stage) -> None:
    """Last night's backup, of everything that knows what was done."""
    await stage.execute(*(f"CREATE TABLE public.old_{name} AS SELECT * FROM tidegate.{name}" for name in TABLES))


async def put_back(stage: Stage) -> None:
    """And it is what there is now; fences keep their epochs, as a standby's would."""
    for name in TABLES[:-1]:
        await stage.execute(
            f"DELETE FROM tidegate.{name}",
            f"INSERT INTO tidegate.{name} OVERRIDING SYSTEM VALUE SELECT * FROM public.old_{name}",
        )
    await stage.execute(
        "UPDATE tidegate.fence f SET kafka_offset = o.kafka_offset FROM public.old_fence o"
        " WHERE o.partition = f.partition"
    )


async def declare_restored(stage: Stage, consumer: str) -> None:
    """`tidegate restored`."""
    environment = {"TIDEGATE_DATABASE_URL": stage.url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": stage.bootstrap}
    asked = access_to(load(environment).settings, None)
    await restoring.declare(asked, consumer, await restoring.look(asked, consumer), "back to the copy")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("rule", ["key", "probe", "review"])
async def test_a_thousand_effects_and_a_restore_double_none(
    stage: Stage, topic: Topic, service: Provider, rule: str
) -> None:
    """The service is the judge: every operation once. What the copy forgot goes by its key, is probed, or reviewed."""
    service.honours_keys = rule == "key"
    name = topic(partitions=2)
    topic(partitions=1, name=f"{name}.told")
    app = charging(name, service, RULES[rule], deadline_s=60.0, call_s=30.0)  # a slow machine is no silent provider
    sent = [Sent(f"o{n}", key=b"%d" % n, partition=n % 2) for n in range(EVENTS)]
    worker = await stage.start(app)
    await stage.send(name, *sent[:KNOWN])
    await worker.until_counted("events", "bill", "completed", n=KNOWN)
    assert await worker.stop() == 0
    await copy(stage)
    worker = await stage.start(app)
    await stage.send(name, *sent[KNOWN:])
    await worker.until(lambda: worker.events("bill", "completed") == EVENTS - KNOWN, patience_s=60)
    assert await worker.stop() == 0
    assert service.done == {f"o{n}": 1 for n in range(EVENTS)}
    before = sum(service.requests.values())
    await put_back(stage)
    await declare_restored(stage, worker.consumer)
    worker = await stage.start(app)
    ended = "unknown" if rule == "review" else "completed"
    await worker.until(lambda: worker.events("bill", ended) == EVENTS - KNOWN, patience_s=60)
    await stage.send(name, Sent("new", key=b"new"))
    await worker.until(lambda: service.done["new"] == 1)
    assert not service.doubled
    assert sum(service.done.values()) == EVENTS + 1
    again = sum(service.requests.values()) - before - 1
    assert again == (EVENTS - KNOWN if rule == "key" else 0)
    assert len(service.probes) == (EVENTS - KNOWN if rule == "probe" else 0)
