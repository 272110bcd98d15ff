"""What is shipped is whole: the wheel alone, in a fresh environment, imports every room and runs the program."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.tidy.source import ROOMS, ROOT, files

WHERE = "import tidegate.{room} as room; print(room.__file__)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, which is built from a copy of the tree: the build writes beside its sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in files():
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), str(source))
    (found,) = built.glob("*.whl")
    assert len(list(built.glob("*.tar.gz"))) == 1
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which sees this one's packages but not its editable tidegate."""
    home = tmp_path_factory.mktemp("environment")
    _run(sys.executable, "-m", "venv", "--without-pip", str(home))
    python = str(home / "bin" / "python")
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    (packages,) = home.glob("lib/python*/site-packages")
    # A path named in a .pth file is only appended: the .pth files in there, the editable install's too, are not read.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_imported_from_the_wheel(environment: Path, room: str) -> None:
    where = _run(str(environment / "bin" / "python"), "-c", WHERE.format(room=room), cwd=environment)
    assert Path(where.strip()).is_relative_to(environment)


def test_the_program_runs_from_the_wheel(environment: Path) -> None:
    shown = _run(str(environment / "bin" / "tidegate"), "--help", cwd=environment)
    assert "migrate" in shown
    assert "replay" in shown or "dlq" in shown


def test_the_wheel_holds_each_file_of_the_rooms_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    rooms = {path.relative_to(ROOT) for path in files() if path.relative_to(ROOT).parts[0] in ROOMS}
    assert shipped == {f"tidegate/{path.as_posix()}" for path in rooms if path.suffix != ".md"}


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout
