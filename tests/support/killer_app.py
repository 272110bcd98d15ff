"""The app whose records kill their process: each event is written down by a projection and by a command.

`KILLS` says what kills: `command` and `projection` send the signal themselves, `memory` takes memory until a stand-in
for the kernel's killer ends the process, `codec` leaves in the middle of decoding, `row` fails first and kills when it
is tried again. With `FAILS` the command refuses what says so, until its breaker opens. Nothing in its table
refuses a second effect.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, BreakerPolicy, Context, Event, Json, RetryLater, RetryPolicy, header
from tidegate.consumers.codecs.codec import Codec, CodecSettings, Decoded
from tidegate.inbox.errors import RecordError
from tidegate.inbox.event import Record

TABLES: Final = ("CREATE TABLE public.done (place bigint GENERATED ALWAYS AS IDENTITY, handler text, id text)",)

KILLS: Final = os.environ.get("KILLS", "")
FAILS: Final = bool(os.environ.get("FAILS"))
LETTERS_MAX: Final = 5
"""So many dead in a row."""

MEMORY_MAX: Final = 64 << 20
"""Beyond what the process has when the handler begins."""


@dataclass(frozen=True)
class Note:
    """Write it down."""

    id: str
    says: dict[str, Any]


class Deadly:
    """JSON, but for the record that ends whoever reads it."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def types(self, types: Iterable[type]) -> None:
        """See `Codec`."""
        self._codec.types(types)

    def decode(self, record: Record) -> Decoded:
        """See `Codec`."""
        if KILLS == "codec" and json.loads(record.value or b"{}").get("kills"):
            os._exit(11)
        return self._codec.decode(record)

    def decode_many(self, records: Sequence[Record]) -> list[Decoded | RecordError]:
        """See `Codec`."""
        return [self.decode(record) for record in records]

    def encode(self, topic: str, value: object) -> bytes:
        """See `Codec`."""
        return self._codec.encode(topic, value)


class DeadlyJson:
    """Declares it."""

    def open(self, settings: CodecSettings) -> Codec:
        """See `CodecSpec`."""
        return Deadly(Json().open(settings))


app = App("killer", owner="tests")
consumer = app.consumer(
    os.environ.get("CRASH_CONSUMER", "killer"),
    topics=[os.environ.get("CRASH_TOPIC", "killer")],
    codec=DeadlyJson(),
    event_id=header("id"),
)


def kill(says: dict[str, Any], handler: str) -> None:
    """What the record is there for."""
    if not says.get("kills"):
        return
    if handler == KILLS:
        os.kill(os.getpid(), signal.SIGKILL)
    if KILLS == "memory" and handler == "command":
        threading.Thread(target=_kill_beyond, args=(_memory() + MEMORY_MAX,), daemon=True).start()
        held = bytearray()
        while True:
            held += b"x" * (1 << 20)


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _kill_beyond(most: int) -> None:
    """What the kernel does to a process that has more memory than its container may have."""
    while _memory() < most:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


@consumer.projection("projection")
async def project(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
    """Each event, in the batch's transaction."""
    rows = [{"id": event.id_text} for event in events]
    await tx.execute(text("INSERT INTO public.done (handler, id) VALUES ('projection', :id)"), rows)
    for event in events:
        kill(event.value, "projection")


@consumer.command(
    "command", on="Thing", retry=RetryPolicy(in_place_max_s=0.0), breaker=BreakerPolicy(row_max=LETTERS_MAX)
)
def to_note(event: Event[dict[str, Any]]) -> Note:
    """Every event."""
    return Note(event.id_text, event.value)


@app.handler(Note)
async def note(command: Note, ctx: Context) -> None:
    """Through the handler's own transaction."""
    if FAILS and command.says.get("fails"):
        raise ValueError("refused")
    await ctx.tx.execute(text("INSERT INTO public.done (handler, id) VALUES ('command', :id)"), {"id": command.id})
    if KILLS == "row" and command.says.get("kills"):
        if ctx.attempt == 1:
            raise RetryLater("not now", after_s=0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    kill(command.says, "command")
