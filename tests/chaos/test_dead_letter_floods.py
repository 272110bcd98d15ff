"""What makes every event fail must not make a letter of every event: an outage of the database, then a bug."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.services.topics import Topic
from tests.support import running
from tests.support.cli import start
from tests.support.running import Sent, Stage

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

EVENTS: Final = 500
OUTAGE_S: Final = 60.0
LETTERS_MAX: Final = 20

APP: Final = """
import os
from dataclasses import dataclass
from sqlalchemy import text
from tidegate.consumers import App, BreakerPolicy, Context, Event, Json, header

app = App("shop", owner="shop-team")
orders = app.consumer("{consumer}", topics=["{topic}"], codec=Json(), event_id=header("id"))

@dataclass
class Bill:
    id: str
    key: str
    n: int

@app.handler(Bill)
async def bill(command: Bill, ctx: Context) -> None:
    await ctx.tx.execute(
        text("INSERT INTO public.bill (id, key, n) VALUES (:id, :key, :n)"),
        {{"id": command.id, "key": command.key, "n": command.n}},
    )
    if os.path.exists("bug"):
        raise ValueError("a bug")

@orders.command("bill", on="Thing", breaker=BreakerPolicy(row_max={letters_max}, retry_after_s=1.0))
def to_bill(event: Event[dict]) -> Bill:
    return Bill(event.id_text, event.value["key"], event.value["n"])
"""


class Shop:
    """An app on disk and its worker, in a process of its own."""

    def __init__(self, folder: Path, stage: Stage, name: str) -> None:
        self.folder, self.stage, self.topic = folder, stage, name
        self.log = folder / "worker.log"
        (folder / "shop.py").write_text(APP.format(consumer=name, topic=name, letters_max=LETTERS_MAX))
        self.process: subprocess.Popen[str] | None = None

    def start(self, port: int) -> None:
        variables = {
            "TIDEGATE_APP": "shop:app",
            "TIDEGATE_DATABASE_URL": self.stage.url,
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": self.stage.bootstrap,
            "TIDEGATE_HEALTH_PORT": str(port),
            "TIDEGATE_DLQ_CREATE_TOPICS": "true",
        }
        self.port = port
        self.process = start("run", log=self.log, variables=variables, cwd=self.folder)

    async def until(self, query: str, wanted: Any, within_s: float = 60.0) -> None:
        """Return once the first value of `query` is `wanted`."""
        deadline_s = time.monotonic() + within_s
        while (found := await self.stage.value(query)) != wanted:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3_000:]
            assert time.monotonic() < deadline_s, f"{found} instead of {wanted}; {self.log.read_text()[-3_000:]}"
            await asyncio.sleep(0.05)

    async def reasons(self) -> list[str]:
        """What /readyz says."""

        def ask() -> list[str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                    return list(json.loads(answer.read())["reasons"])
            except urllib.error.HTTPError as error:
                return list(json.loads(error.read())["reasons"])

        return await asyncio.to_thread(ask)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)


@pytest.fixture
async def stage(migrated_url: str, kafka_bootstrap: str) -> AsyncIterator[Stage]:
    """Where the worker runs."""
    async with running.stage(migrated_url, kafka_bootstrap) as built:
        await built.execute(
            "CREATE TABLE public.bill (place bigint GENERATED ALWAYS AS IDENTITY, id text, key text, n int)"
        )
        yield built


@pytest.fixture
def shop(tmp_path: Path, stage: Stage, topic: Topic) -> Iterator[Shop]:
    """The app."""
    made = Shop(tmp_path, stage, topic(partitions=2))
    yield made
    made.stop()


def orders(first: int, count: int) -> list[Sent]:
    """Events of fifty keys over both partitions."""
    return [
        Sent(f"o{n}", {"n": n, "key": f"k{n % 50}"}, key=b"k%d" % (n % 50), partition=n % 50 % 2)
        for n in range(first, first + count)
    ]


LETTERS: Final = "SELECT count(*) FROM tidegate.outbox WHERE kind = 'letter'"
OUT_OF_ORDER: Final = """
    SELECT count(*) FROM (SELECT n - lag(n) OVER (PARTITION BY key ORDER BY place) AS step FROM public.bill) s
     WHERE step < 0
"""


async def test_neither_an_outage_nor_a_bug_floods_the_dead_letters(shop: Shop, unused_tcp_port: int) -> None:
    """A minute without the database while 500 records arrive: no letter, nothing out of order. Then every event fails:
    consumption halts, and the letters are as few as the breaker says.

    Case: B35
    Parts: real (PostgreSQL, Kafka, worker process)
    Red when: dlq/breaker.py `_too_much` returns "" for any row
    """
    stage = shop.stage
    shop.start(unused_tcp_port)
    await stage.send(shop.topic, *orders(0, 50))
    await shop.until("SELECT count(*) FROM public.bill", 50)
    await stage.close_database()
    for first in range(50, 50 + EVENTS, 25):
        await stage.send(shop.topic, *orders(first, 25))
        await asyncio.sleep(OUTAGE_S * 25 / EVENTS)  # the outage takes as long as it takes
    assert any("postgresql is away" in reason for reason in await shop.reasons())
    await stage.open_database()
    await shop.until("SELECT count(*) FROM public.bill", 50 + EVENTS)
    assert await stage.value("SELECT count(DISTINCT id) FROM public.bill") == 50 + EVENTS
    assert await stage.value(OUT_OF_ORDER) == 0
    assert await stage.value(LETTERS) == 0
    assert await stage.value("SELECT count(*) FROM tidegate.failure") == 0

    (shop.folder / "bug").touch()
    await stage.send(shop.topic, *orders(1_000, EVENTS))
    await shop.until("SELECT count(*) FROM tidegate.breaker WHERE state = 'open'", 1)
    assert any("bill is held back: 21 events in a row would be dead" in reason for reason in await shop.reasons())
    assert await stage.value(LETTERS) == LETTERS_MAX
    (shop.folder / "bug").unlink()
    await shop.until("SELECT count(*) FROM public.bill", 50 + 2 * EVENTS - LETTERS_MAX)
    assert await stage.value(LETTERS) == LETTERS_MAX, "nobody else died"
    assert shop.process is not None
    assert shop.process.poll() is None, "and it is still the first process"
