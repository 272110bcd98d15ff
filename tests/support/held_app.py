"""The app whose projection is held while its history is applied again: its writes are not guarded, and it notes in
which order it saw its events. A command beside it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, Context, Event, Json, header

TABLES: Final = (
    "CREATE TABLE public.done (place bigint GENERATED ALWAYS AS IDENTITY, id text)",
    "CREATE TABLE public.last (id text PRIMARY KEY, n bigint)",
    "CREATE TABLE public.seen (place bigint GENERATED ALWAYS AS IDENTITY, id text, n bigint)",
)


@dataclass(frozen=True)
class Note:
    """Write it down."""

    id: str


app = App("held", owner="tests")
consumer = app.consumer(
    os.environ.get("CRASH_CONSUMER", "held"),
    topics=[os.environ.get("CRASH_TOPIC", "held")],
    codec=Json(),
    event_id=header("id"),
)


@consumer.projection("last")
async def last(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> None:
    """Whatever comes last stands."""
    for event in events:
        row = {"id": (event.key or b"").decode(), "n": event.value["n"]}
        await tx.execute(sa.text("INSERT INTO public.seen (id, n) VALUES (:id, :n)"), row)
        await tx.execute(
            sa.text("INSERT INTO public.last VALUES (:id, :n) ON CONFLICT (id) DO UPDATE SET n = excluded.n"), row
        )


@consumer.command("do", on="Thing")
def to_do(event: Event[dict[str, Any]]) -> Note:
    """Every event."""
    return Note(event.id_text)


@app.handler(Note)
async def do(command: Note, ctx: Context) -> None:
    """It has nothing to do with the projection, and goes on."""
    await ctx.tx.execute(sa.text("INSERT INTO public.done (id) VALUES (:id)"), {"id": command.id})
