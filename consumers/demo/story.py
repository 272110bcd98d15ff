"""The demo itself, in three chapters: orders are streamed, a cause is repaired, and everything comes once more."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

from ...inbox.errors import FatalError
from .cluster import Cluster
from .facts import broken
from .orders import Order, Press, expected, streamed
from .programs import Programs
from .reading import INVOICES, LETTERS, ORDERS, SCHEMAS, Reader
from .screen import Screen

LOOK_S: Final = 0.1
PATIENCE_S: Final = 60.0
"""For a chapter that takes three seconds on an ordinary machine: past it something is broken."""
KILLED_AT: Final = 300
"""Invoices in the table when the worker is killed: about a third, so that it is in the middle of its work."""

SHOP_TABLES: Final = Path(__file__).with_name("shop.sql")
MISSING: Final = "2-order-placed.avsc"


@final
class Story:
    """Tells it once. `registry` is the directory of schemas that the worker reads."""

    def __init__(self, screen: Screen, cluster: Cluster, programs: Programs, reader: Reader, registry: Path) -> None:
        self._screen = screen
        self._cluster = cluster
        self._programs = programs
        self._reader = reader
        self._registry = registry
        self._sent: list[Order] = []
        self.broken: list[str] = []

    def prepare(self) -> None:
        """Topics, tables, and all schemas but one."""
        self._registry.mkdir()
        texts = {int(path.name.partition("-")[0]): path.read_text("utf-8") for path in SCHEMAS.glob("*.avsc")}
        self._press = Press({1: texts[1], 2: texts[2]})
        for path in SCHEMAS.glob("*.avsc"):
            if path.name != MISSING:
                shutil.copy(path, self._registry)
        for topic in (ORDERS, INVOICES, LETTERS):
            self._cluster.partitions(topic)
        self._reader.execute(SHOP_TABLES)
        migrated = self._programs.command("migrate")
        if migrated.code:
            raise FatalError(f"tidegate migrate failed: {migrated.text}", fix="what it says")

    def tell(self) -> None:
        """All three chapters. Raises FatalError where the worker does not come to an end."""
        self._stream()
        self._repair()
        self._again()

    def _stream(self) -> None:
        orders = list(streamed())
        repeats = len(orders) - len(set(orders))
        self._screen.chapter(
            "1  Orders stream in",
            f"{len(orders):,} records; {repeats} of them are repeats, one is in a schema that nobody has",
            "registered, one is of a customer whose account is closed. Halfway through the",
            "worker is ended with kill -9, and another one started.",
        )
        self._programs.start_worker()
        self._send(orders)
        self._until("streamed", lambda: self._reader.invoices() >= KILLED_AT)
        self._programs.kill_worker()
        self._screen.say(f"  [dim]killed, with {self._reader.invoices():,} invoices written[/dim]")
        self._programs.start_worker()
        self._settle("streamed", registered=False)

    def _repair(self) -> None:
        self._screen.chapter(
            "2  The cause is repaired, the letter replayed",
            f"{MISSING} comes into the registry. The letter itself says what to do:",
        )
        shutil.copy(SCHEMAS / MISSING, self._registry)
        self._replay("replayed 1 letter")
        self._settle("replayed", registered=True)

    def _again(self) -> None:
        self._screen.chapter("3  All of it again", "The same replay, and then every record once more:")
        self._replay("replayed 0 letters")
        self._send(list(streamed()))
        self._settle("again", registered=True)

    def _replay(self, wanted: str) -> None:
        """By the command line that the letter itself carries, which is a dry run until --yes."""
        command = self._reader.replay_command("unknown_schema") + " --yes --wait"
        said = self._programs.command(*shlex.split(command)[1:])
        self._screen.quote(command, said.text)
        if not said.text.startswith(wanted):
            self.broken.append(f"the replay said {said.text!r}, where {wanted!r} must be")

    def _send(self, orders: Sequence[Order]) -> None:
        self._cluster.send(ORDERS, map(self._press.record, orders))
        self._sent += orders

    def _settle(self, title: str, *, registered: bool) -> None:
        """Wait until all that was sent is handled, then compare what there is with what must be."""
        self._until(title, lambda: self._reader.done(len(self._sent)))
        found, wanted = self._reader.facts(), expected(self._sent, registered=registered)
        self._screen.show(title, found, wanted)
        self.broken += [f"{title}: {text}" for text in broken(found, wanted)]

    def _until(self, title: str, reached: Callable[[], bool]) -> None:
        """Wait, and show how it goes."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not reached():
            self._programs.check_worker()
            if time.monotonic() > give_up_s:
                raise FatalError(
                    f"the worker did not come to its end within {PATIENCE_S:.0f} s: {self._programs.tail()}",
                    fix="see what it waits for, then run the demo again",
                )
            self._screen.show(title, self._reader.facts())
            time.sleep(LOOK_S)
