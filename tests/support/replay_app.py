"""The app whose letters are replayed while everything is killed: nothing can be handled until a file is there.

Each event is written down by a projection and by a command. Nothing in their table refuses a second effect.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, Context, Event, Json, header

REPAIRED = Path(os.environ.get("REPAIRED", "repaired"))


@dataclass(frozen=True)
class Note:
    """Write it down."""

    id: str


def _check() -> None:
    if not REPAIRED.exists():
        raise ValueError("not repaired yet")


app = App("tests", owner="tests")
_consumer = app.consumer(
    os.environ.get("CRASH_CONSUMER", "c"),
    topics=[os.environ.get("CRASH_TOPIC", "t")],
    codec=Json(),
    event_id=header("id"),
)


@_consumer.projection("projection", breaker=None)
async def project(events: Sequence[Event[Any]], tx: AsyncConnection) -> None:
    """Write them down."""
    _check()
    rows = [{"id": event.id_text} for event in events]
    await tx.execute(text("INSERT INTO public.done (handler, id) VALUES ('projection', :id)"), rows)


@_consumer.command("command", on="Thing", breaker=None)
def to_note(event: Event[Any]) -> Note:
    """Every event."""
    return Note(event.id_text)


@app.handler(Note)
async def write(command: Note, ctx: Context) -> None:
    """Write it down, in the transaction of its claim."""
    _check()
    await ctx.tx.execute(text("INSERT INTO public.done (handler, id) VALUES ('command', :id)"), {"id": command.id})
