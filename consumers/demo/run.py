"""`tidegate demo`: sets up in a folder of its own, tells the story, gives the verdict, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console
from rich.markup import escape

from . import postgres
from .cluster import Cluster
from .programs import Programs
from .reading import Reader
from .screen import RIGHT, WRONG, Screen
from .story import Story

KEPT: Final = (
    "Nothing lost: every order counts; what cannot be done waits, with its reason.",
    "Nothing twice: no repeat, kill -9 or replay led to a second count or invoice.",
)

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

INTERRUPTED: Final = 130
"""What a shell reports of a program that Ctrl-C ended."""


def demo(*, keep: bool) -> int:
    """Run it: 0 if every promise was kept, 1 if not. `keep` goes on until Ctrl-C.

    Raises:
        ConfigurationError: the embedded PostgreSQL is not installed.
        FatalError: something did not start, or did not come to its end.
    """
    postgres.package()
    console = Console(highlight=False)
    came: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        """The first signal ends the demo; its parts' ends are bounded in time, and no second one cuts them short."""
        _deaf()
        came.append(number)
        raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, interrupt)
    try:
        with _folder() as folder:
            return _run(console, folder, keep)
    except BaseException:  # a C function in which a KeyboardInterrupt arrives may make another exception of it
        if not came:
            raise
        console.print("\nstopped; nothing is left behind")
        return INTERRUPTED


def _run(console: Console, folder: Path, keep: bool) -> int:
    started_s = time.monotonic()
    console.print("[bold]tidegate demo[/bold]: a shop takes orders from Kafka, adds them up and sends invoices.")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(postgres.running(folder))
        cluster = Cluster()
        settings = _settings(url, cluster.address, folder / "schemas")
        reader = Reader(url, cluster)
        stack.callback(reader.close)
        programs = Programs(folder, settings)
        stack.callback(programs.stop)
        stack.callback(_deaf)  # first of all at the end: what ends, ends undisturbed
        screen = Screen(console)
        story = Story(screen, cluster, programs, reader, folder / "schemas")
        story.prepare()
        console.print(
            f"[dim]  PostgreSQL  {url}\n  Kafka       {cluster.address} (librdkafka's mock cluster)[/dim]",
            soft_wrap=True,
        )
        with screen:
            story.tell()
        code = _verdict(console, story.broken, time.monotonic() - started_s)
        if keep:
            _wait(console, settings)
        return code


def _settings(url: str, kafka: str, registry: Path) -> dict[str, str]:
    return {
        "TIDEGATE_DATABASE_URL": url,
        "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": kafka,
        "TIDEGATE_REGISTRY_URL": str(registry),
        "TIDEGATE_HEALTH_PORT": "0",
        # The mock cluster waits half a minute for a killed member of a KIP-848 group, for one of a classic group as
        # long as we say (longer than the 3 s that it collects members, or none ever joins).
        "TIDEGATE_KAFKA_GROUP_PROTOCOL": "classic",
        "TIDEGATE_KAFKA_CLIENT_SESSION_TIMEOUT_MS": "4000",
        "TIDEGATE_KAFKA_CLIENT_HEARTBEAT_INTERVAL_MS": "500",
    }


def _verdict(console: Console, broken: list[str], took_s: float) -> int:
    console.print()
    for text in broken:
        console.print(f"{WRONG} {escape(text)}")
    if broken:
        console.print(f"[red]The promise is broken[/red] ({len(broken)} differences, {took_s:.0f} s).")
        return 1
    for text in KEPT:
        console.print(f"{RIGHT} {text}")
    console.print(f"[green]The promise is kept[/green] ({took_s:.0f} s).")
    return 0


def _wait(console: Console, settings: dict[str, str]) -> None:
    """Until Ctrl-C. How a second terminal gets in is said first."""
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    console.print("\nIt goes on running until Ctrl-C. In another terminal:")
    console.print(f"  export {exports}", soft_wrap=True)
    console.print(
        f"  {shutil.which('tidegate') or Path(sys.executable).with_name('tidegate')} dlq list", soft_wrap=True
    )
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def _deaf() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _folder() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
