"""Keeps a batch's transaction open under the user's function: COMMIT and ROLLBACK are the framework's.

The claims of the batch stand before the function runs. Were it to commit, they would stand without what it writes
after that, and no later run would make up for it: the rest of its work would be lost in silence. So both calls are
refused before anything is sent, and the process leaves, because the function is wrong whatever events it is given.
What went past SQLAlchemy (a COMMIT as text) cannot be refused; it is noticed right after the function's end.

A function that catches an error of the database and goes on has a transaction in which every later statement is
refused, ours too. `hidden` tells that apart from a failure of ours: it is its events' failure, as if it had let the
error out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection

from ..inbox.errors import FatalError
from ..inbox.faults import sqlstate

IN_FAILED_TRANSACTION = "25P02"
"""PostgreSQL's answer to every statement after the one that failed."""

FIX = "leave commit and rollback to the framework; a savepoint, `async with tx.begin_nested()`, is yours"


class EndedItselfError(Exception):
    """Raised into a function that calls commit or rollback."""

    def __init__(self) -> None:
        super().__init__("this transaction is the framework's to end: " + FIX)


class HiddenError(Exception):
    """The function went on although the database had refused one of its statements."""

    def __init__(self) -> None:
        super().__init__(
            "the database refused a statement, and the projection went on: nothing of its transaction can stand."
            " Let the error out, or make the attempt in a savepoint"
        )


def hidden(error: Exception) -> HiddenError:
    """What our statement behind the function's end failed with, as the function's failure. Raises it if it is not."""
    if sqlstate(error) != IN_FAILED_TRANSACTION:
        raise error
    return HiddenError()


@asynccontextmanager
async def kept_open(conn: AsyncConnection, handler: str) -> AsyncGenerator[None]:
    """The function runs inside. Raises FatalError if it tried to end the transaction, or did."""
    sync = conn.sync_connection
    assert sync is not None, "a batch's connection is open"
    tried = False

    def refuse(_: Connection) -> None:
        nonlocal tried
        tried = True
        raise EndedItselfError

    for ending in ("commit", "rollback"):
        event.listen(sync, ending, refuse)
    try:
        yield
    finally:
        for ending in ("commit", "rollback"):
            event.remove(sync, ending, refuse)
    if tried:
        await conn.invalidate()  # what SQLAlchemy thinks of the transaction is not what the server does
        raise FatalError(f"the projection {handler!r} tried to end the transaction of its batch", fix=FIX)
    if not conn.invalidated and not _is_in_transaction(sync):
        raise FatalError(
            f"the projection {handler!r} ended the transaction of its batch: what it wrote until then stands, with the"
            " claims of the whole batch",
            fix=FIX,
        )


def _is_in_transaction(sync: Connection) -> bool:
    driver = sync.connection.driver_connection
    return driver is None or driver.is_closed() or driver.is_in_transaction()
