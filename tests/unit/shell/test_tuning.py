"""The interpreter of a worker's process: how soon threads take turns, and how seldom cycles are looked for."""

from __future__ import annotations

import subprocess
import sys

LOOK = """
import gc, sys
from tidegate.consumers.cli.running import SWITCH_INTERVAL_S, YOUNG_OBJECTS_MAX, tune_interpreter
tune_interpreter()
assert abs(sys.getswitchinterval() - SWITCH_INTERVAL_S) < 1e-6, sys.getswitchinterval()
assert gc.isenabled() and gc.get_threshold()[0] == YOUNG_OBJECTS_MAX, gc.get_threshold()
assert gc.get_freeze_count() > 10_000, gc.get_freeze_count()
looks = gc.get_stats()[0]["collections"]
window = [[number] for number in range(YOUNG_OBJECTS_MAX // 2)]
assert gc.get_stats()[0]["collections"] == looks, "a window's worth of objects is no reason to look"
"""


def test_a_full_window_is_no_reason_to_look_for_cycles() -> None:
    """In a process of its own: it changes the interpreter."""
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
