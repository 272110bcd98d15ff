"""`tidegate run`: one consumer in this process, until a signal, a fatal error, or the end of the world."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Final

import structlog
import uvloop

from ...inbox.errors import ConfigurationError, TransientError
from .. import logs
from ..app import Consumer
from ..health import HealthBoard, HealthServer
from ..layers import Effective
from ..metrics import Metrics
from ..settings import Settings
from ..worker.run import run_consumer
from .preparing import Prepared
from .stopping import Stopping
from .topics import ready_letter_topics

SWITCH_INTERVAL_S: Final = 0.0005
"""How soon a thread hands over the interpreter. With Python's own 5 ms an answer of the database may wait that long for
the decoding thread; much less, and the threads spend their time handing over."""

YOUNG_OBJECTS_MAX: Final = 500_000
"""How many more objects than were freed are made before Python looks for cycles among them. A full window is 100,000
of them (events, records, headers, values) and twice that at the start, with what waits before it; none is in a cycle,
and a look among them stops the loop for 50 to 100 ms. With Python's own 700 the looking took half of the throughput."""

STOP_MARGIN_S: Final = 5.0
"""Beyond drain and close: what Python needs to end its threads before it is ended."""

_log = structlog.get_logger("tidegate.cli")


def serve(prepared: Prepared, consumer: Consumer) -> int:
    """Run `consumer` and return the exit code. Raises ConfigurationError and FatalError."""
    settings = prepared.settings
    logs.configure(settings.log)
    tune_interpreter()
    board = HealthBoard()
    metrics = Metrics(consumer.name, {cls.__qualname__ for cls in consumer.payload_types()})
    health = open_health(prepared.effective, board, metrics)
    deadline_s = settings.worker.drain_budget_s + settings.worker.close_budget_s + STOP_MARGIN_S
    stopping = Stopping(lambda: _tell(board), deadline_s)
    stopping.listen()
    try:
        _ready_letters(settings, consumer)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                return runner.run(_run(prepared, consumer, board, metrics, stopping))
            finally:
                stopping.arm()  # here already: the loop does not close while a handler goes on that nothing ends
    finally:
        stopping.arm()
        if health is not None:
            health.stop()


def _ready_letters(settings: Settings, consumer: Consumer) -> None:
    """Letters have somewhere to go. While nobody answers that is not known: they would wait in the outbox."""
    try:
        for warning in ready_letter_topics(settings, consumer):
            _log.warning("letter_topic", what=warning)
    except TransientError as error:
        _log.warning("letter_topics_not_checked", error=str(error))


def tune_interpreter() -> None:
    """Set this process up for a decoding thread beside an event loop, and for many short-lived objects.

    What the imports made is frozen: it is never looked through for cycles again.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


def open_health(effective: Effective, board: HealthBoard, metrics: Metrics) -> HealthServer | None:
    """Start the health server; None where it is off, or where nobody asked for the port that is taken."""
    health = effective.settings.health
    if health.port == 0:
        return None
    try:
        server = HealthServer(health.host, health.port, board, metrics, health.poll_stall_s)
    except ConfigurationError as error:
        if effective.origin("health.port") != "default":
            raise
        _log.warning("running without health server", problem=str(error))
        return None
    server.start()
    return server


def _tell(board: HealthBoard) -> None:
    board.stopping = True


async def _run(prepared: Prepared, consumer: Consumer, board: HealthBoard, metrics: Metrics, stopping: Stopping) -> int:
    stop = stopping.event()
    return await run_consumer(prepared.app, consumer.name, prepared.settings, board, metrics, stop)
