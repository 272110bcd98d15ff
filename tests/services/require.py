"""Before a test run: sees to it that every server can be had, or says exactly what to install and stops.

`make test` runs it first, so that nothing starts before all is there, and no download counts against a test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from tests.services import java, kafka, registry
from tests.services.container import engine_answers

DEBIAN_PACKAGES: Final = ("default-jre-headless", "maven")

ADVICE: Final = f"""\
The tests run against a real Apache Kafka, and nothing here can start one. Do one of these:
  * start Docker (any engine that `docker info` reaches);
  * install Java {kafka.JAVA_AT_LEAST} or newer and Maven, for example:
      Debian, Ubuntu:  sudo apt-get install {" ".join(DEBIAN_PACKAGES)}
      Fedora:          sudo dnf install java-latest-openjdk-headless maven
      macOS:           brew install openjdk maven
  * or name servers that run already: TIDEGATE_TEST_KAFKA=host:port TIDEGATE_TEST_REGISTRY=http://host:port/path
Nothing was run."""


def main() -> int:
    """0 when every server can be started."""
    if _given() or engine_answers():
        return 0
    if not _can_run() and _is_root_on_debian():
        _install()
    if not _can_run():
        print(ADVICE, file=sys.stderr)
        return 1
    return _download()


def _given() -> bool:
    return all(os.environ.get(name) for name in ("TIDEGATE_TEST_KAFKA", "TIDEGATE_TEST_REGISTRY"))


def _can_run() -> bool:
    java.java.cache_clear()
    return java.java(kafka.JAVA_AT_LEAST) is not None and java.maven() is not None


def _is_root_on_debian() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _install() -> None:
    print(f"Installing {' and '.join(DEBIAN_PACKAGES)} for the test broker", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *DEBIAN_PACKAGES],
    ):
        subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL)


def _download() -> int:
    try:
        kafka.download()
        registry.download()
    except RuntimeError as error:
        print(f"The test servers cannot be downloaded. {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
