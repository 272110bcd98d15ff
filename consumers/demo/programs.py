"""The programs that the demo starts, all of them `tidegate` itself, each in a process and a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, final

from ...inbox.errors import FatalError

APP: Final = "tidegate.consumers.demo.shop:app"
COMMAND_S: Final = 60.0
STOP_S: Final = 30.0
TAIL_LINES: Final = 5


class Said(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    text: str


@final
class Programs:
    """`tidegate` with the demo's settings. Its own session keeps a Ctrl-C from reaching anything but the demo."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        foreign = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self._environment = foreign | {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"} | dict(settings)
        self._folder = folder
        self._worker: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the worker wrote."""
        return self._folder / "worker.log"

    def command(self, *arguments: str) -> Said:
        """Run `tidegate ...` to its end."""
        done = subprocess.run(
            _tidegate(*arguments), env=self._environment, cwd=self._folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S, check=False,
            start_new_session=True,
        )  # fmt: skip
        return Said(done.returncode, done.stdout.strip())

    def start_worker(self) -> None:
        """Start `tidegate run`."""
        with self.log.open("a") as log:
            self._worker = subprocess.Popen(
                _tidegate("run", "--app", APP), env=self._environment, cwd=self._folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill_worker(self) -> None:
        """As `kill -9`: it gets no chance to finish anything."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()

    def check_worker(self) -> None:
        """Raise FatalError where the worker has ended by itself."""
        if self._worker is not None and self._worker.poll() is not None:
            raise FatalError(f"the worker left with {self._worker.returncode}: {self.tail()}", fix="what it says")

    def stop(self) -> None:
        """Ask the worker to stop; end it where it does not."""
        if self._worker is None or self._worker.poll() is not None:
            return
        self._worker.send_signal(signal.SIGTERM)
        try:
            self._worker.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill_worker()

    def tail(self) -> str:
        """The worker's last lines."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def _tidegate(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidegate.consumers.cli", *arguments]
