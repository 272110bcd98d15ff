"""The command line in a process of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended."""

    code: int
    out: str
    err: str


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without any setting of tidegate but the ones given, and with wide tables."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    return clean | {"COLUMNS": "250", "PYTHONDONTWRITEBYTECODE": "1"} | dict(variables)


def tidegate(
    *arguments: str, variables: Mapping[str, str] | None = None, cwd: Path = ROOT, timeout_s: float = 60
) -> Ended:
    """Run `tidegate ...` to its end, with `variables` in its environment."""
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.consumers.cli", *arguments],
        cwd=cwd,
        env=environment(variables or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def start(
    *arguments: str, log: Path, variables: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.Popen[str]:
    """Start `tidegate ...`; both of its outputs go to `log`. Whoever starts it ends it."""
    with log.open("a") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tidegate.consumers.cli", *arguments],
            cwd=cwd,
            env=environment(variables or {}),
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )
