"""`tidegate run` as a process: it reports itself, handles events once, is told to stop, and leaves cleanly."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from confluent_kafka import Producer

from tests.services import database
from tests.services.topics import Topic
from tests.support.cli import Ended, start, tidegate

APP = """
import time
from collections.abc import Sequence
from pathlib import Path
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from tidegate.consumers import App, Event, Json, header

app = App("shop", owner="shop-team")
orders = app.consumer({consumer!r}, topics=[{topic!r}], codec=Json(type="order"), event_id=header("id"))

@orders.projection("revenue")
async def revenue(events: Sequence[Event[dict]], tx: AsyncConnection) -> None:
    for event in events:
        if event.value.get("block_s"):
            Path("blocking").touch()
            time.sleep(event.value["block_s"])
        if event.value.get("poison") and not Path("repaired").exists():
            raise ValueError("card 4111-1111 is refused")
    amounts = [{{"amount": event.value["amount"]}} for event in events]
    await tx.execute(text("INSERT INTO public.sale (amount) VALUES (:amount)"), amounts)
"""

PATIENCE_S = 40.0


class Worker:
    """A worker process with its app, its database and its health server."""

    def __init__(self, folder: Path, bootstrap: str, url: str, topic: str, consumer: str) -> None:
        self.folder, self.url, self.topic, self.consumer = folder, url, topic, consumer
        self.bootstrap = bootstrap
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.variables = {
            "TIDEGATE_APP": "shop:app",
            "TIDEGATE_DATABASE_URL": url,
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "TIDEGATE_HEALTH_PORT": str(self.port),
        }
        (folder / "shop.py").write_text(APP.format(consumer=consumer, topic=topic))
        database.execute(url, "CREATE TABLE public.sale (amount int NOT NULL)")
        assert self.tidegate("migrate").code == 0
        self.process: subprocess.Popen[str] | None = None

    def tidegate(self, *arguments: str) -> Ended:
        return tidegate(*arguments, cwd=self.folder, variables=self.variables)

    def start(self) -> None:
        self.process = start(
            "run", "--consumer", self.consumer, cwd=self.folder, log=self.folder / "log", variables=self.variables
        )

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def produce(self, *values: dict[str, Any]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(self.topic, json.dumps(value).encode(), key=b"k", headers={"id": value["id"]}, partition=0)
        assert producer.flush(20) == 0

    def probe(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)

    def ready(self) -> bool:
        return self.probe("/readyz")[0] == 200

    async def sales(self) -> int:
        connection = await asyncpg.connect(self.url)
        try:
            found: int | None = await connection.fetchval("SELECT coalesce(sum(amount), 0) FROM public.sale")
            return found or 0
        finally:
            await connection.close()

    def metric(self, line: str) -> float:
        for row in self.probe("/metrics")[1].decode().splitlines():
            if row.startswith(line):
                return float(row.rpartition(" ")[2])
        return 0.0

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def worker(tmp_path: Path, kafka_bootstrap: str, database_url: str, topic: Topic) -> Iterator[Worker]:
    name = topic(partitions=2)
    made = Worker(tmp_path, kafka_bootstrap, database_url, name, f"c-{name}"[:90])
    topic(partitions=1, name=f"{name}.{made.consumer}.dlq")
    yield made
    made.end()


async def test_it_reports_handles_once_and_stops_with_zero(worker: Worker) -> None:
    """SIGTERM: what is in flight is finished, offsets are committed, the group is left, and the exit code is 0.

    Case: B58
    Parts: real (Kafka, PostgreSQL, process)
    Red when: running.py `_run` passes `asyncio.Event()` on instead of `stop`
    """
    worker.start()
    worker.until(worker.ready)
    assert worker.probe("/livez")[0] == 200
    worker.produce({"id": "1", "amount": 3}, {"id": "2", "amount": 4}, {"id": "1", "amount": 3})
    completed = f'tidegate_events_total{{consumer="{worker.consumer}",handler="revenue",status="completed"}}'
    repeats = f'tidegate_dedup_hits_total{{consumer="{worker.consumer}",handler="revenue"}}'
    worker.until(lambda: worker.metric(completed) == 2 and worker.metric(repeats) == 1)
    assert await worker.sales() == 7
    assert worker.stop() == 0
    lag = json.loads(worker.tidegate("lag", "--json").out)
    assert sum(line["lag"] for line in lag) == 0
    assert {line["kafka_offset"] for line in lag if line["partition"] == 0} == {3}
    for line in worker.log().splitlines():
        assert set(json.loads(line)) >= {"timestamp", "level", "message", "logger"}


async def test_a_dead_letter_is_listed_shown_and_replayed(worker: Worker) -> None:
    worker.start()
    worker.until(worker.ready)
    worker.produce({"id": "1", "amount": 3}, {"id": "2", "amount": 4, "poison": True}, {"id": "3", "amount": 5})
    dead = f'tidegate_events_total{{consumer="{worker.consumer}",handler="revenue",status="failed"}}'
    worker.until(lambda: worker.metric(dead) == 1)
    (letter,) = json.loads(worker.tidegate("dlq", "list", "--json").out)
    assert (letter["id_text"], letter["handler"], letter["state"]) == ("2", "revenue", "dead")
    assert worker.tidegate("dlq", "list", "--handler", "other").out.strip() == "no letters"
    assert '"letters": 1' in worker.tidegate("dlq", "groups", "--json").out
    shown = worker.tidegate("dlq", "show", str(letter["id"]))
    assert "ValueError" in shown.out
    assert "poison" not in worker.log()
    assert '"poison": "<boolean>"' in shown.out, "a field's name, and of its value the kind"
    assert '"poison": true' not in shown.out
    reveal = ("--reveal", "--reason", "a test")
    assert '"poison": true' in worker.tidegate("dlq", "show", letter["dead_letter_id"], *reveal).out
    assert worker.tidegate("dlq", "replay", "--reason", "x").code == 78  # which letters?
    assert "would replay 1" in worker.tidegate("dlq", "replay", "--all", "--dry-run", "--reason", "look").out
    (worker.folder / "repaired").touch()
    replayed = worker.tidegate("dlq", "replay", letter["dead_letter_id"], "--reason", "cause repaired", "--yes")
    assert (replayed.code, "replayed 1 letter" in replayed.out) == (0, True)
    worker.until(lambda: worker.tidegate("dlq", "list", "--all").out.strip() == "no letters")
    assert await worker.sales() == 12
    refused = worker.tidegate("dlq", "replay", "999999", "--reason", "again", "--yes")
    assert (refused.code, "no letter is known" in refused.out) == (1, True)
    assert worker.stop() == 0


async def test_probes_answer_while_a_handler_blocks_the_loop(worker: Worker) -> None:
    """A projection that sleeps inside the event loop leaves probes answering and the process in its group.

    Case: B16
    Parts: real (Kafka, PostgreSQL, process)
    Red when: health.py `live` takes `self.loop_stall_s()` for `self.poll_age_s()`
    """
    worker.variables["TIDEGATE_HEALTH_POLL_STALL_S"] = "2.5"
    worker.start()
    worker.until(worker.ready)
    worker.produce({"id": "1", "amount": 3, "block_s": 8})
    worker.until((worker.folder / "blocking").exists)
    began_s = time.monotonic()
    answers = 0
    while time.monotonic() - began_s < 4:
        asked_s = time.monotonic()
        assert worker.probe("/livez")[0] == 200
        assert worker.probe("/metrics")[0] == 200
        assert time.monotonic() - asked_s < 1
        answers += 1
        time.sleep(0.2)
    assert answers >= 5
    worker.until(lambda: worker.metric("tidegate_events_total") == 1)
    assert worker.metric(f'tidegate_rebalances_total{{consumer="{worker.consumer}",kind="lost"}}') == 0
    assert worker.stop() == 0


async def test_a_topic_that_does_not_exist_is_not_ready_and_stays_so(worker: Worker) -> None:
    """A subscription that cannot be read is shown, by name, for as long as it lasts.

    Case: B12
    Parts: real (Kafka, PostgreSQL, process)
    Red when: health.py `ready` leaves `topics` out of its reasons
    """
    (worker.folder / "shop.py").write_text(APP.format(consumer=worker.consumer, topic="nowhere.at.all"))
    worker.start()
    gauge = f'tidegate_subscription_error{{consumer="{worker.consumer}",topic="nowhere.at.all"}}'
    worker.until(lambda: worker.metric(gauge) == 1)
    for _ in range(5):
        status, body = worker.probe("/readyz")
        assert (status, "nowhere.at.all" in str(json.loads(body)["reasons"])) == (503, True)
        assert worker.probe("/livez")[0] == 200
        assert worker.metric(gauge) == 1
        time.sleep(0.5)
    assert worker.stop() == 0


async def test_a_second_worker_on_one_machine_needs_no_port_of_its_own_unless_it_was_set(worker: Worker) -> None:
    worker.start()
    worker.until(worker.ready)
    ended = tidegate("run", "--consumer", worker.consumer, cwd=worker.folder, variables=worker.variables)
    assert ended.code == 78
    assert "health.port: cannot listen on" in ended.err
    assert worker.stop() == 0
