"""What a person says of an event of unknown outcome."""

from __future__ import annotations

from typing import Any

from tests.support.running import Stage
from tidegate.dlq.permission import Gate
from tidegate.dlq.reach import unlimited
from tidegate.dlq.review import Ruling, Verb, resolve
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.store import Store
from tidegate.inbox.tables import tables


async def say(stage: Stage, verb: Verb, id_: str, **more: Any) -> None:
    """That this became of the event with this id."""
    database = Database(stage.url, member="test", settings=DatabaseSettings(pool_max=1, tx_pool_max=1))
    row = await stage.value(f"SELECT id FROM tidegate.failure WHERE id_text = '{id_}'")
    try:
        ruling = Ruling(reason="phoned them", reference=str(row), verb=verb, **more)
        await resolve(Gate(Store(database, tables()), unlimited("ada")), ruling)
    finally:
        await database.close()
