"""Runs one server that never outlives its user: it is ended, and its folder removed, when standard input closes.

The test run holds the only writing end of that pipe, so the server goes away on a normal end, on Ctrl-C and on a
kill -9 of the test run alike, on Linux and macOS. Standard library only: it is started as a plain script.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0
"""How long a server may take to end itself; its files are thrown away, so nothing depends on it."""


def main() -> int:
    """Run the command line's server to its end."""
    options = _options()
    server = _start(options)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the test run's business; the pipe tells us of its end
    signal.signal(signal.SIGTERM, lambda _number, _frame: _end(server, options.signal))
    threading.Thread(target=_end_with_stdin, args=(server, options.signal), daemon=True).start()
    code = server.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    shutil.rmtree(options.folder, ignore_errors=True)
    return code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, help="the server's folder, removed at its end")
    parser.add_argument("--log", required=True, help="the file that takes the server's output")
    parser.add_argument("--user", help="the user to become (only root can)")
    parser.add_argument("--signal", type=int, default=signal.SIGKILL, help="what ends the server")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _start(options: argparse.Namespace) -> subprocess.Popen[bytes]:
    with open(options.log, "ab") as log:
        return subprocess.Popen(
            options.command,
            cwd=options.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=options.user,
            extra_groups=[] if options.user else None,
        )


def _end_with_stdin(server: subprocess.Popen[bytes], how: int) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _end(server, how)


def _end(server: subprocess.Popen[bytes], how: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.pid, how)
    timer = threading.Timer(GRACE_S, server.kill)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
