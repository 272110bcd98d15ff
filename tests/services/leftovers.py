"""Ends what a test run started, once the run is gone: on a normal end nothing is left, after a kill -9 all of it.

Every process that a run starts inherits a mark in its environment. A watcher holds a pipe of which only the run has the
writing end; when that closes, it ends whatever still carries the mark. Servers do not: each has a guard of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from typing import Final

import psutil

MARK: Final = "TEST_RUN"

GRACE_S: Final = 5.0
"""For an orderly end; a stopped process takes none."""


def watch() -> Callable[[], None]:
    """Mark this run, and start its watcher; the answer ends it."""
    os.environ[MARK] = uuid.uuid4().hex
    command = [sys.executable, __file__, os.environ[MARK]]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, env=unmarked(), start_new_session=True)

    def end() -> None:
        watcher.communicate()

    return end


def unmarked() -> dict[str, str]:
    """The environment for what ends itself with the run."""
    return {name: value for name, value in os.environ.items() if name != MARK}


def main() -> int:
    """Wait for the end of the run, then end what it left."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    left = [process for process in psutil.process_iter() if _mark(process) == sys.argv[1]]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(left, GRACE_S)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return 0


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):  # gone, or somebody else's
        return None


if __name__ == "__main__":
    sys.exit(main())
