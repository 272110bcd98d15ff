"""The servers of a run in several processes: one starts them, the others find them in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from tests.services import kafka, postgres, registry

SERVERS: Final = {
    "TIDEGATE_TEST_KAFKA": kafka.running,
    "TIDEGATE_TEST_POSTGRES": postgres.running,
    "TIDEGATE_TEST_REGISTRY": registry.running,
}


def start() -> Callable[[], None]:
    """Start those that are not named yet, all at once, and name them; the answer ends them."""
    servers = ExitStack()
    try:
        with ThreadPoolExecutor() as threads:
            starting = {name: threads.submit(servers.enter_context, running()) for name, running in SERVERS.items()}
        os.environ.update({name: started.result() for name, started in starting.items()})
    except BaseException:
        servers.close()
        raise
    return servers.close
