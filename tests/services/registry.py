"""A real schema registry (Apicurio, Confluent's API): TIDEGATE_TEST_REGISTRY, else a container, else a process."""

from __future__ import annotations

import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.services.container import container
from tests.services.container import wait_until as wait_for_container
from tests.services.java import cached_archive, java
from tests.services.server import Server, free_port, fresh_folder


@dataclass(frozen=True, slots=True)
class Release:
    """One release of the registry, and what it needs."""

    version: str
    java_at_least: int
    program: str
    settings: tuple[str, ...]


RELEASES: Final = (
    Release("3.3.3", 21, "quarkus-run.jar", ("apicurio.rules.global.compatibility=BACKWARD",)),
    Release("2.6.13.Final", 17, "apicurio-registry-app-2.6.13.Final-runner.jar", ()),
)
"""Best first: 3.x where a Java for it is there, else the last 2.x."""

API: Final = "/apis/ccompat/v7"


@contextlib.contextmanager
def running() -> Generator[str]:
    """A registry, given as the URL for a Confluent-compatible client."""
    if given := os.environ.get("TIDEGATE_TEST_REGISTRY"):
        yield given
        return
    image = f"apicurio/apicurio-registry:{RELEASES[0].version}"
    rules = {"APICURIO_RULES_GLOBAL_COMPATIBILITY": "BACKWARD"}
    with container(image, 8080, lambda _host, _port: rules) as reached:
        if reached is not None:
            url = f"http://{reached[0]}:{reached[1]}{API}"
            wait_for_container("apicurio", lambda: _ready(url))
            yield url
            return
    with _local() as url:
        yield url


def download() -> Path:
    """The registry's program, unpacked."""
    release, _ = _runnable()
    return _unpacked(release)


def _runnable() -> tuple[Release, Path]:
    for release in RELEASES:
        if (binary := java(release.java_at_least)) is not None:
            return release, binary
    raise RuntimeError("No Java 17 or newer. Fix: `python -m tests.services.require` says how to install it.")


def _unpacked(release: Release) -> Path:
    version = release.version
    return cached_archive(f"apicurio-{version}", f"io.apicurio:apicurio-registry-app:{version}:tar.gz:all")


@contextlib.contextmanager
def _local() -> Generator[str]:
    release, binary = _runnable()
    home, folder = _unpacked(release), fresh_folder("registry")
    port, management = free_port(), free_port()
    settings = [
        "quarkus.http.host=127.0.0.1",
        f"quarkus.http.port={port}",
        "quarkus.management.host=127.0.0.1",
        f"quarkus.management.port={management}",
        *release.settings,
    ]
    memory = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [binary, *memory, *(f"-D{setting}" for setting in settings), "-jar", home / release.program]
    server, url = Server(command, folder=folder), f"http://127.0.0.1:{port}{API}"
    try:
        server.wait_until(lambda: _ready(url))
        yield url
    finally:
        server.stop()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:
            return answer.status == 200
    except (OSError, urllib.error.HTTPError):
        return False
