"""Servers as containers, where a Docker engine answers."""

from __future__ import annotations

import contextlib
import functools
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import Final

import docker
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import get_docker_host

from tests.services.server import ServerFailed, free_port

START_S: Final = 120.0


@functools.cache
def engine_answers() -> bool:
    """Whether a Docker engine can be used."""
    host = get_docker_host() or "unix:///var/run/docker.sock"
    if host.startswith("unix://") and not _accepts(host.removeprefix("unix://")):
        return False  # the client would find out as well, and leak the socket that it tried with
    try:
        with contextlib.closing(docker.from_env(timeout=5)) as client:
            return bool(client.ping())
    except DockerException:
        return False


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


@contextlib.contextmanager
def container(
    image: str, port: int, environment: Callable[[str, int], Mapping[str, str]], command: str | None = None
) -> Generator[tuple[str, int] | None]:
    """Run `image` and give the host and port where its `port` is reached; None where the image cannot be had.

    `environment` is told that host and port before the start: Kafka has to advertise them.
    """
    if not engine_answers():
        yield None
        return
    server = DockerContainer(image)
    outside = free_port()
    host = server.get_container_host_ip()
    server.with_bind_ports(port, outside)
    for name, value in environment(host, outside).items():
        server.with_env(name, value)
    if command is not None:
        server.with_command(command)
    try:
        server.start()
    except DockerException as error:
        print(f"{image}: no container ({error}); going on without Docker", file=sys.stderr)
        yield None
        return
    try:
        yield host, outside
    finally:
        server.stop()


def wait_until(name: str, ready: Callable[[], bool]) -> None:
    """Return as soon as `ready` says yes.

    Raises:
        ServerFailed: not within two minutes.
    """
    give_up = time.monotonic() + START_S
    while not ready():
        if time.monotonic() > give_up:
            raise ServerFailed(f"the container {name} did not answer within {START_S} s")
        time.sleep(0.1)  # nobody can tell us: the container's port is all that there is to look at
