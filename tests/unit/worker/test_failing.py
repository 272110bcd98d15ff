"""What a worker does about an error that ends it."""

from __future__ import annotations

from typing import NoReturn

import pytest
import structlog

from tests.support.odd_errors import odd
from tidegate.consumers.engine.engine import Engine
from tidegate.consumers.engine.policy import EnginePolicy
from tidegate.consumers.health import HealthBoard
from tidegate.consumers.metrics import Metrics
from tidegate.consumers.worker.worker import Worker
from tidegate.inbox.clock import SystemClock
from tidegate.inbox.holding import Holdings


class DiskFullError(Exception):
    """Lines cannot be written."""


def _no_line(*_: object) -> NoReturn:
    raise DiskFullError


async def test_a_worker_that_cannot_tell_of_its_end_ends_all_the_same() -> None:
    """Else it would hang on: whoever waits for `failed` takes it apart and leaves."""
    board = HealthBoard()
    worker = Worker(Engine((), EnginePolicy()), Holdings(), SystemClock(), board, Metrics("c"))
    kept = structlog.get_config()
    structlog.configure(processors=[_no_line])
    try:
        with pytest.raises(DiskFullError):
            worker.fail(odd("__cause__", "__traceback__"))
    finally:
        structlog.configure(**kept)
    assert worker.failed.result().args[0].startswith("unexpected OddError")
    assert board.fatal is not None
