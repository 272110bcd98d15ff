"""Signals, in a process of its own: first clean, second at once, and never hanging."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys, threading, time
import uvloop
from tidegate.consumers.cli.stopping import Stopping

async def work(stopping, how):
    stop = stopping.event()
    print("started", flush=True)
    if how == "blocks":
        time.sleep(60)
    await stop.wait()
    print("asked", flush=True)
    if how == "hangs":
        await asyncio.Event().wait()

how, deadline_s = sys.argv[1], float(sys.argv[2])
stopping = Stopping(lambda: print("told", flush=True), deadline_s)
stopping.listen()
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(work(stopping, how))
if how == "leaves a thread":
    threading.Thread(target=time.sleep, args=(60,)).start()
"""


class Process:
    """The program above, running."""

    def __init__(self, how: str, deadline_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, how, str(deadline_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_stops_cleanly(number: int) -> None:
    process = Process("waits", 10)
    process.until("started")
    process.signal(number)
    process.until("told")
    process.until("asked")
    assert process.end() == (0, "")


def test_the_second_signal_leaves_at_once_even_while_a_handler_blocks_the_loop() -> None:
    """A second SIGTERM ends the process at once, whatever holds the event loop.

    Case: B58
    Parts: real (process, signals, uvloop)
    Red when: stopping.py `_on_signal` leaves out `self._leave(128 + number)`
    """
    process = Process("blocks", 30)
    process.until("started")
    process.signal(signal.SIGTERM)
    process.until("told")
    process.signal(signal.SIGTERM)
    code, err = process.end()
    assert code == 128 + signal.SIGTERM
    assert "rolled back" in err


def test_a_stop_that_hangs_is_ended_with_every_threads_stack() -> None:
    process = Process("hangs", 0.5)
    process.until("started")
    process.signal(signal.SIGTERM)
    code, err = process.end()
    assert code == 70
    assert "longer than" in err
    assert "most recent call first" in err


def test_a_thread_that_never_ends_does_not_keep_the_process() -> None:
    process = Process("leaves a thread", 0.5)
    process.until("started")
    process.signal(signal.SIGTERM)
    assert process.end()[0] == 70
