"""A local server under its guard: started, waited for, ended with the test run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

from tests.services.leftovers import unmarked

GUARD: Final = Path(__file__).with_name("guard.py")

LOOK_S: Final = 0.05
"""Between two looks at whether a starting server answers yet."""


class ServerFailed(Exception):
    """A server ended, or did not answer in time; the message holds the end of its log."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether somebody accepts TCP connections on the loopback interface's `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def fresh_folder(name: str) -> Path:
    """A new folder for a server's files; its guard removes it."""
    return Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-"))


def cache_folder() -> Path:
    """Where downloads are kept from run to run."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tidegate"


@final
class Server:
    """One server process and its guard."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        folder: Path,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self._name = folder.name
        self._log = folder / "server.log"
        guard = [sys.executable, "-S", "-E", GUARD, "--folder", folder, "--log", self._log]
        guard += ["--signal", str(int(stop_signal)), *(["--user", user] if user else [])]
        self._guard = subprocess.Popen(
            [*guard, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env=unmarked(),
        )

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Return as soon as `ready` says yes.

        Raises:
            ServerFailed: it ended, or was not ready within `timeout_s`.
        """
        give_up = time.monotonic() + timeout_s
        while not ready():
            if self._ended():
                raise ServerFailed(f"{self._name} ended while it started:\n{self._tail}")
            if time.monotonic() > give_up:
                log = self._log_end()
                self.stop()
                raise ServerFailed(f"{self._name} did not answer within {timeout_s} s:\n{log}")

    def stop(self) -> None:
        """End the server and remove its files. A second call does nothing."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()

    def _ended(self) -> bool:
        """Waits a moment for the end, so that a caller's loop does not spin."""
        self._tail = self._log_end()
        try:
            self._guard.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _log_end(self) -> str:
        if not self._log.exists():
            return "(no output)"
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
