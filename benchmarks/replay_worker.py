"""The worker of the replay benchmark, in a process of its own, as `tidegate run` runs it, until SIGTERM.

`python -m benchmarks.replay_worker URL BOOTSTRAP TOPIC CONSUMER`: one projection, which does nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import uvloop
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.orders import ID_HEADER, SCHEMAS, OrderPlaced
from tidegate.consumers import App, Avro, Event, header, logs
from tidegate.consumers.cli.running import tune_interpreter
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.layers import load
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.settings import Log
from tidegate.consumers.worker.run import run_consumer

HANDLER = "nothing"


async def work(url: str, bootstrap: str, topic: str, consumer: str) -> None:
    """Run until asked to stop."""
    environment = {"TIDEGATE_DATABASE_URL": url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": bootstrap}
    settings = load(os.environ | environment, None, {}, ("database.url", "kafka.bootstrap_servers")).settings
    app = App("bench", owner="bench")
    orders = app.consumer(consumer, topics=[topic], codec=Avro(str(SCHEMAS)), event_id=header(ID_HEADER))

    @orders.projection(HANDLER)
    async def nothing(events: Sequence[Event[OrderPlaced]], tx: AsyncConnection) -> None:
        pass

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run_consumer(app, consumer, settings, HealthBoard(), Metrics(consumer), stop)


def main() -> None:
    """Run."""
    logs.configure(Log(level="info"))
    tune_interpreter()
    uvloop.run(work(*sys.argv[1:5]))


if __name__ == "__main__":
    main()
