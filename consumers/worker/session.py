"""`ctx.session`: an ORM session on the handler's own transaction. It writes; the framework commits, with the claim.

It works in a savepoint, so that a flush that fails undoes its own and not the transaction, which others may share. What
if the handler commits it? It is told not to, and its event fails. What if it rolls the whole of it back? Then what it
wrote is gone, and an event of which nothing is left must not be claimed: it fails too. What it does in savepoints of
its own (`begin_nested`) is its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, final

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from ..context import Tx


class SessionMisused(RuntimeError):
    """The handler wanted to end what the framework ends together with the event's claim."""


COMMITTED = (
    "ctx.session is committed by the framework, with the event's claim: take the commit (or session.begin()) out"
)

ROLLED_BACK = (
    "ctx.session was rolled back, so nothing is left that could be claimed: raise an error, or work in"
    " session.begin_nested()"
)


@final
class LazySession:
    """Opened at its first use, on `ctx.tx`. Owned by the event loop."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._opening = asyncio.Lock()
        self._session: AsyncSession | None = None
        self._ending = False
        self._rolled_back = False
        self._closed = False

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._get().__await__()

    async def finish(self) -> None:
        """The handler came back: write what it holds into the transaction. Raises what the database says to it."""
        if self._session is None:
            return
        if self._rolled_back:
            raise SessionMisused(ROLLED_BACK)
        self._ending = True
        await self._session.commit()

    async def close(self) -> None:
        """It is of no use any more, to nobody; the transaction goes on."""
        self._closed = self._ending = True
        if self._session is not None:
            await self._session.close()

    async def _get(self) -> AsyncSession:
        async with self._opening:
            if self._closed:
                raise RuntimeError("the handling that this session belongs to has ended")
            if self._session is None:
                self._session = AsyncSession(
                    await self._tx,
                    join_transaction_mode="create_savepoint",
                    expire_on_commit=False,
                    close_resets_only=False,
                )
                event.listen(self._session.sync_session, "before_commit", self._before_commit)
                event.listen(self._session.sync_session, "after_soft_rollback", self._after_rollback)
            return self._session

    def _before_commit(self, session: Session) -> None:
        """Also said before a savepoint of the handler's is released."""
        if not self._ending and session.get_nested_transaction() is None:
            raise SessionMisused(COMMITTED)

    def _after_rollback(self, _: Session, transaction: SessionTransaction) -> None:
        self._rolled_back = self._rolled_back or transaction.parent is None
