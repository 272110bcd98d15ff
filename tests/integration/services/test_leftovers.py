"""Nothing that a test run starts outlives the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

RUN = """
import signal, subprocess, sys
from tests.services import leftovers
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a child that nobody waits for is gone when it ended
end = leftovers.watch()
child = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); signal.pause()"
command = [sys.executable, "-c", child]
subprocess.Popen(command, start_new_session=True)
sys.stdin.read()
end()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_run_started_ends_with_it(killed: bool) -> None:
    """The standard output that run, child and watcher share ends only when all of them are gone."""
    command = [sys.executable, "-c", RUN]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        if killed:
            run.kill()
        else:
            run.stdin.close()
        assert run.stdout.read() == ""
