"""`python -m tests.services`, as CONTRIBUTING.md and the examples tell people to start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_it_says_where_its_servers_are_and_ends_at_ctrl_c(kafka_bootstrap: str, postgres_url: str) -> None:
    named = {"TIDEGATE_TEST_KAFKA": kafka_bootstrap, "TIDEGATE_TEST_POSTGRES": postgres_url}
    command = [sys.executable, "-m", "tests.services"]
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | named, stdout=subprocess.PIPE, text=True) as servers:
        assert servers.stdout is not None
        line = servers.stdout.readline()
        servers.send_signal(signal.SIGINT)
    assert line == f"export TIDEGATE_KAFKA_BOOTSTRAP_SERVERS={kafka_bootstrap} TIDEGATE_DATABASE_URL={postgres_url}\n"
    assert servers.returncode == 0
