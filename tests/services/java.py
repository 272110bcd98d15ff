"""Finds a Java and a Maven on this machine, and brings jars from Maven's repository into the cache."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.services.server import cache_folder

DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
JAVA_HOMES: Final = (
    "/usr/lib/jvm/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
)


@functools.cache
def java(at_least: int) -> Path | None:
    """The oldest Java that is new enough, or None."""
    versions = sorted((version, binary) for binary in _candidates() if (version := _version(binary)) >= at_least)
    return versions[0][1] if versions else None


def maven() -> Path | None:
    """Maven's command, or None."""
    found = shutil.which("mvn")
    return Path(found) if found else None


def run_maven(*arguments: str | Path) -> None:
    """Run Maven in batch mode; a download whose checksum is wrong is refused.

    Raises:
        RuntimeError: it is not there or failed; the message holds its output.
    """
    command = maven()
    if command is None:
        raise RuntimeError("Maven is not installed. Fix: `python -m tests.services.require` says how.")
    done = subprocess.run([command, "-q", "-B", "-C", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Maven failed:\n{done.stdout[-4000:]}{done.stderr[-1000:]}")


def cached_jars(name: str, pom: Path) -> Path:
    """The folder with all jars that `pom` needs, from the cache or else downloaded (all or nothing)."""
    target = cache_folder() / name
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_made(target.parent), prefix=f".{name}-") as fresh:
            jars = Path(fresh) / "libs"
            run_maven("-f", pom, f"{DEPENDENCY_PLUGIN}:copy-dependencies", f"-DoutputDirectory={jars}")
            _publish(jars, target)
    return target


def cached_archive(name: str, artifact: str) -> Path:
    """The folder with the unpacked tar archive of a Maven `artifact`, from the cache or else downloaded."""
    target = cache_folder() / name
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_made(target.parent), prefix=f".{name}-") as fresh:
            run_maven(f"{DEPENDENCY_PLUGIN}:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={fresh}")
            (archive,) = Path(fresh).iterdir()
            shutil.unpack_archive(archive, Path(fresh) / "unpacked")
            _publish(Path(fresh) / "unpacked", target)
    return target


def _publish(fresh: Path, target: Path) -> None:
    try:
        fresh.rename(target)
    except OSError:  # another run was faster; its download is as good as ours
        if not target.exists():
            raise


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _candidates() -> Iterator[Path]:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    homes += [home for pattern in JAVA_HOMES for home in Path("/").glob(pattern.removeprefix("/"))]
    yield from (binary for home in homes if (binary := home / "bin" / "java").exists())
    if found := shutil.which("java"):
        yield Path(found)


def _version(binary: Path) -> int:
    """The major version; 0 for a placeholder that runs no Java (macOS has one)."""
    done = subprocess.run([binary, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if done.returncode == 0 and found else 0
