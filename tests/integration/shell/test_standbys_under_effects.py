"""`tidegate check` on a server with a real standby: under effects, one that follows asynchronously is a danger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from pathlib import Path

import asyncpg
import pytest

from tests.services import database
from tests.services.postgres import OwnServer
from tests.services.topics import Topic
from tests.support.cli import tidegate

APP = """
from dataclasses import dataclass
from tidegate.consumers import App, Context, Event, Json, header, review

app = App("shop", owner="shop-team")
orders = app.consumer({consumer!r}, topics=[{topic!r}], codec=Json(), event_id=header("id"))
{effect}

@dataclass
class Bill:
    id: str

@app.handler(Bill)
async def bill(command: Bill, ctx: Context) -> None: ...

@orders.command("bill", on="Thing")
def to_bill(event: Event[dict]) -> Bill:
    return Bill(event.id_text)
"""

EFFECT = 'app.effect("charge", rule=review(), deadline_s=1)'
FOLLOWS = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
WITHIN_S = 30.0


@pytest.fixture
def servers() -> Generator[tuple[OwnServer, OwnServer]]:
    """A server, and its standby, which does not run yet."""
    first = OwnServer()
    first.start()
    second = OwnServer(of=first)
    yield first, second
    second.remove()
    first.remove()


async def until_it_follows(url: str, state: str) -> None:
    give_up_s = time.monotonic() + WITHIN_S
    conn = await asyncpg.connect(url)
    try:
        while await conn.fetchval(FOLLOWS) != state:
            assert time.monotonic() < give_up_s, f"the standby is not {state}"
            await asyncio.sleep(0.05)
    finally:
        await conn.close()


async def test_a_standby_that_follows_asynchronously_is_a_danger_to_effects(
    servers: tuple[OwnServer, OwnServer], tmp_path: Path, kafka_bootstrap: str, topic: Topic
) -> None:
    """A failover to it forgets the newest intents, and their calls are made again without anybody knowing."""
    (server, standby), name = servers, topic(partitions=1)
    consumer = f"c-{name}"[:80]
    topic(partitions=1, name=f"{name}.{consumer}.dlq")
    variables = {
        "TIDEGATE_APP": "shop:app",
        "TIDEGATE_DATABASE_URL": server.url,
        "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
    }

    def warnings(effect: str = EFFECT, **more: str) -> list[str]:
        (tmp_path / "shop.py").write_text(APP.format(consumer=consumer, topic=name, effect=effect))
        ended = tidegate("check", cwd=tmp_path, variables={**variables, **more})
        assert ended.code == 0, ended.err
        return [line for line in ended.err.splitlines() if "calls of effects" in line]

    (tmp_path / "shop.py").write_text(APP.format(consumer=consumer, topic=name, effect=EFFECT))
    assert tidegate("migrate", cwd=tmp_path, variables=variables).code == 0
    assert warnings() == []
    standby.start()
    await until_it_follows(server.url, "async")
    (said,) = warnings()
    assert "follows asynchronously" in said
    assert "synchronous_standby_names" in said
    assert warnings(effect="") == []

    database.execute(
        server.url,
        "CREATE ROLE app LOGIN",
        "GRANT USAGE ON SCHEMA tidegate TO app",
        "GRANT SELECT ON ALL TABLES IN SCHEMA tidegate TO app",
    )
    (said,) = warnings(TIDEGATE_DATABASE_URL=server.url.replace("postgres@", "app@"))
    assert "GRANT pg_read_all_stats" in said

    database.execute(server.url, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
    await until_it_follows(server.url, "sync")
    assert warnings() == []
