"""Runs one side of a benchmark in a process of its own, and gives what it printed."""

from __future__ import annotations

import json
import subprocess
import sys


def side(module: str, *arguments: str) -> dict[str, float]:
    """`python -m benchmarks.MODULE ARGUMENTS`: the JSON of its last line."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:4])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
