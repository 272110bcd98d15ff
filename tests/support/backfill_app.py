"""The app that is backfilled in processes of their own: a command and a guarded projection, in whose tables a second
effect would show.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tidegate.consumers import App, Context, Event, Json, header, write_newer

TABLES: Final = (
    "CREATE TABLE public.done (place bigint GENERATED ALWAYS AS IDENTITY, id text)",
    "CREATE TABLE public.view (id text PRIMARY KEY, n bigint)",
)

VIEW: Final = sa.Table(
    "view", sa.MetaData(schema="public"), sa.Column("id", sa.Text, primary_key=True), sa.Column("n", sa.BigInteger)
)


@dataclass(frozen=True)
class Note:
    """Write it down."""

    id: str


app = App("backfilled", owner="tests")
consumer = app.consumer(
    os.environ.get("CRASH_CONSUMER", "backfilled"),
    topics=[os.environ.get("CRASH_TOPIC", "backfilled")],
    codec=Json(),
    event_id=header("id"),
    start="latest" if os.environ.get("BACKFILL_START") == "latest" else "earliest",
)


@consumer.projection("view", only_if_newer=True)
async def view(events: Sequence[Event[dict[str, Any]]], tx: AsyncConnection) -> int:
    """The highest number of each key."""
    rows = [{"id": (event.key or b"").decode(), "n": event.value["n"]} for event in events]
    return await write_newer(tx, VIEW, rows, key=["id"], version="n")


@consumer.command("do", on="Thing")
def to_do(event: Event[dict[str, Any]]) -> Note:
    """Every event."""
    return Note(event.id_text)


@app.handler(Note)
async def do(command: Note, ctx: Context) -> None:
    """Even ones through the handler's own transaction, the others by what they publish."""
    if int(command.id) % 2 == 0:
        await ctx.tx.execute(sa.text("INSERT INTO public.done (id) VALUES (:id)"), {"id": command.id})
    else:
        await ctx.publish("nowhere", {"id": command.id}, name=command.id)
