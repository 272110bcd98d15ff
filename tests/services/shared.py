"""The servers of a run in several processes: one starts them, the others find them in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from tests.services import kafka, postgres, registry


def start() -> Callable[[], None]:
    """Start what is not named yet, and name it; the answer ends it."""
    servers = ExitStack()
    try:
        os.environ["TIDEGATE_TEST_KAFKA"] = servers.enter_context(kafka.running())
        os.environ["TIDEGATE_TEST_POSTGRES"] = servers.enter_context(postgres.running())
        os.environ["TIDEGATE_TEST_REGISTRY"] = servers.enter_context(registry.running())
    except BaseException:
        servers.close()
        raise
    return servers.close
